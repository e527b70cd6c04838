"""Compressed responses: gzip, for browsers that accept it. Responses contain no secrets, whose length could leak.

A stream has a compressor of its own, which keeps what was sent: a patch repeats the names of fields and groups, so it
becomes much smaller than alone. Each event ends with a flush, so that the browser has all of it.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping

_LEAST = 512  # bytes: less is not worth it
_LEVEL = 4
_WINDOW = 31  # 32 KiB, with gzip's header
_MEMORY = 7  # 64 KiB for each stream, besides the window


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """Whether a request accepts it. The names of headers are in lower case."""
    for each in headers.get("accept-encoding", "").lower().split(","):
        name, _, parameters = each.partition(";")
        if name.strip() in ("gzip", "*"):
            return parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def compressed(body: bytes, level: int = _LEVEL) -> bytes | None:
    """None if it would not be smaller."""
    if len(body) < _LEAST:
        return None
    found = gzip.compress(body, level, mtime=0)
    return found if len(found) < len(body) else None


class StreamCompressor:
    def __init__(self) -> None:
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY)

    def add(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._compressor.flush()
