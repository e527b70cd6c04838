"""Where a query resumes a partition that its group has assigned to it. No I/O.

    the checkpoint has          the group has committed      the query resumes
    read to d                   nothing, or not beyond d     at d
    read to d                   c, beyond d                  at c, with what both have done; others have read the rest
    unread, would start at s    nothing                      at s
    unread, would start at s    c                            at c
    nothing                     c                            at c
    nothing                     nothing                      at the beginning of the log: a new partition

No records are skipped: everything before the offset where the query resumes was read and committed by a member of the
group, or is in this query's checkpoint. The checkpoint is ahead of the group only by what this query has completed but
could not commit before it was killed.

If the offset differs from the checkpoint's own, one batch writes it into the checkpoint, as unread, and the batch after
that reads from there. So what a batch reads follows from its start and end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from ..._machines.commit.offset_set import OffsetSet
from ...types import TopicPartition
from ..checkpoint import Checkpoint, DoneOffsets
from ..offset_range import Offsets
from .member import AssignedPartition, MemberSnapshot


@dataclasses.dataclass(frozen=True, slots=True)
class BatchAssignment:
    """The partitions that the next batch may read, and what happens to the others."""

    readable: frozenset[TopicPartition] | None = None
    """None: all partitions."""
    resumed: frozenset[TopicPartition] = frozenset()
    """The readable ones that were not readable before, and that some member has read up to where they resume."""
    repositioned: Mapping[TopicPartition, OffsetSet] = dataclasses.field(default_factory=dict)
    """Partitions that this batch does not read, but writes into the checkpoint as unread: where they resume."""
    to_commit: DoneOffsets = dataclasses.field(default_factory=dict)
    released: frozenset[TopicPartition] = frozenset()

    def is_readable(self, tp: TopicPartition) -> bool:
        return self.readable is None or tp in self.readable

    def end_of_batch(self, start: Checkpoint, done: DoneOffsets) -> Checkpoint:
        """The end of a batch after which `done` is done of the readable partitions."""
        if self.readable is None:
            return Checkpoint({**done, **self.repositioned}, frozenset(self.repositioned))
        unread = start.unread - self.readable | self.repositioned.keys()
        return Checkpoint({**start.done, **done, **self.repositioned}, unread)


ALL_PARTITIONS = BatchAssignment()


class Ownership:
    """The partitions that the query owns, in this run. Belongs to the thread of Spark's calls."""

    def __init__(self) -> None:
        self._owned: dict[TopicPartition, AssignedPartition] = {}
        self._repositioned: dict[TopicPartition, tuple[AssignedPartition, OffsetSet]] = {}

    @property
    def count(self) -> int:
        return len(self._owned)

    def assign_next_batch(
        self,
        start: Checkpoint,
        snapshot: MemberSnapshot,
        earliest_offsets: Callable[[Collection[TopicPartition]], Offsets],
    ) -> BatchAssignment:
        """`start` is complete. `earliest_offsets` looks up the beginning of new partitions."""
        assigned = snapshot.assigned
        self._owned = {tp: mine for tp, mine in self._owned.items() if assigned.get(tp) is mine}
        owned_before = set(self._owned)
        not_owned = {tp: mine for tp, mine in assigned.items() if tp not in self._owned}
        for tp in snapshot.to_be_revoked:
            self._owned.pop(tp, None)
            not_owned.pop(tp, None)
        repositioned: dict[TopicPartition, OffsetSet] = {}
        resumed = set()
        new = earliest_offsets(
            [tp for tp, mine in not_owned.items() if mine.committed is None and tp not in start.done]
        )
        for tp, mine in not_owned.items():
            done = start.done.get(tp)
            position = _resume_from(done, tp in start.unread, mine.committed)
            if done is not None and (position is None or self._repositioned.get(tp) == (mine, done)):
                self._owned[tp] = mine
                if mine.committed is not None or tp not in start.unread:
                    resumed.add(tp)
            else:
                repositioned[tp] = OffsetSet(new[tp]) if position is None else position
        self._repositioned = {tp: (assigned[tp], position) for tp, position in repositioned.items()}
        # Including those that the query owns only now: if it was killed before it could commit, its checkpoint has more
        # than the group knows.
        owned = owned_before | self._owned.keys()
        to_commit = {tp: start.done[tp] for tp in owned if tp in start.done and tp not in start.unread}
        return BatchAssignment(
            frozenset(self._owned), frozenset(resumed), repositioned, to_commit, snapshot.to_be_revoked
        )


def _resume_from(checkpointed: OffsetSet | None, is_unread: bool, committed: OffsetSet | None) -> OffsetSet | None:
    """Where to resume instead of at the checkpoint's own offset; None if there."""
    if committed is None:
        return None
    if checkpointed is None or is_unread:
        return None if committed == checkpointed else committed
    return None if committed <= checkpointed else committed | checkpointed
