"""Questions of users to the brokers: offsets of logs, topics and their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from .._arguments import SomePartitions, optional_seconds_of, partition_of, partitions_in, timestamps_in, topic_of
from .._machines.positions.positions import ListedOffset
from ..errors import HeadraceError
from ..types import OffsetAndTimestamp, PartitionInfo, TopicPartition, Watermarks
from .call_guard import CallGuard
from .fetch.buffer import FetchBuffer
from .positions.list_offsets import EARLIEST, LATEST
from .retried_calls import RetriedCalls

Topics = dict[str, list[PartitionInfo]]


class OffsetQueries:
    """Each call asks a broker, and retries until `timeout` (default.api.timeout.ms). `AsyncConsumer` documents the
    calls."""

    def __init__(self, guard: CallGuard, calls: RetriedCalls, buffer: FetchBuffer) -> None:
        self._guard = guard
        self._calls = calls
        self._buffer = buffer

    async def beginning_offsets(self, partitions: SomePartitions, timeout: float | None) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions_in(partitions), EARLIEST), timeout)
        read = self._buffer.handed_out()
        return {tp: read[tp].low if tp in read else it.offset for tp, it in found.items()}

    async def end_offsets(self, partitions: SomePartitions, timeout: float | None) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions_in(partitions), LATEST), timeout)
        read = self._buffer.handed_out()
        return {tp: read[tp].high if tp in read else it.offset for tp, it in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        found = await self._list_offsets(timestamps_in(timestamps), timeout)
        return {
            tp: None
            if it.offset < 0
            else OffsetAndTimestamp(it.offset, it.timestamp, None if it.leader_epoch < 0 else it.leader_epoch)
            for tp, it in found.items()
        }

    async def watermarks(self, partition: TopicPartition | tuple[str, int], timeout: float | None) -> Watermarks:
        tp = partition_of(partition)
        low = await self._list_offsets({tp: EARLIEST}, timeout)
        high = await self._list_offsets({tp: LATEST}, timeout, isolation=0)
        return Watermarks(low[tp].offset, high[tp].offset)

    async def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None, isolation: int | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        self._guard.check()
        timeout = optional_seconds_of(timeout)
        runtime = self._calls.start()
        found: dict[TopicPartition, ListedOffset] = {}

        async def ask() -> dict[TopicPartition, ListedOffset]:
            left = {tp: at for tp, at in timestamps.items() if tp not in found}
            await runtime.client.fetch_unknown_topics({tp.topic for tp in left})
            last: HeadraceError | None = None
            for tp, result in (await runtime.offsets.by_time(left, isolation=isolation)).items():
                if isinstance(result, HeadraceError):
                    last = result
                else:
                    found[tp] = result
            if last is not None:
                raise last
            return {tp: found[tp] for tp in timestamps}

        return await self._calls.call("ListOffsets", timeout, ask)

    async def list_topics(self, timeout: float | None) -> Topics:
        self._guard.check()
        timeout = optional_seconds_of(timeout)
        runtime = self._calls.start()
        return await self._calls.call("list_topics", timeout, lambda: runtime.client.describe_topics(None))

    async def partitions_for_topic(self, topic: str, timeout: float | None) -> list[PartitionInfo]:
        self._guard.check()
        topic, timeout = topic_of(topic), optional_seconds_of(timeout)
        runtime = self._calls.start()
        found = await self._calls.call("partitions_for_topic", timeout, lambda: runtime.client.describe_topics([topic]))
        return found.get(topic, [])

    async def topics_and_ends(
        self, names: list[str] | None, partitions: Collection[TopicPartition], timeout: float | None
    ) -> tuple[Topics, dict[TopicPartition, int]]:
        """The topics of these names (None: all topics), and the end offsets of these partitions, asked for at the same
        time: one round trip and not two. Partitions without an answer are left out. `timeout` can only shorten
        default.api.timeout.ms."""
        longest = self._calls.default_timeout
        timeout = longest if timeout is None else min(timeout, longest)

        async def ask() -> tuple[Topics, dict[TopicPartition, int]]:
            runtime = self._calls.start()
            topics, found = await asyncio.gather(
                runtime.client.describe_topics(names), runtime.offsets.by_time(dict.fromkeys(partitions, LATEST))
            )
            return topics, {tp: end.offset for tp, end in found.items() if not isinstance(end, HeadraceError)}

        return await self._calls.call("Metadata and ListOffsets", timeout, ask)
