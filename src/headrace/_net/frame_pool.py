"""A pool of receive buffers."""

from __future__ import annotations

import contextlib
import mmap
from typing import TypeAlias

Frame: TypeAlias = "bytearray | mmap.mmap"

_ROUND = 512 * 1024
_HAS_PRIVATE = hasattr(mmap, "MAP_PRIVATE")  # Windows has none without a file


class FramePool:
    """A few large receive buffers that are reused: at a gigabyte per second, page faults of fresh memory cost more than
    copying into it. All connections of a client share the pool.

    The buffers are memory mappings, because the allocator would keep freed buffers in its per-thread arenas: 50 MB and
    more for a consumer. Receiving threads call `take`, decoding threads call `give`, and the event loop's thread calls
    `close`. No lock is needed, because `list.append`, `list.pop` and `list.clear` are atomic."""

    def __init__(self, keep: int = 3) -> None:
        self._spare: list[Frame] = []
        self._keep = keep  # one being filled, one being decoded, one waiting to be decoded

    def take(self, size: int) -> Frame:
        """A buffer of at least that size. The size is rounded up, so that a slightly larger response fits next time."""
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
        """Drop all buffers. One that another thread gives back at this moment may be kept; it is freed with the
        pool."""
        self._keep = 0
        self._spare.clear()
