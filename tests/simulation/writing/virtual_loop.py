"""An event loop in virtual time: when nothing can run, the time jumps to the next timer. Nothing waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

from headrace._aio.produce import accumulator, topic_batches
from headrace._chance import chance

T = TypeVar("T")


class StuckError(AssertionError):
    """Everything waits for something that nobody will do."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Has no sockets. `events` counts the rounds of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.events = 0
        self.crashes: list[str] = []
        self._now = 1000.0
        self._selector = self
        self.set_exception_handler(self._crashed)

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        self.events += 1
        if timeout is None:
            raise StuckError("nothing can run, and there is no timer")
        self._now += timeout
        return []

    def _process_events(self, events: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.crashes.append(f"{context['message']}: {context.get('exception')!r}")

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.run_until_complete(main)


@contextlib.contextmanager
def virtual_time(seed: int) -> Iterator[VirtualLoop]:
    """A loop for one simulation. Clients read its time, and draw the same numbers for the same seed."""
    loop = VirtualLoop()
    clock = SimpleNamespace(monotonic=loop.time)
    before = chance.getstate()
    names = [logging.getLogger(name) for name in ("headrace", "asyncio")]
    levels = [each.level for each in names]
    patched = [(module, module.time) for module in (accumulator, topic_batches)]  # type: ignore[attr-defined]
    try:
        chance.seed(seed)
        for module, _ in patched:
            module.time = clock  # type: ignore[attr-defined]
        for logger in names:
            logger.setLevel(logging.CRITICAL + 1)
        yield loop
    finally:
        _cancel_all(loop)
        loop.close()
        chance.setstate(before)
        for module, time in patched:
            module.time = time  # type: ignore[attr-defined]
        for logger, level in zip(names, levels, strict=True):
            logger.setLevel(level)


def _cancel_all(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run(asyncio.wait(tasks)) if tasks else None


def call_later(delay: float, do: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay, do, *args)


def dice_of(seed: int, kind: str) -> random.Random:
    return random.Random(f"{kind} {seed}")
