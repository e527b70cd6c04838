"""The part of a consumer that moves: positions, pauses."""

from __future__ import annotations

from collections.abc import Callable

from ..arguments import optional_seconds_of, partition_of, place_of
from ..errors import HeadraceError
from ..machines.partition import PartitionState, Position
from ..types import OffsetAndMetadata, TopicPartition
from .life import Life, SomePartitions, partitions_in


class Seeking(Life):
    """Positions are those of the assigned partitions. Nothing but `position` waits."""

    async def position(self, partition: TopicPartition | tuple[str, int], *, timeout: float | None = None) -> int:
        """The offset of the next record that poll() returns of this partition."""
        timeout = optional_seconds_of(timeout)
        known = self._position_at_once(partition)
        if known is not None:
            return known
        tp = partition_of(partition)
        engine = self._start()

        async def settle() -> int:
            while True:
                if (offset := self._known_position(tp)) is not None:
                    return offset
                await engine.positions.next_round()

        return await self._timed(f"position of {tp}", timeout, settle, lambda: engine.positions.failure)

    def _position_at_once(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """None where it has to be waited for. May be called without the event loop."""
        self._gate.check()
        return self._known_position(partition_of(partition))

    def _known_position(self, tp: TopicPartition) -> int | None:
        with self._intake.lock:
            state = self._intake.assignment.state(tp)
            if state.position is not None:
                return state.position.offset
            if isinstance(state.fault, HeadraceError):
                raise state.fault.with_traceback(None)  # of the last time
        if (refusal := self._intake.refusal) is not None:
            raise refusal.with_traceback(None)
        return None

    def seek(
        self,
        partition: TopicPartition | tuple[str, int],
        offset: int | OffsetAndMetadata,
    ) -> None:
        """Reads on at this offset. Given an OffsetAndMetadata with a leader epoch, the log is checked first for
        having been truncated since."""
        self._gate.check()
        target = place_of(offset)
        epoch = -1 if target.leader_epoch is None else target.leader_epoch
        self._move([partition], lambda state: state.seek(Position(target.offset, epoch)))

    def seek_to_beginning(self, partitions: SomePartitions | None = None) -> None:
        """Reads these partitions (all that are assigned) from the log's first record."""
        self._gate.check()
        self._move(partitions, lambda state: state.await_reset("earliest"))

    def seek_to_end(self, partitions: SomePartitions | None = None) -> None:
        """Skips to the end of these partitions (all that are assigned)."""
        self._gate.check()
        self._move(partitions, lambda state: state.await_reset("latest"))

    def pause(self, partitions: SomePartitions) -> None:
        """poll() returns nothing of these partitions until resume(). Their buffered records are kept, unless other
        partitions need the room: then they are fetched again."""
        self._gate.check()
        self._change(partitions, lambda state: setattr(state, "paused", True))

    def resume(self, partitions: SomePartitions) -> None:
        """Ends a pause()."""
        self._gate.check()
        self._change(partitions, lambda state: setattr(state, "paused", False))

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        self._gate.check()
        with self._intake.lock:
            return {state.tp for state in self._intake.assignment if state.paused}

    def _change(self, partitions: SomePartitions, change: Callable[[PartitionState], None]) -> None:
        self._intake.change(partitions_in(partitions), change)

    def _move(
        self,
        partitions: SomePartitions | None,
        change: Callable[[PartitionState], None],
    ) -> None:
        chosen = self._intake.partitions() if partitions is None else set(partitions_in(partitions))
        self._intake.move(chosen, change)
        if self._completions is not None:
            self._completions.forget(chosen)
