"""Requests to the leaders of partitions: offsets by time (ListOffsets), and ends of leader epochs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..._machines.positions.positions import ListedOffset
from ..._machines.positions.truncation import EpochEnd
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, Api
from ...config.consumer import ConsumerConfig
from ...errors import HeadraceError, NetworkError, ProtocolError
from ...types import TopicPartition
from ..network.client import Client

LATEST = -1
EARLIEST = -2

_TOO_YOUNG = -1


class ListOffsets:
    """Asks all leaders at once. The result has an offset, or an error, for each partition."""

    def __init__(self, client: Client[ConsumerConfig]) -> None:
        self._client = client
        self._timeout_ms = client.config.request_timeout_ms

    async def by_time(
        self, timestamps: Mapping[TopicPartition, int], *, isolation: int | None = None
    ) -> dict[TopicPartition, ListedOffset | HeadraceError]:
        """The first offset at or after each time; or LATEST, EARLIEST. An invalid offset is a ProtocolError."""

        def partition(tp: TopicPartition, epoch: int) -> dict[str, Any]:
            return {"partition_index": tp.partition, "current_leader_epoch": epoch, "timestamp": timestamps[tp]}

        if isolation is None:
            isolation = 1 if self._client.config.reads_committed else 0
        fields = {
            "replica_id": -1,
            "isolation_level": isolation,
            "timeout": self._timeout_ms,
        }
        results = await self._ask(
            LIST_OFFSETS,
            fields,
            "name",
            timestamps,
            partition,
            lambda item: (item.partition_index, ListedOffset(item.offset, item.timestamp, item.leader_epoch)),
        )
        return {tp: _checked(tp, timestamps[tp], it) for tp, it in results.items()}

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd | HeadraceError]:
        """Where each epoch ended, for finding out whether the log was truncated (KIP-320)."""

        def partition(tp: TopicPartition, epoch: int) -> dict[str, Any]:
            return {"partition": tp.partition, "current_leader_epoch": epoch, "leader_epoch": epochs[tp]}

        return await self._ask(
            OFFSET_FOR_LEADER_EPOCH,
            {"replica_id": -1},
            "topic",
            epochs,
            partition,
            lambda item: (item.partition, EpochEnd(item.leader_epoch, item.end_offset)),
        )

    async def _ask(
        self,
        api: Api,
        fields: Mapping[str, Any],
        name_field: str,
        partitions: Iterable[TopicPartition],
        describe: Callable[[TopicPartition, int], dict[str, Any]],
        read: Callable[[Any], tuple[int, Any]],
    ) -> dict[TopicPartition, Any]:
        by_leader: dict[int, list[tuple[TopicPartition, int]]] = defaultdict(list)
        results: dict[TopicPartition, Any] = {}
        stale = False
        with self._client.lock:
            for tp in partitions:
                leader = self._client.cluster.leader(tp)
                if leader is None:
                    code = self._client.cluster.topic_errors.get(tp.topic) or ErrorCode.leader_not_available
                    detail = self._client.cluster.why_leaderless(tp)
                    results[tp] = kafka_error(code, f"{api} of {tp}", detail)
                    stale = True
                else:
                    by_leader[leader.node].append((tp, leader.epoch))

        async def ask(node: int, asked: list[tuple[TopicPartition, int]]) -> None:
            nonlocal stale
            topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for tp, epoch in asked:
                topics[tp.topic].append(describe(tp, epoch))
            request = {
                **fields,
                "topics": [{name_field: name, "partitions": items} for name, items in topics.items()],
            }
            try:
                reply = await self._client.call(node, api, request)
            except HeadraceError as error:
                stale = True
                results.update((tp, error) for tp, _ in asked)
                return
            left = {tp for tp, _ in asked}
            for topic in reply.body.topics:
                for item in topic.partitions:
                    number, value = read(item)
                    tp = TopicPartition(getattr(topic, name_field), number)
                    if tp not in left:
                        continue  # this broker was not asked for it
                    left.remove(tp)
                    if item.error_code == NONE:
                        results[tp] = value
                    else:
                        results[tp] = kafka_error(item.error_code, f"{api} of {tp}")
                        stale |= results[tp].retriable
            for tp in left:
                results[tp] = NetworkError(f"{api} of {tp}: the response does not contain it")

        await asyncio.gather(*(ask(node, asked) for node, asked in by_leader.items()))
        if stale:
            self._client.refresh_soon(tp.topic for tp in partitions)
        return results


def _checked(tp: TopicPartition, timestamp: int, found: ListedOffset | HeadraceError) -> ListedOffset | HeadraceError:
    """An invalid offset would become a position, and be committed. Every log has a beginning and an end; only for a
    time there may be no record that young."""
    if isinstance(found, HeadraceError) or found.offset >= 0:
        return found
    if found.offset == _TOO_YOUNG and timestamp >= 0:
        return found
    return ProtocolError(f"ListOffsets of {tp}: the response has the invalid offset {found.offset}")
