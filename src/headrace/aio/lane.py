"""What a fetcher fills and a poll empties.

A consumer has one lane; with `enable.parallel.rebalance` there is a second one for the backlog (KIP-333). Both are
behind the lock of the intake, and share its view of the cluster and its doorbell.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable

from ..config import ConsumerConfig
from ..errors import HeadraceError
from ..machines.assignment import Assignment
from ..machines.cluster import Cluster
from ..machines.fetching import Fetching
from ..types import TopicPartition
from .doorbell import Doorbell

log = logging.getLogger(__name__)


def _nobody() -> None:
    """Nobody is there yet to be woken."""


class Lane(abc.ABC):
    """Partitions with their buffers, and what is being fetched for them."""

    def __init__(
        self,
        config: ConsumerConfig,
        lock: threading.Lock,
        cluster: Cluster,
        doorbell: Doorbell,
        *,
        name: str | None,
        budget: int,
        checks_epochs: bool = True,
    ) -> None:
        self.lock = lock
        self.cluster = cluster
        self.doorbell = doorbell
        self.name = name  # what its records say
        self.assignment = Assignment(
            config.auto_offset_reset,
            config.poll_drain_strategy,
            2 * config.max_partition_fetch_bytes,
            checks_epochs=checks_epochs,
        )
        self.fetching = Fetching(config, self.assignment, cluster, budget)
        # Set by the engine. The first two may be called from any thread, the others on the loop's only.
        self.wake_all: Callable[[], None] = _nobody
        self.wake_fetching: Callable[[], None] = _nobody
        self.fetch_soon: Callable[[], None] = _nobody
        self.positions_soon: Callable[[], None] = _nobody

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """A task that must not end by itself. If it does, that is a bug of ours."""
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the task %s ended: %r", task.get_name(), error, exc_info=error)
            self.crashed(error)
            self.doorbell.ring()

    @abc.abstractmethod
    def crashed(self, error: BaseException) -> None:
        """One of its tasks has ended by this."""

    def fail(self, partitions: Iterable[TopicPartition], error: HeadraceError) -> None:
        """What stopped the fetching will hardly be mended by trying again: a poll raises it."""
        now = time.monotonic()
        with self.lock:
            for tp in partitions:
                state = self.assignment.get(tp)
                if state is not None:
                    state.refuse(error, now)
        self.doorbell.ring()
