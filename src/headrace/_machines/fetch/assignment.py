"""All assigned partitions together: what a poll takes from each, and which of their faults it raises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..._protocol.codes import denies_topic
from ...errors import HeadraceError, OffsetOutOfRangeError, OffsetResetError, StateError
from ...types import TopicPartition
from ..cluster import Cluster
from ..error_pacing import RETRIED, STAYS, ErrorPacing
from .drain import FEW, MANY, fair_quotas, greedy_quotas
from .partition import Chunk, OutOfRange, PartitionState, Phase, Position, quick_tuple

_STAYING = ("a partition's fault that stays",)  # the key of their repetitions: one of all of them is raised at a time


class TakenFrom(NamedTuple):
    """Where a partition was before a poll took records of it."""

    state: PartitionState
    origin: int
    position: Position | None

    def finished(self, offset: int) -> TakenFrom:
        """The user has finished everything before the offset, if that is one of those that were taken."""
        state, position = self.state, self.position
        if position is None or state.position is None or not position.offset < offset <= state.position.offset:
            return self
        return self._replace(position=Position(offset))

    def is_valid(self, now: PartitionState | None) -> bool:
        """Whether the partition, as it is assigned now, can go back there: nobody has moved its position since, and the
        log was not cut off before that place."""
        if self.position is None or now is not self.state or now.origin != self.origin:
            return False
        return now.position is not None and self.position.offset <= now.position.offset


class Assignment:
    """The assigned partitions, and those of them with something buffered in the order of their turns."""

    def __init__(
        self, reset_policy: str, drain_strategy: str, prefetch_bytes: int, *, checks_epochs: bool = True
    ) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}
        self._filled: dict[PartitionState, None] = {}  # the states themselves maintain this and the next one
        self._faulty: dict[PartitionState, None] = {}
        self._decoding: dict[PartitionState, None] = {}  # and some that were decoded since the last look
        self.free: dict[PartitionState, None] = {}  # those that are not in flight: the states maintain this, too
        self.version = 0  # changes with the assigned partitions, and with the cluster
        self._prefetch_bytes = prefetch_bytes
        self.needs_fetch = False  # a poll has left a partition with too little, and nothing is on its way
        self._reset_policy = reset_policy
        self._checks_epochs = checks_epochs  # whether positions are validated when there is a new leader
        is_fair = drain_strategy == "fair"
        self._quotas = fair_quotas if is_fair else greedy_quotas
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
        kinds = (self._filled, self._faulty, self.free, self._decoding)
        self._states = states = {tp: before.get(tp) or PartitionState(tp, *kinds) for tp in partitions}
        self.version += 1
        for kind in kinds:
            for state in [state for state in kind if states.get(state.tp) is not state]:
                del kind[state]
        for state in self:
            if not state.in_flight:
                self.free.setdefault(state)

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
            f"seek() to the offset to resume at"
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
        """Applies new metadata. Returns the partitions whose topic was deleted and recreated."""
        recreated = []
        self.version += 1
        for state in self:
            topic_id = cluster.topic_id(state.tp.topic)
            if topic_id is None:
                continue
            if state.topic_id is not None and state.topic_id != topic_id:
                recreated.append(state.tp)
                self._restart(state)
            state.topic_id = topic_id
            leader = cluster.leader(state.tp)
            if leader is None or leader.epoch == state.leader_epoch:
                continue
            if state.phase is Phase.READY:
                if self._checks_epochs and 0 <= state.fetch_epoch < leader.epoch:
                    state.phase = Phase.VALIDATE
                else:
                    state.leader_epoch = leader.epoch
                # The preferred replica was named by the old leader, and a response that is still on its way comes from
                # that one: never, if its machine is gone. The new leader is asked without waiting for it.
                state.preferred = None
                state.land()
        return recreated

    def _restart(self, state: PartitionState) -> None:
        """Offsets of the old topic have no meaning in the new one. All records of the new one are newer than those that
        were read, so it is read from its beginning, unless the user wants to decide."""
        state.leader_epoch = -1
        if self.may_reset:
            state.await_reset("earliest")
            return
        state.await_position()
        state.fault = OffsetResetError(
            f"the topic of {state.tp} was deleted and recreated, and auto.offset.reset is none: seek() to the "
            f"offset to resume at",
            {state.tp},
        )

    # -- polls -----------------------------------------------------------------------------------------------

    def take(self, limit: int, taken_from: list[TakenFrom]) -> list[Chunk]:
        """The records of one poll, at most `limit` of them (-1: all that is there). What `undo` needs is added to
        `taken_from` before a partition changes."""
        taken: list[Chunk] = []
        if not self._filled:
            return taken
        for state, quota in self._turns(limit):
            if quota or not state.available:  # without records it passes markers
                taken_from.append(quick_tuple(TakenFrom, (state, state.origin, state.position)))
                taken += state.take(quota)
                if not quota or self.needs_fetch or state.retained >= self._prefetch_bytes:  # it is not running low
                    continue
                if not state.in_flight and self.is_running_low(state):
                    self.needs_fetch = True
        return taken

    def undo(self, taken_from: Iterable[TakenFrom]) -> None:
        """As if nothing had been taken: it is fetched again. Partitions that the user has sought since are left as they
        are. It does not matter at which line `take` was interrupted."""
        for each in taken_from:
            if each.is_valid(self._states.get(each.state.tp)):
                each.state.position = each.position
                each.state.refetch()
        for state in self:
            if state.chunks:  # one that was being moved behind the others
                self._filled[state] = None

    def _turns(self, limit: int) -> Iterable[tuple[PartitionState, int]]:
        """The quota of each partition. Those that the next poll must not start with move behind the others."""
        if 0 <= min(limit, MANY) < len(self._filled) and (few := self._handfuls(limit)):
            return few
        ready = [state for state in self._filled if not state.blocked_by]
        available = [state.available for state in ready]
        if limit < 0 or sum(available) <= limit:
            return zip(ready, available, strict=True)
        quotas, start = self._quotas(available, limit)
        self._put_behind(ready[:start])
        return zip(ready, quotas, strict=True)

    def _handfuls(self, limit: int) -> list[tuple[PartitionState, int]]:
        """The same without a look at all of them. Nothing if the few that have a turn do not fill the limit."""
        handful = max(1, limit // self._few)
        few = []
        for state in self._filled:
            if not state.blocked_by:
                quota = min(handful, state.available, limit)
                few.append((state, quota))
                limit -= quota
                if not limit:
                    self._put_behind([state for state, _ in few])
                    return few
        return []

    def _put_behind(self, states: Iterable[PartitionState]) -> None:
        for state in states:
            del self._filled[state]
            self._filled[state] = None

    def is_running_low(self, state: PartitionState) -> bool:
        """Whether less of the partition is buffered than should be kept ahead of the user."""
        return state.retained + state.undecoded < self._prefetch_bytes and state.fetch_offset < state.stop

    @property
    def retained(self) -> int:
        """The bytes of all buffered records."""
        return sum(state.retained for state in self._filled)

    @property
    def undecoded(self) -> int:
        """The bytes that records which are being decoded are likely to take."""
        if not self._decoding:
            return 0
        for state in [state for state in self._decoding if not state.undecoded]:
            del self._decoding[state]
        return sum(state.undecoded for state in self._decoding)

    def drop_paused(self) -> bool:
        """Paused partitions must not use up the budget: their records can be fetched again."""
        found = [state for state in self._filled if state.paused and state.retained]
        for state in found:
            state.refetch()
        return bool(found)

    @property
    def available(self) -> int:
        """How many records a poll could take."""
        return sum(state.available for state in self._filled if not state.blocked_by)

    def out_of_range_offsets(self) -> dict[TopicPartition, int]:
        """The partitions whose next offset is out of range, with that offset: everything before it is handed out."""
        return {
            state.tp: state.fault.offset
            for state in self._faulty
            if isinstance(state.fault, OutOfRange) and state.is_drained
        }

    def resolve_out_of_range(self) -> bool:
        """Applies the reset policy where a fetch was out of range and everything before it is handed out. True if some
        partition needs another position now."""
        if not self._faulty:
            return False
        found = self.out_of_range_offsets()
        for tp, offset in found.items():
            self.out_of_range(self._states[tp], offset)
        return bool(found)

    def due_faults(self) -> Iterator[tuple[PartitionState, HeadraceError]]:
        """Those with nothing buffered before them, of partitions that are handed out at all."""
        for state in self._faulty:
            if isinstance(state.fault, HeadraceError) and state.is_drained and not state.blocked_by:
                yield state, state.fault

    @property
    def is_faulty(self) -> bool:
        return bool(self._faulty)

    @property
    def next_retry(self) -> float | None:
        """When the next request that was refused is to be repeated, of partitions without a position."""
        waiting = (state for state in self._faulty if state.is_refused and state.phase is not Phase.READY)
        return min((state.backoff_until for state in waiting), default=None)

    def denied_topics(self) -> set[str]:
        """The topics with a partition that may not be read."""
        return {state.tp.topic for state, error in self.due_faults() if denies_topic(error)}

    def pending_error(
        self, pace: ErrorPacing, now: float, *, news: bool = False, is_late: bool = False
    ) -> HeadraceError | None:
        """The error that a poll without records raises: the first fault with nothing buffered before it, if it is time
        for that. With `news`, only one that no poll has raised yet, of those that stay; `is_late` when the poll's time
        is up. Errors that deny topics are left out."""
        for state, error in self.due_faults():
            if denies_topic(error):
                continue
            if state.is_refused:
                if pace.admits(error, now, RETRIED):
                    return error
            elif not state.was_raised or (not news and pace.is_due(_STAYING, now, is_late=is_late)):
                pace.raised(_STAYING, now, STAYS)
                self._mark_raised(state, error)
                return error
        return None

    def _mark_raised(self, state: PartitionState, error: HeadraceError) -> None:
        # An error of a whole fetch is the fault of all partitions in it.
        for same in [same for same, other in self.due_faults() if other is error]:
            same.was_raised = True
        # The next to be raised is another one, if there is any.
        del self._faulty[state]
        self._faulty[state] = None
