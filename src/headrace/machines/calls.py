"""Calls of the user's function, and which of them are over their time.

    under way  -> ended        its result counts
    under way  -> abandoned    it is over its time and cannot be stopped: its result will count for nothing
    abandoned  -> abandoned    once more, for every further `timeout` seconds
    abandoned  -> ended        late

Two times end a call: `timeout`, which the user chooses, and `limit` (max.poll.interval.ms), which every call has. The
second one is reported once and is final.

Nothing here locks, waits or reads a clock.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Generic, Protocol, TypeVar

J = TypeVar("J")


class Worker(Protocol):
    """What a call runs on: a thread or a task."""

    def stack(self) -> str:
        """Where it is, or nothing if it has just ended."""

    def abandon(self) -> None:
        """Nobody waits for it any more: it is cancelled if it can be."""


class Call(Generic[J]):
    """One call for a job. `Calls` changes it."""

    __slots__ = ("began", "due", "is_abandoned", "job", "last", "worker")

    def __init__(self, job: J, worker: Worker, began: float, due: float, last: float) -> None:
        self.job = job
        self.worker = worker
        self.began = began
        self.due = due  # the next `timeout` that it overruns ...
        self.last = last  # ... and the limit, until it is reported
        self.is_abandoned = False

    def forget_timeout(self) -> None:
        """Its job does not depend on it any more."""
        self.due = math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class Overrun(Generic[J]):
    """A call that is over its time."""

    call: Call[J]
    seconds: float  # since it began
    is_news: bool  # it was under way until now
    is_final: bool  # over the limit


class Calls(Generic[J]):
    """All calls of one run()."""

    def __init__(self, timeout: float | None, limit: float) -> None:
        self.timeout = timeout
        self.limit = limit
        self._open: set[Call[J]] = set()
        self._abandoned = 0
        self.next_look = math.inf
        """Before that, `look` finds nothing."""

    @property
    def abandoned(self) -> int:
        """How many calls were abandoned and still run."""
        return self._abandoned

    def begin(
        self, job: J, worker: Worker, now: float, *, since: float, patience: float = 0.0, is_timed: bool = True
    ) -> Call[J]:
        """`since` is when the limit's time began; with `patience` a call has so long to end after its timeout."""
        due = now + self.timeout + patience if self.timeout is not None and is_timed else math.inf
        call = Call(job, worker, now, due, since + self.limit)
        self._open.add(call)
        self.next_look = min(self.next_look, call.due, call.last)
        return call

    def end(self, call: Call[J]) -> bool:
        """Whether its result counts."""
        self._open.discard(call)
        self._abandoned -= call.is_abandoned
        return not call.is_abandoned

    def look(self, now: float) -> list[Overrun[J]]:
        """The calls that are over their time, which are abandoned by that."""
        if now < self.next_look:
            return []
        found = []
        for call in self._open:
            is_final = now >= call.last
            if not is_final and now < call.due:
                continue
            if is_final:
                call.due = call.last = math.inf
            else:
                assert self.timeout is not None
                call.due = now + self.timeout
            found.append(Overrun(call, now - call.began, not call.is_abandoned, is_final))
            self._abandoned += not call.is_abandoned
            call.is_abandoned = True
        self.next_look = min((min(call.due, call.last) for call in self._open), default=math.inf)
        return sorted(found, key=lambda each: each.call.began)
