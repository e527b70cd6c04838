"""The calls that wait for memory or metadata before they can append records. Guarded by the accumulator's lock."""

from __future__ import annotations

from ..flag import Flag


class BlockedCalls:
    """`since` is when the first of those began to wait that wait for memory. None: there are none."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._on_memory: list[Flag] = []
        self._on_metadata: list[Flag] = []

    def on_memory(self, now: float) -> Flag:
        """What the call waits for."""
        if self.since is None:  # first, because an interrupt may come at any step: see `accumulator.py`
            self.since = now
        flag = Flag()
        self._on_memory.append(flag)
        return flag

    def on_metadata(self) -> Flag:
        flag = Flag()
        self._on_metadata.append(flag)
        return flag

    def take_memory(self) -> list[Flag]:
        """The calls that no longer wait."""
        taken, self._on_memory, self.since = self._on_memory, [], None
        return taken

    def take_metadata(self) -> list[Flag]:
        taken, self._on_metadata = self._on_metadata, []
        return taken
