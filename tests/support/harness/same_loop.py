"""Replaces a consumer's thread: its tasks run in the test's own event loop, where the test can delay them."""

from __future__ import annotations

import asyncio

from headrace import AsyncConsumer
from headrace._aio.portal import Portal


class SameLoop(Portal):
    def __init__(self) -> None:
        super().__init__("test")

    @property
    def is_open(self) -> bool:
        return True

    @property
    def is_current(self) -> bool:
        return True

    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()


def on_this_loop(consumer: AsyncConsumer) -> AsyncConsumer:
    consumer._parts.lifecycle.unwatch()
    consumer._parts.lifecycle.portal = SameLoop()
    return consumer
