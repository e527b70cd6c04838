"""Calls of the user's handler, and which of them are overdue.

    running    -> ended        its result counts
    running    -> running      most of `limit` has passed (NEARLY): it is reported once, as a warning
    running    -> abandoned    it is overdue and cannot be stopped: its result will be ignored
    abandoned  -> abandoned    once more, for every further `timeout` seconds
    abandoned  -> ended        late

A call has two deadlines: `timeout`, which the user chooses, and `limit` (max.poll.interval.ms), which every call has.
The second one is reported once and is final.

Nothing here locks, waits or reads a clock.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Generic, Protocol, TypeVar

J = TypeVar("J")

NEARLY = 0.75  # the part of the limit after which a call is reported as slow


class Worker(Protocol):
    """What a call runs on: a thread or a task."""

    def stack(self) -> str:
        """Its current stack, or an empty string if it has just ended."""

    def abandon(self) -> None:
        """Nobody waits for it any more. Cancels it if that is possible."""


class HandlerCall(Generic[J]):
    """One call for a job. `HandlerCalls` changes it."""

    __slots__ = ("began", "due", "is_abandoned", "is_slow", "job", "last", "slow_at", "worker")

    def __init__(self, job: J, worker: Worker, began: float, due: float, last: float, slow_at: float) -> None:
        self.job = job
        self.worker = worker
        self.began = began
        self.due = due  # the next `timeout` that it overruns ...
        self.last = last  # ... and the limit, until it is reported
        self.slow_at = slow_at  # until it is reported
        self.is_slow = False  # and was reported as such
        self.is_abandoned = False

    def forget_timeout(self) -> None:
        """Its job no longer depends on it."""
        self.due = math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class Overrun(Generic[J]):
    """A call that is overdue."""

    call: HandlerCall[J]
    seconds: float  # since it began
    is_news: bool  # it was not abandoned before
    is_final: bool  # it has exceeded the limit


class HandlerCalls(Generic[J]):
    """All calls of one run()."""

    def __init__(self, timeout: float | None, limit: float) -> None:
        self.timeout = timeout
        self.limit = limit
        self._open: set[HandlerCall[J]] = set()
        self._abandoned = 0
        self.next_check = math.inf
        """Before that, `look` and `slow` find nothing."""

    @property
    def abandoned(self) -> int:
        """How many abandoned calls are still running."""
        return self._abandoned

    def begin(
        self, job: J, worker: Worker, now: float, *, since: float, grace: float = 0.0, is_timed: bool = True
    ) -> HandlerCall[J]:
        """The limit counts from `since`. A call that can be cancelled has `grace` seconds to end after its timeout."""
        due = now + self.timeout + grace if self.timeout is not None and is_timed else math.inf
        call = HandlerCall(job, worker, now, due, since + self.limit, since + NEARLY * self.limit)
        self._open.add(call)
        self.next_check = min(self.next_check, call.due, call.slow_at)
        return call

    def end(self, call: HandlerCall[J]) -> bool:
        """Whether its result counts."""
        self._open.discard(call)
        self._abandoned -= call.is_abandoned
        return not call.is_abandoned

    def under_way(self) -> list[J]:
        """The jobs of the calls whose results will count."""
        return [call.job for call in self._open if not call.is_abandoned]

    def slow(self, now: float) -> list[HandlerCall[J]]:
        """The calls that are near the limit and not overdue, each once. To be asked after `look`."""
        if now < self.next_check:
            return []
        found = []
        for call in self._open:
            if now >= call.slow_at:
                call.slow_at, call.is_slow = math.inf, True
                found.append(call)
        self.next_check = self._next_check()
        return sorted(found, key=lambda call: call.began)

    def _next_check(self) -> float:
        return min((min(call.due, call.last, call.slow_at) for call in self._open), default=math.inf)

    def look(self, now: float) -> list[Overrun[J]]:
        """The calls that are overdue now. They are abandoned by this."""
        if now < self.next_check:
            return []
        found = []
        for call in self._open:
            is_final = now >= call.last
            if not is_final and now < call.due:
                continue
            call.slow_at = math.inf
            if is_final:
                call.due = call.last = math.inf
            else:
                assert self.timeout is not None
                call.due = now + self.timeout
            found.append(Overrun(call, now - call.began, not call.is_abandoned, is_final))
            self._abandoned += not call.is_abandoned
            call.is_abandoned = True
        self.next_check = self._next_check()
        return sorted(found, key=lambda each: each.call.began)
