"""Writes the tokens of KIP-333: what the live lane of a partition skips, before any of its records is handed out.

A partition that is given up gets a last, plain commit. No token may come after that: it would stay, and clients that do
not know it would skip its ranges. Nor may the last commit come before a token that is on its way. So `stop` forbids new
tokens for these partitions, and waits for those that are being written: then their lanes are known, and the last commit
takes them back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from ..._machines.lanes.lanes import Lanes
from ...types import TopicPartition
from ..commit.offset_requests import OffsetRequests
from ..fetch.buffer import FetchBuffer


class LaneTokens:
    """Belongs to the loop's thread."""

    def __init__(self, first: OffsetRequests, buffer: FetchBuffer) -> None:
        self._first = first
        self._buffer = buffer
        self._stopped: dict[TopicPartition, int] = {}  # partitions given up while under these position versions
        self._under_way: set[TopicPartition] = set()  # their tokens are being written ...
        self._arrived = asyncio.Event()  # ... and some of those are written, or have failed

    def may_begin(self, tp: TopicPartition, position_version: int) -> bool:
        return self._stopped.get(tp) != position_version

    async def begin(self, lanes: Mapping[TopicPartition, Lanes]) -> None:
        """Writes the tokens to the first log. Raises CommitFailedError."""
        begun = lanes.keys()
        self._under_way |= begun
        try:
            await self._first.commit({tp: it.first.commit for tp, it in lanes.items()})
        finally:
            self._under_way -= begun
            self._arrived.set()

    async def stop(self, partitions: Collection[TopicPartition] | None) -> None:
        """These (None: all) are about to be given up."""
        with self._buffer.lock:
            leaving = {
                state.tp: state.position_version
                for state in self._buffer.assignment
                if partitions is None or state.tp in partitions
            }
        self._stopped = leaving if partitions is None else {**self._stopped, **leaving}
        while not self._under_way.isdisjoint(leaving):
            self._arrived.clear()
            await self._arrived.wait()
