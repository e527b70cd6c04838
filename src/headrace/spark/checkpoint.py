"""What a streaming query's checkpoint says of each partition, and what a batch between two of them reads.

    {"orders": {"0": 131}}                                        all before 131 is read: Spark's own form
    {"orders": {"0": {"frontier": 131, "holes": {"70": 120}}}}    but for 70 to before 120, which come later (KIP-333)
    {"orders": {"0": {"frontier": 131, "unread": true}}}          nothing is read by this query; it would go on there

A batch reads what is done at its end and not at its start: a function of the two, so that a batch that is run again
reads the same. What is *unread* at the end of a batch is not read by it, wherever it stood before: so a query goes on
after what others have read of a partition.

Spark's own source refuses the last two forms, and with right: it would read too little, or twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from operator import index
from typing import Any, NamedTuple

from ..offsets import OffsetSet
from ..types import TopicPartition
from .ranges import OffsetRange

Done = dict[TopicPartition, OffsetSet]

LIVE = "live"
BACKLOG = "backlog"

METRICS = "headrace:metrics"
CLIENT = "headrace:client"
"""Beside topics, in what a query reports: names that no topic can have."""


class LaneRange(NamedTuple):
    """The offsets from `start` to before `end`, and the lane that they come in."""

    tp: TopicPartition
    start: int
    end: int
    lane: str

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.tp, self.start, self.end)


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is done of each partition, by this query or, where it is unread, by others."""

    done: Done
    unread: frozenset[TopicPartition] = frozenset()

    @classmethod
    def plain(cls, offsets: Mapping[TopicPartition, int], *, unread: bool = False) -> Checkpoint:
        return cls({tp: OffsetSet(at) for tp, at in offsets.items()}, frozenset(offsets) if unread else frozenset())

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Checkpoint:
        """Raises ValueError for what is not written by this source or Spark's own."""
        done: Done = {}
        unread: set[TopicPartition] = set()
        try:
            for topic, numbers in found.items():
                for number, value in numbers.items():
                    tp = TopicPartition(topic, int(number))
                    done[tp], is_unread = _value(value)
                    if is_unread:
                        unread.add(tp)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError(f"the checkpoint has {found!r}, which are not Kafka's offsets") from None
        return cls(done, frozenset(unread))

    def to_json(self) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for tp in sorted(self.done):
            found.setdefault(tp.topic, {})[str(tp.partition)] = self._shown(tp)
        return found

    def _shown(self, tp: TopicPartition) -> Any:
        done = self.done[tp]
        if not done.holes and tp not in self.unread:
            return done.frontier
        holes = {"holes": {str(start): end for start, end in done.holes}} if done.holes else {}
        return {"frontier": done.frontier, **holes, **({"unread": True} if tp in self.unread else {})}

    def ranges_to(self, end: Checkpoint) -> list[LaneRange]:
        """What the batch from here to `end` reads. A partition that is not here is not read."""
        return [
            LaneRange(tp, first, last, _lane(last, self.done[tp], end.done[tp]))
            for tp in sorted(end.done)
            if tp in self.done and tp not in end.unread
            for first, last in end.done[tp] - self.done[tp]
        ]


def _lane(last: int, before: OffsetSet, after: OffsetSet) -> str:
    """Below the frontier of before, or below a hole of afterwards, it was skipped; all else is as new as it gets."""
    skipped = max(before.frontier, after.holes[-1][1] if after.holes else 0)
    return BACKLOG if last <= skipped else LIVE


def _value(found: Any) -> tuple[OffsetSet, bool]:
    if not isinstance(found, dict):
        return OffsetSet(index(found)), False
    holes = [(int(start), index(end)) for start, end in found.get("holes", {}).items()]
    return OffsetSet(index(found["frontier"]), holes), bool(found.get("unread", False))
