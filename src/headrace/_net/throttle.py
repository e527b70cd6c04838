"""Pauses that a broker asks for when a client is over its quota.

The broker does not read from the connection meanwhile: requests would only age in its buffers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

log = logging.getLogger(__name__)

# Seconds. A broker can throttle a client for weeks. A request that is sent after this pause waits at the broker until
# its own timeout.
_LONGEST_PAUSE = 30.0
_NOTABLE_PAUSE = 1.0  # shorter pauses are normal under a quota, many times a minute


class Throttle:
    """Of one connection. Belongs to its event loop."""

    def __init__(self, host: str, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._until = 0.0

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._until - self._loop.time())

    def note(self, body: Any) -> None:
        """The body of a response."""
        asked = getattr(body, "throttle_time", None)
        if asked:
            pause, now = min(asked.total_seconds(), _LONGEST_PAUSE), self._loop.time()
            is_news = pause >= _NOTABLE_PAUSE > self._until - now
            self._until = max(self._until, now + pause)
            level = logging.INFO if is_news else logging.DEBUG
            log.log(
                level, "%s throttles this client for %s: sending nothing to it for %.1f s", self._host, asked, pause
            )
