"""Which event streams are open, and which of them makes room for a new one. Nothing here does I/O or reads a clock.

A client that opens streams and never reads them cannot be told from a slow one: its machine takes small events for it.
So a page confirms that it has received its stream, at once and then every few seconds. If there are too many streams,
the one that has been without a confirmation for longest ends, unless all are confirmed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

MOST = 64
CONFIRMED_FOR = 60.0  # seconds; static/live.js confirms every 20


@dataclasses.dataclass(slots=True)
class _OpenStream:
    end: Callable[[], None]
    opened: float
    confirmed: float | None = None

    def silent_since(self) -> float:
        return self.opened if self.confirmed is None else self.confirmed


class OpenStreams:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._open: dict[str, _OpenStream] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, name: str, now: float, end: Callable[[], None]) -> bool:
        """Whether there is room for a stream. `end` is called when it has to make room for another one."""
        if len(self._open) >= self._most:
            silent = [
                (it.confirmed is not None, it.silent_since(), each)
                for each, it in self._open.items()
                if it.confirmed is None or it.confirmed < now - CONFIRMED_FOR
            ]
            if not silent:
                return False
            *_, oldest = min(silent)
            self._open.pop(oldest).end()
        self._open[name] = _OpenStream(end, now)
        return True

    def confirm(self, name: str, now: float) -> bool:
        """False if the stream is not open any more."""
        if (found := self._open.get(name)) is not None:
            found.confirmed = now
        return found is not None

    def close(self, name: str) -> None:
        self._open.pop(name, None)
