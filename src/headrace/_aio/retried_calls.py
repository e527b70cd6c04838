"""Calls that ask a broker, and are retried on the consumer's thread until a deadline."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .._arguments import optional_seconds_of
from ..errors import HeadraceError, RequestTimeoutError
from .lifecycle import Lifecycle
from .runtime import ConsumerRuntime

T = TypeVar("T")


class RetriedCalls:
    """`default_timeout` is in seconds and applies to calls whose timeout is None."""

    def __init__(self, lifecycle: Lifecycle[ConsumerRuntime], default_timeout: float) -> None:
        self.default_timeout = default_timeout
        self._lifecycle = lifecycle

    def start(self) -> ConsumerRuntime:
        return self._lifecycle.start()

    async def call(
        self,
        what: str,
        timeout: float | None,
        attempt: Callable[[], Awaitable[T]],
        cause: Callable[[], HeadraceError | None] = lambda: None,
    ) -> T:
        """Retries `attempt`, on the consumer's thread, until the time is up or wakeup() is called. `cause` names the
        last error for a timeout that has none of its own."""
        seconds = optional_seconds_of(timeout)
        if seconds is None:
            seconds = self.default_timeout
        lifecycle = self._lifecycle
        runtime = lifecycle.start()
        deadline = time.monotonic() + seconds

        async def work() -> T:
            async with lifecycle.guard.interruptible():
                try:
                    result: T = await runtime.client.retries.run(what, deadline, attempt)
                except RequestTimeoutError as error:
                    if error.__cause__ is None and (last := cause()) is not None:
                        raise RequestTimeoutError(f"{error}. Last error: {last}") from last
                    raise
                return result

        return await lifecycle.portal.wait(work)
