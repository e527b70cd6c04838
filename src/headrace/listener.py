"""What a subscriber hears of its partitions."""

from __future__ import annotations

from collections.abc import Awaitable

from .types import TopicPartition


class RebalanceListener:
    """Derive from it and override what you need.

    The methods are called inside of poll(), unsubscribe() and close(), on the caller's thread, and may use the
    consumer: seek(), commit(), position() and the like, not poll(). What they raise is raised from that call, after
    the step itself is done. With AsyncConsumer they may be coroutines.
    """

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
        """These were added. An empty set says that a rebalance has brought nothing new."""
        return None

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
        """These are about to be given up: the last chance to commit what was done of them."""
        return None

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
        """These are gone, and others may read them already: commits of them fail. Unless overridden, this calls
        `on_partitions_revoked`."""
        return self.on_partitions_revoked(partitions)

    def on_lost_range(self, partition: TopicPartition, start: int, end: int) -> Awaitable[None] | None:
        """The offsets from `start` to before `end` were not read yet and will not be: retention has deleted them. The
        consumer resumes at `end`. With auto.offset.reset=latest that is the end of the log, so the range also covers
        records that are still there. With enable.parallel.rebalance it is a range of the backlog, too."""
        return None
