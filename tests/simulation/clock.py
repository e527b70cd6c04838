"""Virtual time: scheduled events in order. Nothing waits; each event sets the time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any


class Timer:
    """A scheduled call that can be cancelled."""

    __slots__ = ("args", "do")

    def __init__(self, do: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.do: Callable[..., None] | None = do
        self.args = args

    def cancel(self) -> None:
        self.do = None


class VirtualClock:
    """Runs events in the order of their time, then of their scheduling."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def at(self, time: float, do: Callable[..., None], *args: Any) -> Timer:
        timer = Timer(do, args)
        heapq.heappush(self._queue, (max(time, self.now), next(self._numbers), timer))
        return timer

    def after(self, delay: float, do: Callable[..., None], *args: Any) -> Timer:
        return self.at(self.now + delay, do, *args)

    def run_until(self, end: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end:
            time, _, timer = heapq.heappop(queue)
            if timer.do is not None:
                self.now = time
                self.events += 1
                timer.do(*timer.args)
        self.now = end


class Alarm:
    """A deadline that is often postponed. It needs an event only when it may have passed."""

    __slots__ = ("_clock", "_do", "_due", "_waits_until")

    def __init__(self, clock: VirtualClock, do: Callable[[], None]) -> None:
        self._clock = clock
        self._do = do
        self._due = math.inf
        self._waits_until = math.inf

    @property
    def is_set(self) -> bool:
        return self._due != math.inf

    def set(self, delay: float) -> None:
        self._due = self._clock.now + delay
        if self._due < self._waits_until:
            self._wait()

    def clear(self) -> None:
        self._due = math.inf

    def _wait(self) -> None:
        self._waits_until = self._due
        self._clock.at(self._due, self._look, self._due)

    def _look(self, waited_until: float) -> None:
        if waited_until != self._waits_until:
            return  # an earlier deadline was set meanwhile
        self._waits_until = math.inf
        if self._due <= self._clock.now:
            self._due = math.inf
            self._do()
        elif self._due != math.inf:
            self._wait()
