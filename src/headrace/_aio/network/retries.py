"""Retries of calls to brokers, with the backoff of retry.backoff.ms and retry.backoff.max.ms, until a deadline.

For commits, offset queries and whatever else a user waits for. Background tasks only use the pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..._chance import chance
from ..._machines.backoff import Backoff
from ...config.client import ClientConfig
from ...errors import HeadraceError, RequestTimeoutError
from .connections import Connections


class Retries:
    def __init__(self, config: ClientConfig, connections: Connections) -> None:
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._connections = connections

    def pause(self, failures: int) -> float:
        """The seconds to wait after so many failures in a row."""
        return self._backoff.seconds(failures, chance.random())

    async def run(self, what: str, deadline: float, attempt: Callable[[], Any]) -> Any:
        """Awaits `attempt()` until it succeeds, fails for good, or the deadline passes.

        Raises RequestTimeoutError with the last error as its cause when time is up.
        """
        failures = 0
        last: HeadraceError | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt()
            except TimeoutError as error:
                if not isinstance(error, HeadraceError):
                    last = last or self._connections.obstacle()
                    reason = f"Last error: {last}" if last else f"Waiting for {self._connections.awaited()}"
                    raise RequestTimeoutError(f"{what}: not done in time. {reason}") from last
                last = error
            except HeadraceError as error:
                last = error
            if not last.retriable:
                raise last
            failures += 1
            pause = self.pause(failures)
            if asyncio.get_running_loop().time() + pause >= deadline:
                raise RequestTimeoutError(f"{what}: not done in time. Last error: {last}") from last
            await asyncio.sleep(pause)
