"""All assigned partitions together: who is assigned, what a poll takes from whom, what went wrong where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..errors import HeadraceError, OffsetOutOfRangeError, OffsetResetError, StateError
from ..protocol.codes import denies_topic
from ..types import TopicPartition
from .cluster import Cluster
from .drain import FEW, MANY, fair_shares, greedy_shares
from .pace import RETRIED, STAYS, Pace
from .partition import Chunk, OutOfRange, PartitionState, Phase, Position

_STAYING = ("a partition's fault that stays",)  # the key of their repetitions: one of all of them is raised at a time


class TakenFrom(NamedTuple):
    """Where a partition was before a poll took records of it."""

    state: PartitionState
    origin: int
    position: Position | None

    def finished(self, offset: int) -> TakenFrom:
        """The user is done with all before the offset, if it is one of those that were taken."""
        state, position = self.state, self.position
        if position is None or state.position is None or not position.offset < offset <= state.position.offset:
            return self
        return self._replace(position=Position(offset))

    def is_valid(self, now: PartitionState | None) -> bool:
        """Whether the partition, as it is assigned now, can go back there: nobody has moved its position since."""
        return self.position is not None and now is self.state and now.origin == self.origin


class Assignment:
    """The assigned partitions, and those of them with something buffered in the order of their turns."""

    def __init__(
        self, reset_policy: str, drain_strategy: str, prefetch_bytes: int, *, checks_epochs: bool = True
    ) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}
        self._filled: dict[PartitionState, None] = {}  # this and the next are kept by the states themselves
        self._faulty: dict[PartitionState, None] = {}
        self._prefetch_bytes = prefetch_bytes
        self.has_appetite = False  # a poll has left a partition with too little, and nothing is on its way
        self._reset_policy = reset_policy
        self._checks_epochs = checks_epochs  # whether a new leader is asked if its log still has what was read
        is_fair = drain_strategy == "fair"
        self._shares = fair_shares if is_fair else greedy_shares
        self._few = FEW if is_fair else 1

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._states

    def get(self, tp: TopicPartition) -> PartitionState | None:
        return self._states.get(tp)

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self._states)

    @property
    def topics(self) -> set[str]:
        return {tp.topic for tp in self._states}

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these from now on; those that stay keep their position and their buffer."""
        before = self._states
        self._states = {tp: before.get(tp) or PartitionState(tp, self._filled, self._faulty) for tp in partitions}
        for tp in before.keys() - self._states.keys():
            self._filled.pop(before[tp], None)
            self._faulty.pop(before[tp], None)

    def state(self, tp: TopicPartition) -> PartitionState:
        """Raises StateError if the partition is not assigned."""
        try:
            return self._states[tp]
        except KeyError:
            raise StateError(f"{TopicPartition(*tp)} is not assigned to this consumer") from None

    def in_phase(self, phase: Phase) -> list[PartitionState]:
        return [state for state in self if state.phase is phase]

    # -- positions -------------------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, Position]:
        return {state.tp: state.position for state in self if state.position is not None}

    def no_committed_offset(self, state: PartitionState) -> None:
        """Nothing is committed: the reset policy decides."""
        text = f"{state.tp} has no committed offset and auto.offset.reset is none: seek() or commit() one"
        self._reset(state, OffsetResetError(text, {state.tp}))

    def out_of_range(self, state: PartitionState, offset: int) -> None:
        """The log does not have the offset (any more): the reset policy decides."""
        text = (
            f"offset {offset} of {state.tp} is outside of the log and auto.offset.reset is none: "
            f"seek() to where to go on"
        )
        self._reset(state, OffsetOutOfRangeError(text, {state.tp: offset}))
        if self.may_reset:
            state.reset_from = offset

    def _reset(self, state: PartitionState, error: OffsetResetError) -> None:
        if self.may_reset:
            state.await_reset(self._reset_policy)
        else:
            state.fault = error

    @property
    def may_reset(self) -> bool:
        return self._reset_policy != "none"

    # -- the cluster -----------------------------------------------------------------------------------------

    def follow(self, cluster: Cluster) -> list[TopicPartition]:
        """Takes new metadata in. Returns the partitions whose topic was deleted and made again."""
        remade = []
        for state in self:
            topic_id = cluster.topic_id(state.tp.topic)
            if topic_id is None:
                continue
            if state.topic_id is not None and state.topic_id != topic_id:
                remade.append(state.tp)
                self._start_anew(state)
            state.topic_id = topic_id
            leader = cluster.leader(state.tp)
            if leader is None or leader.epoch == state.leader_epoch:
                continue
            if state.phase is Phase.READY:
                if self._checks_epochs and 0 <= state.fetch_epoch < leader.epoch:
                    state.phase = Phase.VALIDATE
                else:
                    state.leader_epoch = leader.epoch
                # The preferred replica was named by the old leader, and what is still on its way comes from it:
                # never, if its machine is gone. The new one is asked without waiting for that.
                state.preferred = None
                state.in_flight = False
        return remade

    def _start_anew(self, state: PartitionState) -> None:
        """Offsets of the old topic mean nothing in the new one. Whatever it holds is newer than all that was
        read, so it is read from its beginning, unless the user wants to decide."""
        state.leader_epoch = -1
        if self.may_reset:
            state.await_reset("earliest")
            return
        state.await_position()
        state.fault = OffsetResetError(
            f"the topic of {state.tp} was deleted and made again, and auto.offset.reset is none: seek() to where "
            f"to go on",
            {state.tp},
        )

    # -- polls -----------------------------------------------------------------------------------------------

    def take(self, limit: int, taken_from: list[TakenFrom]) -> list[Chunk]:
        """The records of one poll, at most `limit` of them (-1: all that is there). What `undo` needs is added to
        `taken_from` before a partition changes."""
        taken: list[Chunk] = []
        if not self._filled:
            return taken
        for state, share in self._turns(limit):
            if share or not state.available:  # without records it passes markers
                taken_from.append(TakenFrom(state, state.origin, state.position))
                taken += state.take(share)
                if share and not self.has_appetite and not state.in_flight and self.is_hungry(state):
                    self.has_appetite = True
        return taken

    def undo(self, taken_from: Iterable[TakenFrom]) -> None:
        """As if nothing had been taken: it is fetched again. Those that the user has sought since are left alone. It
        does not matter at which line `take` was interrupted."""
        for each in taken_from:
            if each.is_valid(self._states.get(each.state.tp)):
                each.state.position = each.position
                each.state.refetch()
        for state in self:
            if state.chunks:  # one that was on its way behind the others
                self._filled[state] = None

    def _turns(self, limit: int) -> Iterable[tuple[PartitionState, int]]:
        """Who gives how many. Those that the next poll shall not start with go behind the others."""
        if 0 <= min(limit, MANY) < len(self._filled) and (few := self._handfuls(limit)):
            return few
        ready = [state for state in self._filled if not state.silence]
        available = [state.available for state in ready]
        if limit < 0 or sum(available) <= limit:
            return zip(ready, available, strict=True)
        shares, start = self._shares(available, limit)
        self._put_behind(ready[:start])
        return zip(ready, shares, strict=True)

    def _handfuls(self, limit: int) -> list[tuple[PartitionState, int]]:
        """The same without a look at all of them, unless the few that have a turn are all, and could give more."""
        handful = max(1, limit // self._few)
        few = []
        for state in self._filled:
            if not state.silence:
                share = min(handful, state.available, limit)
                few.append((state, share))
                limit -= share
                if not limit:
                    self._put_behind([state for state, _ in few])
                    return few
        return []

    def _put_behind(self, states: Iterable[PartitionState]) -> None:
        for state in states:
            del self._filled[state]
            self._filled[state] = None

    def is_hungry(self, state: PartitionState) -> bool:
        """Whether less is left of the partition than should be kept ahead of the user."""
        return state.retained + state.undecoded < self._prefetch_bytes and state.fetch_offset < state.stop

    @property
    def available(self) -> int:
        """How many records a poll could take."""
        return sum(state.available for state in self._filled if not state.silence)

    def out_of_range_offsets(self) -> dict[TopicPartition, int]:
        """The partitions that cannot be read where they are, with that offset: all before it is handed out."""
        return {
            state.tp: state.fault.offset
            for state in self._faulty
            if isinstance(state.fault, OutOfRange) and state.is_drained
        }

    def resolve_out_of_range(self) -> bool:
        """Applies the reset policy where a fetch was out of range and all before it is handed out.
        True if some partition needs another position now."""
        found = self.out_of_range_offsets()
        for tp, offset in found.items():
            self.out_of_range(self._states[tp], offset)
        return bool(found)

    def due_faults(self) -> Iterator[tuple[PartitionState, HeadraceError]]:
        """Those with nothing buffered before them, of partitions that are handed out at all."""
        for state in self._faulty:
            if isinstance(state.fault, HeadraceError) and state.is_drained and not state.silence:
                yield state, state.fault

    @property
    def is_faulty(self) -> bool:
        return bool(self._faulty)

    @property
    def next_retry(self) -> float | None:
        """When the next refusal is to be asked about again, of partitions without a position."""
        waiting = (state for state in self._faulty if state.is_refused and state.phase is not Phase.READY)
        return min((state.backoff_until for state in waiting), default=None)

    def denied_topics(self) -> set[str]:
        """The topics with a partition that may not be read."""
        return {state.tp.topic for state, error in self.due_faults() if denies_topic(error)}

    def pending_error(
        self, pace: Pace, now: float, *, news: bool = False, is_late: bool = False
    ) -> HeadraceError | None:
        """What a poll without records has to raise: the first fault with nothing buffered before it, if it is time for
        that. With `news`, of those that stay only one that no poll has raised yet; `is_late` when the poll's time is
        up. What denies topics is left out."""
        for state, error in self.due_faults():
            if denies_topic(error):
                continue
            if state.is_refused:
                if pace.admits(error, now, RETRIED):
                    return error
            elif not state.is_told or (not news and pace.is_due(_STAYING, now, is_late=is_late)):
                pace.raised(_STAYING, now, STAYS)
                self._told(state, error)
                return error
        return None

    def _told(self, state: PartitionState, error: HeadraceError) -> None:
        # What stopped a whole fetch is the fault of all partitions in it.
        for same in [same for same, other in self.due_faults() if other is error]:
            same.is_told = True
        # The next to be raised is another one, if there is any.
        del self._faulty[state]
        self._faulty[state] = None
