"""Waiting for the delivery of records, in threads and in event loops."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable

from ..._arguments import number_of
from ..._record_batch import Delivery, ProducerBatch
from ...errors import HeadraceError, RequestTimeoutError
from ...types import RecordMetadata
from ..call_guard import CallGuard
from ..flag import SHORT_SLEEP, Flag
from ..network.connections import NO_ANSWER

_MOST_UNSEEN = 100
_PATIENCE = 0.005  # seconds, after which the producer's thread waits for the answer to a record sent directly


class DeliveryWaiting:
    """Waits for deliveries. Every batch refers to it. It must not refer to the producer, which would then live as long
    as one of its deliveries.

    `unseen` are the first errors of batches whose deliveries the user has not checked; all errors are logged. The
    producer's thread adds them, and the user's thread removes them; each step is atomic."""

    def __init__(self) -> None:
        self.unseen: dict[int, HeadraceError] = {}
        self.silence: Callable[[], str] = lambda: NO_ANSWER  # why it takes so long; set by the runtime
        self._guard = CallGuard("producer")

    def failed(self, error: HeadraceError) -> None:
        if len(self.unseen) < _MOST_UNSEEN:
            self.unseen[id(error)] = error

    def take_unseen(self) -> list[HeadraceError]:
        """The errors that the user has not seen yet. The caller raises them."""
        errors = list(self.unseen.values())
        self.unseen.clear()
        return errors

    def seen(self, errors: Iterable[HeadraceError]) -> None:
        for error in errors:
            self.unseen.pop(id(error), None)

    def result(self, delivery: Delivery, timeout: float | None) -> RecordMetadata:
        """Blocks the thread until the record is delivered. Without a timeout, it ends after delivery.timeout.ms, when
        the delivery fails."""
        self.wait_for((delivery._batch,), timeout)
        return self._outcome(delivery)

    def wait_for(self, batches: Iterable[ProducerBatch], timeout: float | None) -> None:
        """Blocks the thread until these batches, and the parts of those that are split, are done."""
        deadline = math.inf if timeout is None else time.monotonic() + max(0.0, number_of("timeout", timeout))
        batches = list(batches)
        for batch in batches:
            batch.receive(deadline - time.monotonic())
        for flag in _pending(batches):
            self._guard.check_fork()  # a forked process delivers nothing
            while not flag.wait(max(0.0, min(SHORT_SLEEP, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise RequestTimeoutError(
                        f"not delivered within {timeout} s ({self.silence()}): the producer keeps trying"
                    )

    async def wait(self, delivery: Delivery) -> RecordMetadata:
        """Like `result`, in an event loop."""
        await self.wait_for_async((delivery._batch,))
        return self._outcome(delivery)

    async def wait_for_async(self, batches: Iterable[ProducerBatch]) -> None:
        batches = list(batches)
        for batch in batches:
            if batch.answer() is not None:
                self._guard.check_fork()  # only the parent reads the answer
                await _receive(batch)
        for flag in _pending(batches):
            self._guard.check_fork()
            await flag.wait_async()

    def _outcome(self, delivery: Delivery) -> RecordMetadata:
        error = delivery.error
        if error is not None:
            self.seen((error,))
            raise error.with_traceback(None)  # without the frames of earlier raises
        return RecordMetadata(delivery.topic, delivery.partition, delivery.offset, delivery.timestamp)


async def _receive(batch: ProducerBatch) -> None:
    """Waits for the answer to a batch that was sent directly, for some milliseconds at most."""
    loop = asyncio.get_running_loop()
    while (answer := batch.answer()) is not None:
        arrived = loop.create_future()
        try:
            loop.add_reader(answer.fileno(), _set, arrived)
        except NotImplementedError:  # this loop cannot wait for sockets: the producer's does
            return
        timer = loop.call_later(_PATIENCE, _set, arrived)
        try:
            await arrived
        finally:
            timer.cancel()
            loop.remove_reader(answer.fileno())
        batch.receive(0.0)


def _set(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)


def _pending(batches: Iterable[ProducerBatch]) -> Iterable[Flag]:
    """A flag for every batch that is not done. A batch that was split is replaced by its parts."""
    remaining = list(batches)[::-1]
    while remaining:
        batch = remaining[-1]
        if batch.is_done:
            remaining.pop()
            continue
        if batch.parts:
            remaining.pop()
            remaining.extend(reversed(batch.parts))
            continue
        flag = Flag()
        batch.add_waiter(flag)
        if not batch.is_done and not batch.parts:  # the producer's thread may have ended it before the flag was added
            yield flag
