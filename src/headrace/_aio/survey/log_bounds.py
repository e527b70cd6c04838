"""The beginnings and ends of many logs, with one request for each leader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ..._protocol.codes import NONE, kafka_error
from ..._protocol.survey_messages import MANY_OFFSETS
from ...errors import HeadraceError, NetworkError
from ...types import TopicPartition
from ..positions.list_offsets import EARLIEST as EARLIEST
from ..positions.list_offsets import LATEST as LATEST
from .found import FoundLog
from .survey import Survey, each


async def offsets(survey: Survey, logs: Iterable[FoundLog], time: int) -> dict[TopicPartition, int | HeadraceError]:
    """EARLIEST or LATEST offsets of these logs. Logs without a leader have none."""
    by_leader: dict[int, dict[str, list[FoundLog]]] = defaultdict(lambda: defaultdict(list))
    for log in logs:
        if log.leader >= 0:
            by_leader[log.leader][log.tp.topic].append(log)

    async def ask(leader: int) -> Any:
        topics = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": it.tp.partition, "current_leader_epoch": it.leader_epoch, "timestamp": time}
                    for it in found
                ],
            }
            for name, found in by_leader[leader].items()
        ]
        fields = {
            "replica_id": -1,
            "isolation_level": survey.isolation,
            "timeout": round(survey.timeout * 1000),
            "topics": topics,
        }
        return await survey.call(leader, MANY_OFFSETS, fields)

    found: dict[TopicPartition, int | HeadraceError] = {}
    for leader, answer in (await each(by_leader, ask)).items():
        asked = [log.tp for logs_of_topic in by_leader[leader].values() for log in logs_of_topic]
        if isinstance(answer, HeadraceError):
            found |= dict.fromkeys(asked, answer)
            continue
        for topic in answer.topics:
            name = topic.name
            for it in topic.partitions:
                tp = TopicPartition(name, it.partition_index)
                if it.error_code != NONE:
                    found[tp] = kafka_error(it.error_code, f"ListOffsets of {tp}")
                elif it.offset >= 0:
                    found[tp] = it.offset
        for tp in asked:
            if tp not in found:
                found[tp] = NetworkError(f"ListOffsets of {tp}: the response does not contain it")
    return found
