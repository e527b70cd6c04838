"""Receive buffers that are used again."""

from __future__ import annotations

import contextlib
import mmap
from typing import TypeAlias

Frame: TypeAlias = "bytearray | mmap.mmap"

_ROUND = 512 * 1024
_HAS_PRIVATE = hasattr(mmap, "MAP_PRIVATE")  # Windows has none without a file


class FramePool:
    """A few large receive buffers that are used again, because fresh memory at a gigabyte per second costs
    more in page faults than the copying into it. All connections of a client share them.

    They are mappings, not memory of the allocator: that one keeps what threads free in pieces of its own, 50 MB and
    more of a consumer. Threads that receive take, those that decode give, and the loop's closes: `list.append`,
    `list.pop` and `list.clear` are atomic."""

    def __init__(self, keep: int = 3) -> None:
        self._spare: list[Frame] = []
        self._keep = keep  # one that is being filled, one that is being decoded, one that waits for it

    def take(self, size: int) -> Frame:
        """A buffer of at least that size. Rounded up, so that the next answer, a little larger, still fits."""
        room = -(-size // _ROUND) * _ROUND
        with contextlib.suppress(IndexError):
            frame = self._spare.pop()
            if room <= len(frame) <= 4 * room:
                return frame
        return mmap.mmap(-1, room, access=mmap.ACCESS_COPY) if _HAS_PRIVATE else bytearray(room)

    def give(self, frame: Frame) -> None:
        if len(self._spare) < self._keep:
            self._spare.append(frame)

    def close(self) -> None:
        """No frame is kept any more, but for one that is given at this moment: it goes with the pool."""
        self._keep = 0
        self._spare.clear()
