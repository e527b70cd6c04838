"""The callbacks for partitions that are assigned, revoked or lost."""

from __future__ import annotations

from collections.abc import Awaitable

from .types import TopicPartition


class RebalanceListener:
    """Callbacks for changes of the assignment. Subclass it and override the methods you need.

    poll(), unsubscribe() and close() call the methods on the caller's thread. They may call seek(), commit(),
    position() and other methods of the consumer, but not poll(). An exception from a method is raised by that call,
    after the step itself is complete. With AsyncConsumer, the methods may be coroutines.
    """

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
        """The partitions were added to the assignment. The set is empty after a rebalance that added none."""
        return None

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
        """The partitions are about to be revoked. This is the last chance to commit their offsets."""
        return None

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
        """The partitions were lost without a revoke. Other members may already consume them, and commits for them
        fail. By default, this calls `on_partitions_revoked`."""
        return self.on_partitions_revoked(partitions)

    def on_lost_range(self, partition: TopicPartition, start: int, end: int) -> Awaitable[None] | None:
        """The offsets from `start` up to, not including, `end` were not consumed yet, and are skipped because
        retention has deleted them. The consumer resumes at `end`. With auto.offset.reset=latest, `end` is the end of
        the log, so the range also covers records that still exist. With enable.parallel.rebalance, the range may
        also be a part of the backlog."""
        return None
