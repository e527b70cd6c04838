"""Receive buffers that are used again."""

from __future__ import annotations

import contextlib

_ROUND = 512 * 1024


class FramePool:
    """A few large receive buffers that are used again, because fresh memory at a gigabyte per second costs
    more in page faults than the copying into it. `list.append` and `list.pop` are atomic, so `give` may be
    called by the threads that decode."""

    def __init__(self, keep: int = 3) -> None:
        self._spare: list[bytearray] = []
        self._keep = keep  # one that is being filled, one that is being decoded, one that waits for it

    def take(self, size: int) -> bytearray:
        """A buffer of at least that size. Rounded up, so that the next answer, a little larger, still fits."""
        room = -(-size // _ROUND) * _ROUND
        with contextlib.suppress(IndexError):
            frame = self._spare.pop()
            if room <= len(frame) <= 4 * room:
                return frame
        return bytearray(room)

    def give(self, frame: bytearray) -> None:
        if len(self._spare) < self._keep:
            self._spare.append(frame)
