"""The life of a process with a producer: it ends by itself, or is killed at one of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from headrace._protocol.messages import Api
from headrace.errors import ClosedError

from .client import SimulatedProducer
from .world import World


async def live(world: World, producer: SimulatedProducer, work: Coroutine[Any, Any, None]) -> bool:
    """Returns whether it was killed."""
    died = asyncio.get_running_loop().create_future()
    longest = world.dice.choice((None, None, 5, 30))
    left = 0 if longest is None else world.dice.randint(1, longest)

    def step(client: str, api: Api) -> None:
        nonlocal left
        if client == producer.name and left > 0:
            left -= 1
            if not left:
                world.note(client, "is killed at", api)
                world.kills += 1
                died.set_result(None)
                world.network.kill(client)

    if left:
        world.network.watchers.append(step)
    working = asyncio.create_task(work)
    await asyncio.wait([working, died], return_when=asyncio.FIRST_COMPLETED)
    is_dead = died.done()
    if is_dead or world.dice.random() < 0.5:
        await producer.kill()
    else:
        await producer.close()
    if is_dead:
        working.cancel()
    try:
        await working
    except (asyncio.CancelledError, ClosedError):
        if not is_dead:
            raise
    return is_dead
