"""What a fetcher fills and a poll empties: partitions with their buffers, and the decisions about fetching them.

The lock, the view of the cluster and the poll signal belong to the consumer's `FetchBuffer`.
"""

from __future__ import annotations

import abc
import asyncio
import threading
import time
from collections.abc import Callable, Iterable

from ..._machines.cluster import Cluster
from ..._machines.fetch.assignment import Assignment
from ..._machines.fetch.planner import FetchPlanner
from ...config.consumer import ConsumerConfig
from ...errors import HeadraceError
from ...types import TopicPartition
from ..background import nobody, watch
from ..poll_signal import PollSignal
from .poll_receiving import PollReceiving


class FetchedPartitions(abc.ABC):
    """The partitions of one fetcher. Everything in them is guarded by the lock."""

    def __init__(
        self,
        config: ConsumerConfig,
        lock: threading.Lock,
        cluster: Cluster,
        poll_signal: PollSignal,
        *,
        lane: str | None,
        budget: int,
        checks_epochs: bool = True,
    ) -> None:
        self.lock = lock
        self.cluster = cluster
        self.poll_signal = poll_signal
        self.lane = lane  # `Record.lane` of their records
        self.assignment = Assignment(
            config.auto_offset_reset,
            config.poll_drain_strategy,
            2 * config.max_partition_fetch_bytes,
            checks_epochs=checks_epochs,
        )
        self.fetching = FetchPlanner(config, self.assignment, cluster, budget)
        # Counted here, because unsubscribe() ends the fetcher. Changed with the lock held.
        self.poll_receiving: PollReceiving | None = None
        self.fetches = 0
        self.bytes_fetched = 0
        # Set by the runtime. The first two may be called from any thread, the others on the loop's only.
        self.wake_all: Callable[[], None] = nobody
        self.wake_fetching: Callable[[], None] = nobody
        self.fetch_soon: Callable[[], None] = nobody
        self.positions_soon: Callable[[], None] = nobody

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Watches a task that must not end by itself: if it does, that is a bug in headrace."""

        def on_crash(error: BaseException) -> None:
            self.crashed(error)
            self.poll_signal.notify()

        return watch(task, on_crash)

    @abc.abstractmethod
    def crashed(self, error: BaseException) -> None:
        """One of the watched tasks ended with this error."""

    def consume_needs_fetch(self) -> Callable[[], None] | None:
        """What wakes the fetching, if a poll has made that necessary. It is returned once, and to be called without the
        lock, which is held here."""
        assignment = self.assignment
        needs_fetch = assignment.needs_fetch or self.fetching.is_over_budget
        assignment.needs_fetch = False
        return self.wake_fetching if needs_fetch else None

    def fail(self, partitions: Iterable[TopicPartition], error: HeadraceError) -> None:
        """Fetching stopped for a reason that retries will hardly resolve: a poll raises it."""
        now = time.monotonic()
        with self.lock:
            for tp in partitions:
                state = self.assignment.get(tp)
                if state is not None:
                    state.refuse(error, now)
        self.poll_signal.notify()
