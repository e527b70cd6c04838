"""Questions to the leaders of partitions: offsets by time (ListOffsets), and ends of leader epochs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import HeadraceError, NetworkError, ProtocolError
from ..protocol.codes import NONE, kafka_error
from ..protocol.messages import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, Api
from ..types import TopicPartition
from .client import Client

LATEST = -1
EARLIEST = -2

_TOO_YOUNG = -1


class Found(NamedTuple):
    """An offset of the log; -1 if no record is as young as was asked for."""

    offset: int
    timestamp: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """The last epoch that is not above the asked one, and where it ends in the leader's log (-1: unknown)."""

    leader_epoch: int
    end_offset: int

    @property
    def is_known(self) -> bool:
        return self.leader_epoch >= 0 and self.end_offset >= 0


class LogOffsets:
    """Asks all leaders at once. Answers are given partition by partition: an offset, or the error."""

    def __init__(self, client: Client) -> None:
        self._client = client
        config = client.config
        self._isolation = 1 if config.isolation_level == "read_committed" else 0
        self._timeout_ms = config.request_timeout_ms

    async def by_time(
        self, timestamps: Mapping[TopicPartition, int], *, isolation: int | None = None
    ) -> dict[TopicPartition, Found | HeadraceError]:
        """The first offset at or after each time; or LATEST, EARLIEST. What is no offset is a ProtocolError."""

        def partition(tp: TopicPartition, epoch: int) -> dict[str, Any]:
            return {"partition_index": tp.partition, "current_leader_epoch": epoch, "timestamp": timestamps[tp]}

        fields = {
            "replica_id": -1,
            "isolation_level": self._isolation if isolation is None else isolation,
            "timeout": self._timeout_ms,
        }
        results = await self._ask(
            LIST_OFFSETS,
            fields,
            "name",
            timestamps,
            partition,
            lambda item: (item.partition_index, Found(item.offset, item.timestamp, item.leader_epoch)),
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
                    code = self._client.cluster.topic_errors.get(tp.topic)
                    results[tp] = (
                        kafka_error(code, f"{api} of {tp}")
                        if code
                        else NetworkError(f"{api} of {tp}: no leader is known")
                    )
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
                        continue  # nobody asked this broker
                    left.remove(tp)
                    if item.error_code == NONE:
                        results[tp] = value
                    else:
                        results[tp] = kafka_error(item.error_code, f"{api} of {tp}")
                        stale |= results[tp].retriable
            for tp in left:
                results[tp] = NetworkError(f"{api} of {tp}: the answer leaves it out")

        await asyncio.gather(*(ask(node, asked) for node, asked in by_leader.items()))
        if stale:
            self._client.refresh_soon()
        return results


def _checked(tp: TopicPartition, timestamp: int, found: Found | HeadraceError) -> Found | HeadraceError:
    """Whoever took what is no offset for one would read from there, and commit it. Every log has a beginning and an
    end; only a time may be one that no record is as young as."""
    if isinstance(found, HeadraceError) or found.offset >= 0:
        return found
    if found.offset == _TOO_YOUNG and timestamp >= 0:
        return found
    return ProtocolError(f"ListOffsets of {tp}: the answer is {found.offset}, which is no offset")
