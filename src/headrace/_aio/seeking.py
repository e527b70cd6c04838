"""Positions of the assigned partitions: `position`, `seek` and `pause`."""

from __future__ import annotations

from collections.abc import Callable

from .._arguments import SomePartitions, offset_of, optional_seconds_of, partition_of, partitions_in
from .._machines.fetch.partition import PartitionState, Position
from ..errors import HeadraceError
from ..types import OffsetAndMetadata, TopicPartition
from .call_guard import CallGuard
from .commit.tracker import CompletionTracker
from .fetch.buffer import FetchBuffer
from .retried_calls import RetriedCalls


class Seeking:
    """Only `position` waits. `AsyncConsumer` documents the calls."""

    def __init__(
        self, guard: CallGuard, calls: RetriedCalls, buffer: FetchBuffer, completions: CompletionTracker | None
    ) -> None:
        self._guard = guard
        self._calls = calls
        self._buffer = buffer
        self._completions = completions

    async def position(self, partition: TopicPartition | tuple[str, int], timeout: float | None) -> int:
        timeout = optional_seconds_of(timeout)
        known = self.known_position(partition)
        if known is not None:
            return known
        tp = partition_of(partition)
        updater = self._calls.start().positions

        async def wait_for_position() -> int:
            while True:
                if (offset := self._find_position(tp)) is not None:
                    return offset
                await updater.next_round()

        return await self._calls.call(f"position of {tp}", timeout, wait_for_position, lambda: updater.failure)

    def known_position(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """None if the caller has to wait for it. Needs no event loop."""
        self._guard.check()
        return self._find_position(partition_of(partition))

    def _find_position(self, tp: TopicPartition) -> int | None:
        with self._buffer.lock:
            state = self._buffer.assignment.state(tp)
            if state.position is not None:
                return state.position.offset
            if isinstance(state.fault, HeadraceError):
                raise state.fault.with_traceback(None)  # without the traceback of the last time
        if (refusal := self._buffer.refusal) is not None:
            raise refusal.with_traceback(None)
        return None

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        self._guard.check()
        target = offset_of(offset)
        epoch = -1 if target.leader_epoch is None else target.leader_epoch
        self._move([partition], lambda state: state.seek(Position(target.offset, epoch)))

    def seek_to(self, reset: str, partitions: SomePartitions | None) -> None:
        """To the log's "earliest" or "latest" offset."""
        self._guard.check()
        self._move(partitions, lambda state: state.await_reset(reset))

    def _move(self, partitions: SomePartitions | None, change: Callable[[PartitionState], None]) -> None:
        chosen = self._buffer.partitions() if partitions is None else set(partitions_in(partitions))
        self._buffer.move(chosen, change)
        if self._completions is not None:
            self._completions.forget(chosen)

    def set_paused(self, partitions: SomePartitions, is_paused: bool) -> None:
        self._guard.check()
        self._buffer.change(partitions_in(partitions), lambda state: setattr(state, "paused", is_paused))

    def paused(self) -> set[TopicPartition]:
        self._guard.check()
        with self._buffer.lock:
            return {state.tp for state in self._buffer.assignment if state.paused}
