"""What a commit of a consumer with two lanes consists of (KIP-333): a part for each lane."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping

from ..._machines.commit.offset_set import OffsetSet
from ..._machines.fetch.partition import Position
from ..._machines.lanes.lanes import Lanes
from ..._machines.positions.positions import position_commit
from ...errors import StateError
from ...types import OffsetAndMetadata, TopicPartition
from ..commit.plan import Entries, IsDeleted, Offsets
from ..fetch.buffer import FetchBuffer
from .backlog import Backlog


@dataclasses.dataclass(frozen=True, slots=True)
class LaneCommit:
    """What one lane of a partition has done."""

    lanes: Lanes
    done: OffsetSet
    note: str = ""
    leader_epoch: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LanedPlan:
    """A `CommitPlan`: of partitions without lanes, of live lanes, of backlog lanes."""

    plain: Mapping[TopicPartition, OffsetAndMetadata] = dataclasses.field(default_factory=dict)
    live: Mapping[TopicPartition, LaneCommit] = dataclasses.field(default_factory=dict)
    backlog: Mapping[TopicPartition, LaneCommit] = dataclasses.field(default_factory=dict)
    topic_ids: Mapping[str, uuid.UUID | None] = dataclasses.field(default_factory=dict)  # when it was planned
    is_of_positions: bool = False

    def __bool__(self) -> bool:
        return bool(self.plain or self.live or self.backlog)

    def of(self, chosen: Callable[[TopicPartition], bool]) -> LanedPlan:
        return dataclasses.replace(
            self,
            plain={tp: it for tp, it in self.plain.items() if chosen(tp)},
            live={tp: it for tp, it in self.live.items() if chosen(tp)},
            backlog={tp: it for tp, it in self.backlog.items() if chosen(tp)},
        )

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """For the callback: of two lanes the live one's."""
        parts = {**self.backlog, **self.live}
        of_lanes = {tp: OffsetAndMetadata(it.done.low, it.note, it.leader_epoch) for tp, it in parts.items()}
        return {**self.plain, **of_lanes}

    def entries(self) -> Entries:
        found: dict[TopicPartition, tuple[object, ...]] = {tp: (it,) for tp, it in self.plain.items()}
        for tp, part in self.live.items():
            found[tp] = (part.lanes.token, part.lanes.is_closed, part.done, part.note)
        for tp, part in self.backlog.items():
            found[tp] = (*found.get(tp, ()), part.done)
        return found


class TwoLaneTarget:
    """The `CommitTarget` of two lanes."""

    has_final_commit = True

    def __init__(self, buffer: FetchBuffer, backlog: Backlog) -> None:
        self._buffer = buffer
        self._backlog = backlog

    def needs_position(self, offsets: Offsets) -> Iterable[TopicPartition]:
        """An offset can only be committed when it is known which ranges are open. Lazily: others may be revoked while
        the caller waits for the position of one."""
        return (tp for tp in offsets if tp in self._buffer.assignment)

    def plan(self, offsets: Offsets) -> LanedPlan:
        """By the lane that each offset belongs to."""
        backlog, assignment = self._backlog, self._buffer.assignment
        plain: dict[TopicPartition, OffsetAndMetadata] = {}
        live: dict[TopicPartition, LaneCommit] = {}
        beside: dict[TopicPartition, LaneCommit] = {}
        with self._buffer.lock:
            for tp, (offset, note, epoch) in offsets.items():
                if tp not in assignment:
                    raise StateError(
                        f"cannot commit {tp}: it is not assigned to this consumer. With enable.parallel.rebalance, "
                        f"only the owner of a partition may commit it, because only it knows the open ranges"
                    )
                state = assignment.state(tp)
                if state.position is None and state.fault is None:
                    raise StateError(f"cannot commit {tp} yet: its open ranges are unknown. Call poll() first")
                lanes = backlog.lanes.get(tp)
                if lanes is None:
                    plain[tp] = offsets[tp]
                elif lanes.is_backlog(offset, backlog.position(tp)):
                    beside[tp] = LaneCommit(lanes, backlog.done(tp, OffsetSet(offset)), note)
                else:
                    live[tp] = LaneCommit(lanes, OffsetSet(offset), note, epoch)
                    # The backlog lane may have passed the end of a range since its last record was committed, or a
                    # range without any record: no user commits those.
                    if (done := backlog.done(tp, lanes.progress)) != lanes.progress:
                        beside[tp] = LaneCommit(lanes, done)
            return LanedPlan(plain, live, beside, self._buffer.topic_ids(offsets))

    def plan_positions(self, done: Mapping[TopicPartition, OffsetSet | None], is_deleted: IsDeleted) -> LanedPlan:
        plain: dict[TopicPartition, OffsetAndMetadata] = {}
        live: dict[TopicPartition, LaneCommit] = {}
        beside: dict[TopicPartition, LaneCommit] = {}
        with self._buffer.lock:
            for state in self._buffer.assignment:
                tp, position = state.tp, state.position
                if position is None or is_deleted(tp):
                    continue
                if tp not in self._backlog.lanes:
                    plain[tp] = position_commit(position, state.already_done, done.get(tp))
                else:
                    live[tp], beside[tp] = self._of_both_lanes(tp, position, done.get(tp))
            ids = self._buffer.topic_ids([*plain, *live])
        return LanedPlan(plain, live, beside, ids, is_of_positions=True)

    def _of_both_lanes(
        self, tp: TopicPartition, position: Position, done: OffsetSet | None
    ) -> tuple[LaneCommit, LaneCommit]:
        backlog, lanes = self._backlog, self._backlog.lanes[tp]
        epoch = None if position.epoch < 0 else position.epoch
        if done is not None:
            live = LaneCommit(lanes, done | OffsetSet(lanes.live_start), "", epoch)
            return live, LaneCommit(lanes, backlog.done(tp, done))
        live = LaneCommit(lanes, lanes.beyond | OffsetSet(position.offset), "", epoch)
        return live, LaneCommit(lanes, OffsetSet(backlog.position(tp)))
