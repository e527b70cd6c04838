"""Splits the bytes that the event loop receives into frames."""

from __future__ import annotations

import struct
from collections.abc import Callable

from .frame_pool import Frame, FramePool

_LENGTH = struct.Struct(">i")
STAGING = 64 * 1024
"""Smaller frames are copied out of the staging buffer; larger ones are received into a frame of the pool."""


class FrameSplitter:
    """Received bytes go into a staging buffer. If a frame does not fit there, the rest of it is received directly into
    `frame`, which ends exactly where the frame ends, so no bytes of the next frame get into it.

    `check` raises for a size that is not allowed, before anything is allocated for it. `deliver` gets each frame, and
    the buffer of the pool that contains it, if any."""

    def __init__(
        self, pool: FramePool, check: Callable[[int], None], deliver: Callable[[memoryview, Frame | None], None]
    ) -> None:
        self._pool = pool
        self._check = check
        self._deliver = deliver
        self._staging = bytearray(STAGING)
        self._staged = 0
        self.frame: Frame | None = None
        self._size = 0
        self._filled = 0

    @property
    def is_empty(self) -> bool:
        return not self._staged and self.frame is None

    def put(self, received: bytes) -> None:
        """Bytes that somebody else has received. It must be empty; they are looked at with the next ones."""
        self._staged = len(received)
        self._staging[: self._staged] = received

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self.frame is not None:
            return memoryview(self.frame)[self._filled : self._size]
        return memoryview(self._staging)[self._staged :]

    def received(self, count: int) -> None:
        """So many bytes are in the buffer."""
        if self.frame is None:
            self._staged += count
            self._split()
            return
        self._filled += count
        if self._filled == self._size:
            frame, self.frame = self.frame, None
            self._deliver(memoryview(frame)[: self._size], frame)

    def _split(self) -> None:
        """Delivers every complete frame, and moves the start of a frame that does not fit to `frame`."""
        staged = memoryview(self._staging)[: self._staged]
        at = 0
        while len(staged) - at >= 4:
            size = _LENGTH.unpack_from(staged, at)[0]
            self._check(size)
            have = len(staged) - at - 4
            if have >= size:
                self._deliver(memoryview(bytes(staged[at + 4 : at + 4 + size])), None)
                at += 4 + size
                continue
            if size + 4 > STAGING:
                self.frame = self._pool.take(size)
                self.frame[:have] = staged[at + 4 :]
                self._size, self._filled = size, have
                at = len(staged)
            break
        rest = bytes(staged[at:])
        staged.release()
        self._staging[: len(rest)] = rest
        self._staged = len(rest)

    def drop(self) -> None:
        """Drops the frame that is being filled. It may take half a gigabyte."""
        self.frame = None
