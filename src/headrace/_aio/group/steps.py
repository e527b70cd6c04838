"""Steps of a rebalance that have to be awaited.

The logic of a rebalance is a generator. It runs on the user's thread, listeners included, and yields what has to be
awaited: commits, on the consumer's own thread (`Background`), and what a listener returned, in the user's event loop
(`Foreground`). So both kinds of consumers have one logic, and listeners may use their consumer.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from ..portal import Portal


@dataclasses.dataclass(frozen=True, slots=True)
class Background:
    """A step for the consumer's own thread."""

    work: Callable[[], Coroutine[Any, Any, None]]


@dataclasses.dataclass(frozen=True, slots=True)
class Foreground:
    """What the user's code returned, to be awaited in the user's event loop."""

    result: Awaitable[None]


Step = Background | Foreground
Steps = Generator[Step, None, None]


async def perform(steps: Steps, portal: Portal) -> None:
    """Awaits the steps in the user's event loop."""
    try:
        step = next(steps)
        while True:
            try:
                if isinstance(step, Background):
                    await portal.wait(step.work)
                else:
                    await step.result
            except BaseException as error:  # noqa: BLE001  # the generator handles it
                step = steps.throw(error)
            else:
                step = next(steps)
    except StopIteration:
        pass


def awaited(result: Awaitable[None] | None) -> Steps:
    """A listener returns nothing, or a coroutine."""
    if inspect.isawaitable(result):
        yield Foreground(result)
