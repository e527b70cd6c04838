"""What a share consumer stands on: its settings, what its threads share, and its life from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from ..acknowledge import AcknowledgeType
from ..arguments import limit_of, shown, whole_number_of
from ..errors import ConcurrentUseError, HeadraceError, RequestTimeoutError, StateError
from ..machines.share_holding import Outcome
from ..records import Records
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
        self._iterated = Records.EMPTY  # what an iteration goes over ...
        self._seen = 0  # ... and how many of it were handed out

    # -- polls ---------------------------------------------------------------------------------------------------

    def _begin_poll(self, max_records: int | None) -> int:
        """What a poll does before it looks for records. Returns its limit."""
        self._gate.check()
        if self._polling:
            raise ConcurrentUseError("another task is inside of poll()")
        limit = self._config.max_poll_records if max_records is None else limit_of(max_records, has_none=False)
        if not self._intake.member.topics:
            raise StateError("nothing is subscribed: call subscribe() before poll()")
        self._end_iteration()
        self._run_callbacks()
        self._intake.poll_begins()
        self._polling = True
        return limit

    def _end_poll(self) -> None:
        self._polling = False
        self._intake.poll_ends()

    def _end_iteration(self) -> None:
        """What an iteration has not handed out comes again."""
        if self._seen < len(self._iterated):
            self._intake.put_back(self._iterated[self._seen :])
        self._iterated, self._seen = Records.EMPTY, 0

    # -- acknowledgements ------------------------------------------------------------------------------------------

    def _run_callbacks(self) -> list[Outcome]:
        """On the thread of the user."""
        outcomes = self._intake.outcomes()
        for outcome in outcomes:
            if outcome.error is not None:
                number = sum(map(len, outcome.ranges))
                log.warning("%d records of %s were not acknowledged: %s", number, outcome.tp, outcome.error)
        if self._callback is not None:
            for outcome in outcomes:
                self._callback({outcome.tp: list(outcome.ranges)}, outcome.error)
        return outcomes

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

    async def _close(self, timeout: float) -> None:
        """On the consumer's thread."""
        if not self._gate.is_closed and not self._gate.is_forked:
            self._gate.close()
            try:
                await self._rest(timeout)
            finally:
                self._intake.doorbell.ring()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(CLOSE_TIMEOUT)

    async def _end(self, timeout: float) -> None:
        """close(), for an event loop."""
        if not self._gate.is_forked:
            try:
                if self._portal.is_open:
                    await self._portal.wait(self._close(timeout))
            finally:
                self._shut()
                await self._portal.close_async(THREAD_END)
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
