"""What a share consumer stands on: its settings, what its threads share, and its life from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from ..acknowledge import AcknowledgeType
from ..arguments import limit_of, shown, whole_number_of
from ..errors import ConcurrentUseError, HeadraceError, RequestTimeoutError, StateError
from ..machines.share_holding import Outcome
from ..machines.share_stock import Handover
from ..records import Record, Records
from ..share_config import ShareConsumerConfig
from ..types import TopicPartition
from .living import CLOSE_TIMEOUT, THREAD_END, Living
from .share_engine import ShareEngine
from .share_intake import ShareIntake

log = logging.getLogger(__name__)

AcknowledgementCallback = Callable[[dict[TopicPartition, list[range]], HeadraceError | None], Any]
Results = dict[TopicPartition, HeadraceError | None]


class ShareLife(Living[ShareEngine]):
    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._config = ShareConsumerConfig.parse(config, **settings)
        self._intake = ShareIntake(self._config)
        super().__init__(self._intake.doorbell)
        self._callback: AcknowledgementCallback | None = None
        self._handover: Handover | None = None  # of the poll that is under way, or was the last
        self._iterated = Records.EMPTY  # what an iteration goes over ...
        self._seen = 0  # ... how many of it were handed out ...
        self._unseen: Handover | None = None  # ... and those that were not, on their way back
        self._torn_since: float | None = None  # when a run() began that did not end in order

    # -- polls ---------------------------------------------------------------------------------------------------

    def _begin_poll(self, max_records: int | None, handover: Handover) -> int:
        """What a poll does before it looks for records. Returns its limit."""
        self._gate.check()
        limit = self._config.max_poll_records if max_records is None else limit_of(max_records, has_none=False)
        if not self._intake.member.topics:
            raise StateError("nothing is subscribed: call subscribe() before poll()")
        if self._handover is not None and self._handover.is_open:
            raise ConcurrentUseError("another task is inside of poll()")
        self._settle()
        self._handover = handover
        self._run_callbacks()
        self._intake.poll_begins()
        return limit

    def _break_off(self, handover: Handover) -> None:
        """A poll raises: what it took, if anything, was not seen by anybody."""
        if handover is self._handover:
            self._intake.put_back(handover)
            self._intake.poll_ends()
            handover.is_broken = False

    def _settle(self) -> None:
        """What nobody has seen comes first in the next poll, and is not accepted by it: what a poll had taken that was
        interrupted, and what an iteration has not handed out. What run() left behind is released."""
        last = self._handover
        if last is not None and last.is_open and last.lots:
            raise ConcurrentUseError("another thread is returning from poll()")
        if last is not None and last.is_broken:
            self._break_off(last)
        if self._seen < len(self._iterated):
            rest = self._iterated[self._seen :]
            unseen, seen_in_all = self._intake.handed_over(rest), self._intake.records_returned - len(rest)
            self._unseen, self._iterated, self._seen = unseen, Records.EMPTY, 0
            self._intake.records_returned = seen_in_all
        if self._torn_since is not None:
            self._intake.release_since(self._torn_since)
            self._torn_since = None
        if self._unseen is not None:
            self._intake.put_back(self._unseen)
        self._unseen, self._iterated, self._seen = None, Records.EMPTY, 0

    def _one_by_one(self) -> Iterator[Record]:
        """The records of an iteration's poll, until a call puts the rest back: then the next poll returns those."""
        records = self._iterated
        for seen, record in enumerate(records, 1):
            if self._iterated is not records:
                return
            self._seen = seen
            yield record

    # -- acknowledgements ------------------------------------------------------------------------------------------

    def _run_callbacks(self) -> list[Outcome]:
        """On the thread of the user. What is not told yet when a callback raises is told by the next call."""
        intake = self._intake
        told = []
        while (outcome := intake.next_outcome()) is not None:
            told.append(outcome)
            number = sum(map(len, outcome.ranges))
            accepted, refused = (number, 0) if outcome.error is None else (0, number)
            if refused:
                log.warning("%d records of %s were not acknowledged: %s", number, outcome.tp, outcome.error)
            offsets = {outcome.tp: list(outcome.ranges)}
            # From here to the call nothing can interrupt it: each is told once.
            intake.acknowledged += accepted
            intake.refused += refused
            intake.news = intake.news[1:]
            if self._callback is not None:
                self._callback(offsets, outcome.error)
        return told

    def _results(self, unsettled: set[TopicPartition]) -> Results:
        found: Results = {}
        for outcome in self._run_callbacks():
            found[outcome.tp] = found.get(outcome.tp) or outcome.error
        for tp in unsettled:
            found[tp] = RequestTimeoutError(f"acknowledging {tp}: no answer in time; it goes on in the background")
        return found

    async def _commit(self, timeout: float | None) -> set[TopicPartition]:
        """Waits until all is sent and answered. Returns the partitions where it is not, when time is up."""
        engine = self._engine
        if engine is None:
            return set()
        seconds = self._config.default_api_timeout_ms / 1000 if timeout is None else timeout
        goals = self._intake.hurry()
        async with self._gate.interruptible():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while goals:
                        engine.streams.progress.clear()
                        with self._intake.lock:
                            is_over = self._intake.planner.is_over(goals)
                            again = is_over and self._intake.planner.has_retries
                        if not is_over:
                            await engine.streams.progress.wait()
                        else:
                            goals = self._intake.hurry() if again else {}
        with self._intake.lock:
            return self._intake.planner.unsettled() if goals else set()

    # -- start and end -----------------------------------------------------------------------------------------------

    def _start(self) -> ShareEngine:
        """The tasks are made by the first call that needs one of them."""
        return self._portal.call(self._make_engine) if self._engine is None else self._engine

    def _make_engine(self) -> ShareEngine:
        """On the consumer's thread."""
        return self._started(ShareEngine(self._config, self._intake)) if self._engine is None else self._engine

    async def _rest(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leaves nothing running, until something is subscribed again. On the consumer's thread."""
        engine = self._ended()
        if engine is not None:
            await engine.close(timeout)

    def _forget(self) -> None:
        with self._intake.lock:
            self._intake.member.leave()
            self._intake.member.failure = self._intake.member.complaint = None
            self._intake.planner.subscribe(frozenset(), time.monotonic())

    async def _end_tasks(self, deadline: float) -> None:
        try:
            await self._rest(max(0.0, deadline - time.monotonic()))
        finally:
            self._intake.doorbell.ring()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(CLOSE_TIMEOUT)

    async def _end(self, timeout: float) -> None:
        """close(), for an event loop."""
        if self._gate.is_forked:
            self._shut()
            return
        deadline = time.monotonic() + timeout
        try:
            if self._portal.is_open:
                await self._portal.wait(lambda: self._close(deadline))
        finally:
            await self._portal.close_async(THREAD_END, self._shut())
        self._run_callbacks()

    # -- questions -----------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and what is held."""
        self._gate.check()
        streams = None if self._engine is None else self._engine.streams
        return self._intake.metrics() | {
            "fetches": streams.fetches if streams else 0,
            "acknowledgements": streams.acknowledgements if streams else 0,
            "bytes_fetched": streams.bytes_fetched if streams else 0,
            "connections": self._engine.client.connection_count if self._engine else 0,
        }

    def acquisition_lock_timeout(self) -> float | None:
        """Seconds that a record is locked for this consumer after it was acquired or renewed. None before the first
        answer of a broker."""
        self._gate.check()
        return self._intake.planner.lock_time


def kind_of(value: AcknowledgeType | str | int) -> AcknowledgeType:
    """A type by itself, its name in any case, or its number. Raises ValueError and TypeError."""
    names = ", ".join(kind.name for kind in AcknowledgeType)
    try:
        if isinstance(value, str):
            return AcknowledgeType[value.upper()]
        return AcknowledgeType(whole_number_of("kind", value))
    except TypeError:
        raise TypeError(f"kind must be an AcknowledgeType ({names}) or the name of one, not {shown(value)}") from None
    except (KeyError, ValueError):
        raise ValueError(f"{shown(value)} is not one of {names}") from None
