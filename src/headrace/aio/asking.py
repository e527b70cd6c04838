"""The part of a consumer that asks about logs and topics."""

from __future__ import annotations

from collections.abc import Mapping

from ..arguments import optional_seconds_of, partition_of, timestamps_in, topic_of
from ..errors import HeadraceError
from ..types import OffsetAndTimestamp, PartitionInfo, TopicPartition, Watermarks
from .life import Life, SomePartitions, partitions_in
from .log_offsets import EARLIEST, LATEST, Found


class Asking(Life):
    """Each call asks a broker, again and again until `timeout` (default.api.timeout.ms) if need be."""

    async def beginning_offsets(
        self, partitions: SomePartitions, *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each log. Where a partition is read in two lanes (KIP-333): the first
        offset that one of them has handed out; `watermarks()` then gives the log's."""
        found = await self._list_offsets(dict.fromkeys(partitions_in(partitions), EARLIEST), timeout)
        read = self._intake.handed_out()
        return {tp: read[tp].low if tp in read else it.offset for tp, it in found.items()}

    async def end_offsets(
        self, partitions: SomePartitions, *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record that can be read: with read_committed, of closed transactions. Where a
        partition is read in two lanes (KIP-333): the one behind the last that was handed out."""
        found = await self._list_offsets(dict.fromkeys(partitions_in(partitions), LATEST), timeout)
        read = self._intake.handed_out()
        return {tp: read[tp].high if tp in read else it.offset for tp, it in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after the time; None if there is none."""
        found = await self._list_offsets(timestamps_in(timestamps), timeout)
        return {
            tp: None
            if it.offset < 0
            else OffsetAndTimestamp(it.offset, it.timestamp, None if it.leader_epoch < 0 else it.leader_epoch)
            for tp, it in found.items()
        }

    async def watermarks(
        self, partition: TopicPartition | tuple[str, int], *, timeout: float | None = None
    ) -> Watermarks:
        """The log's own bounds, open transactions included."""
        tp = partition_of(partition)
        low = await self._list_offsets({tp: EARLIEST}, timeout)
        high = await self._list_offsets({tp: LATEST}, timeout, isolation=0)
        return Watermarks(low[tp].offset, high[tp].offset)

    async def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None, isolation: int | None = None
    ) -> dict[TopicPartition, Found]:
        self._gate.check()
        timeout = optional_seconds_of(timeout)
        engine = self._start()
        found: dict[TopicPartition, Found] = {}

        async def ask() -> dict[TopicPartition, Found]:
            left = {tp: at for tp, at in timestamps.items() if tp not in found}
            await engine.client.know_topics({tp.topic for tp in left})
            last: HeadraceError | None = None
            for tp, result in (await engine.offsets.by_time(left, isolation=isolation)).items():
                if isinstance(result, HeadraceError):
                    last = result
                else:
                    found[tp] = result
            if last is not None:
                raise last
            return {tp: found[tp] for tp in timestamps}

        return await self._timed("ListOffsets", timeout, ask)

    async def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this client may see, with their partitions."""
        self._gate.check()
        timeout = optional_seconds_of(timeout)
        engine = self._start()
        return await self._timed("list_topics", timeout, lambda: engine.describe_topics(None))

    async def partitions_for_topic(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of a topic; an empty list if there is no such topic."""
        self._gate.check()
        topic, timeout = topic_of(topic), optional_seconds_of(timeout)
        engine = self._start()
        found = await self._timed("partitions_for_topic", timeout, lambda: engine.describe_topics([topic]))
        return found.get(topic, [])
