"""The start offsets of share groups: read, changed and deleted. The last two need a group without members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..._machines.cluster import UNKNOWN_TOPIC
from ..._protocol.admin_messages import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
)
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import exactly_one
from ..._security.exchanges import quoted
from ...admin import ShareOffset
from ...errors import HeadraceError, KafkaError
from ...types import TopicPartition
from .client import AdminClient
from .groups import Groups
from .missing import TopicIds, missing_partitions
from .partial import for_each


class ShareGroupOffsets:
    def __init__(self, client: AdminClient, groups: Groups) -> None:
        self._client = client
        self._groups = groups

    async def describe(self, group: str, timeout: float | None) -> dict[TopicPartition, ShareOffset]:
        doing = f"offsets of share group {group}"

        async def ask() -> dict[TopicPartition, ShareOffset]:
            node = await self._client.coordinator(group)
            fields = {"groups": [{"group_id": group, "topics": None}]}
            body = await self._client.call(node, DESCRIBE_SHARE_GROUP_OFFSETS, fields)
            answer = exactly_one(body.groups, doing)
            if answer.error_code != NONE:
                raise _error(answer, doing)
            found = {}
            for topic in answer.topics:
                for item in topic.partitions:
                    # Brokers silently skip a partition that is left out. A partition of a deleted topic cannot be
                    # reset.
                    if item.error_code != NONE and item.error_code not in UNKNOWN_TOPIC:
                        raise _error(item, f"{doing}: {topic.topic_name}-{item.partition_index}")
                    if item.error_code == NONE and item.start_offset >= 0:
                        lag = getattr(item, "lag", -1)
                        tp = TopicPartition(topic.topic_name, item.partition_index)
                        found[tp] = ShareOffset(item.start_offset, None if lag < 0 else lag)
            return found

        return await self._client.retried(doing, timeout, ask)

    async def alter(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        timeout: float | None,
        topic_ids: TopicIds | None = None,
    ) -> None:
        """`topic_ids` are those of the topics to which the offsets belong, if known. The request has only names, so a
        topic that is recreated between the check and the request is not detected."""
        doing = f"AlterShareGroupOffsets of group {group}"

        async def send(left: Collection[TopicPartition]) -> dict[TopicPartition, HeadraceError | None]:
            missing: dict[TopicPartition, HeadraceError | None] = {}
            if topic_ids is not None:
                missing, _ = await missing_partitions(self._client, left, topic_ids, doing)
            known = {tp: offsets[tp] for tp in left if tp not in missing}
            return {**missing, **(await self._alter(group, known, doing) if known else {})}

        await self._groups.without_members(
            group, doing, timeout, lambda: for_each(self._client, doing, timeout, offsets, send)
        )

    async def _alter(
        self, group: str, offsets: Mapping[TopicPartition, int], doing: str
    ) -> dict[TopicPartition, HeadraceError | None]:
        topics: dict[str, list[dict[str, int]]] = defaultdict(list)
        for tp, start in offsets.items():
            topics[tp.topic].append({"partition_index": tp.partition, "start_offset": start})
        fields = {
            "group_id": group,
            "topics": [{"topic_name": name, "partitions": items} for name, items in topics.items()],
        }
        node = await self._client.coordinator(group)
        body = await self._client.call(node, ALTER_SHARE_GROUP_OFFSETS, fields)
        if body.error_code != NONE:
            raise _error(body, doing)
        found: dict[TopicPartition, HeadraceError | None] = {}
        for topic in body.responses:
            for item in topic.partitions:
                tp = TopicPartition(topic.topic_name, item.partition_index)
                found[tp] = None if item.error_code == NONE else _error(item, f"{doing}: {tp}")
        return found

    async def delete(self, group: str, topics: Collection[str], timeout: float | None) -> None:
        doing = f"DeleteShareGroupOffsets of group {group}"

        async def send(left: Collection[str]) -> dict[str, HeadraceError | None]:
            fields = {"group_id": group, "topics": [{"topic_name": name} for name in left]}
            node = await self._client.coordinator(group)
            body = await self._client.call(node, DELETE_SHARE_GROUP_OFFSETS, fields)
            if body.error_code != NONE:
                raise _error(body, doing)
            return {
                topic.topic_name: None if topic.error_code == NONE else _error(topic, f"{doing}: {topic.topic_name}")
                for topic in body.responses
            }

        await self._groups.without_members(
            group, doing, timeout, lambda: for_each(self._client, doing, timeout, topics, send)
        )


def _error(answer: Any, doing: str) -> KafkaError:
    error = kafka_error(answer.error_code, doing, quoted(answer.error_message or ""))
    # The brokers' own check of a topic name: it was deleted, or never existed.
    error.retriable &= answer.error_code not in (*UNKNOWN_TOPIC, ErrorCode.group_id_not_found)
    return error
