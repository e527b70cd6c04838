"""The open batches of one topic, and its partitions for records without a key. Guarded by the accumulator's lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from ..._chance import chance
from ..._machines.cluster import Cluster, Topic
from ..._machines.produce.partitioner import StickyPartitioner
from ..._record_batch import OpenBatches, ProducerBatch
from ...config.producer import ProducerConfig

_QUEUES_AGE = 0.05  # seconds between two checks of the queue lengths


class TopicBatches:
    """`queue_lengths` returns the number of waiting batches for each partition of a topic, `unavailable` the partitions
    whose leader has accepted none for a while."""

    def __init__(
        self,
        name: str,
        open_batches: OpenBatches,
        config: ProducerConfig,
        queue_lengths: Callable[[str], Mapping[int, int]],
        unavailable: Callable[[str, float], Collection[int]],
    ) -> None:
        self.name = name
        self.open = open_batches
        self.last_used = time.monotonic()
        self._config = config
        self._queue_lengths = queue_lengths
        self._unavailable = unavailable
        self._sticky = StickyPartitioner(
            config.batch_size, chance.random, is_adaptive=config.partitioner_adaptive_partitioning_enable
        )
        self._with_leader: list[int] = []
        self._available: list[int] = []  # the same, without those whose leader accepts nothing
        self._queues_seen = 0.0

    def follow(self, topic: Topic, cluster: Cluster) -> None:
        """The metadata has changed."""
        self.open.grow(max(topic.partitions) + 1)
        self._with_leader = self._available = sorted(
            number for number, each in topic.partitions.items() if each.leader.node in cluster.brokers
        )

    def draw(self) -> int:
        """The partition for the next record without a key."""
        self.open.sticky = drawn = self._sticky.partition(self._available, len(self.open))
        return drawn

    def draw_many(self, count: int) -> list[int]:
        """Partitions for the next `count` batches of records without a key."""
        self._follow_queues()
        drawn = []
        for _ in range(count):
            drawn.append(self._sticky.partition(self._available, len(self.open)))
            self._appended(max(1, self._config.batch_size), is_full=True)
        if self.open.sticky is not None and self.open.get(self.open.sticky) is None:
            self.draw()
        return drawn

    def closed(self, batch: ProducerBatch, *, is_full: bool) -> None:
        """The batch takes no more records. If it was that of the sticky partition, another partition may follow."""
        if batch.partition == self.open.sticky:
            self._follow_queues()
            # A full batch counts as batch.size, since it does not have the record that did not fit.
            self._appended(max(batch.size, self._config.batch_size) if is_full else batch.size, is_full=is_full)
            self.draw()

    def count_direct(self, partition: int) -> int:
        """Counts the records without a key that were sent directly to this partition. Returns their bytes."""
        size = self.open.take_direct_bytes(partition)
        if size:
            self._follow_queues()
            self._appended(size, is_full=True)
        return size

    def _appended(self, size: int, *, is_full: bool) -> None:
        self._sticky.appended(size, self._available, len(self.open), is_batch_full=is_full)

    def _follow_queues(self) -> None:
        now = time.monotonic()
        if now - self._queues_seen < _QUEUES_AGE:
            return
        self._queues_seen = now
        config = self._config
        if config.partitioner_availability_timeout_ms and config.partitioner_adaptive_partitioning_enable:
            slow = self._unavailable(self.name, now - config.partitioner_availability_timeout_ms / 1000)
            self._available = [each for each in self._with_leader if each not in slow] or self._with_leader
        self._sticky.queues_changed(self._queue_lengths(self.name), self._available)
