"""Where a query goes on with a partition that its group gives it: the rule, without any I/O.

    the checkpoint says        the group has committed      the query goes on
    read to d                  nothing, or no more          at d
    read to d                  more: c                      at c, with what both have done; others have read the rest
    not read, would start at s nothing                      at s
    not read, would start at s c                            at c
    nothing                    c                            at c
    nothing                    nothing                      at the beginning of the log: a new partition

Everything before the place where it goes on was read by a member of the group and committed, or is in this query's
checkpoint: nothing is lost. The checkpoint is ahead of the group only by what this query has completed and could not
commit before it was killed.

A place that is not the checkpoint's own is first written into the checkpoint, as unread, and the batch after that reads
from there: so what a batch reads follows from its start and end.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping

from ..offsets import OffsetSet
from ..types import TopicPartition
from .checkpoint import Checkpoint, Done
from .membership import Arrival, Standing
from .ranges import Offsets

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Portion:
    """What the next batch may read, and what becomes of the rest."""

    readable: frozenset[TopicPartition] | None = None
    """None: everything."""
    arrived: frozenset[TopicPartition] = frozenset()
    """Those that were not readable before, and that somebody has read up to where they stand."""
    placed: Mapping[TopicPartition, OffsetSet] = dataclasses.field(default_factory=dict)
    """Where others are gone on from, as unread."""
    completed: Done = dataclasses.field(default_factory=dict)
    """To be committed."""
    released: frozenset[TopicPartition] = frozenset()

    def has(self, tp: TopicPartition) -> bool:
        return self.readable is None or tp in self.readable

    def rest(self, start: Checkpoint, done: Done) -> Checkpoint:
        """The end of a batch after which `done` is done of what is readable."""
        if self.readable is None:
            return Checkpoint({**done, **self.placed}, frozenset(self.placed))
        unread = start.unread - self.readable | self.placed.keys()
        return Checkpoint({**start.done, **done, **self.placed}, unread)


EVERYTHING = Portion()


class Ownership:
    """Which partitions the query has adopted, in this run. Belongs to the thread of Spark's calls."""

    def __init__(self) -> None:
        self._adopted: dict[TopicPartition, Arrival] = {}
        self._placed: dict[TopicPartition, tuple[Arrival, OffsetSet]] = {}

    @property
    def count(self) -> int:
        return len(self._adopted)

    def look(
        self, start: Checkpoint, standing: Standing, earliest: Callable[[Collection[TopicPartition]], Offsets]
    ) -> Portion:
        """`start` is complete. `earliest` tells where logs begin, of partitions that are new."""
        arrivals = standing.arrivals
        self._adopted = {tp: stay for tp, stay in self._adopted.items() if arrivals.get(tp) is stay}
        had = set(self._adopted)
        waiting = {tp: stay for tp, stay in arrivals.items() if tp not in self._adopted}
        for tp in standing.asked_back:
            self._adopted.pop(tp, None)
            waiting.pop(tp, None)
        placed: dict[TopicPartition, OffsetSet] = {}
        arrived = set()
        new = earliest([tp for tp, stay in waiting.items() if stay.committed is None and tp not in start.done])
        for tp, stay in waiting.items():
            done = start.done.get(tp)
            place = _place(done, tp in start.unread, stay.committed)
            if done is not None and (place is None or self._placed.get(tp) == (stay, done)):
                self._adopted[tp] = stay
                if stay.committed is not None or tp not in start.unread:
                    arrived.add(tp)
            else:
                placed[tp] = OffsetSet(new[tp]) if place is None else place
        self._placed = {tp: (arrivals[tp], place) for tp, place in placed.items()}
        # Of those adopted just now as well: one that was killed before it could commit has more than the group knows.
        known = had | self._adopted.keys()
        completed = {tp: start.done[tp] for tp in known if tp in start.done and tp not in start.unread}
        return Portion(frozenset(self._adopted), frozenset(arrived), placed, completed, standing.asked_back)


def _place(checkpointed: OffsetSet | None, is_unread: bool, committed: OffsetSet | None) -> OffsetSet | None:
    """Where to go on instead of where the checkpoint stands; None if there."""
    if committed is None:
        return None
    if checkpointed is None or is_unread:
        return None if committed == checkpointed else committed
    return None if committed <= checkpointed else committed | checkpointed
