"""The offsets of a streaming query as its checkpoint has them, and what a batch between two of them reads.

    {"orders": {"0": 131}}                                        everything before 131 is read: Spark's own form
    {"orders": {"0": {"frontier": 131, "holes": {"70": 120}}}}    except 70 to before 120, which is read later (KIP-333)
    {"orders": {"0": {"frontier": 131, "unread": true}}}          this query has read nothing, and would resume at 131
    {"headrace:schemas": {"value": {"columns": "0ab3…"}}, …}      which schemas its typed columns have
    {"headrace:start={…}": {}, …}                                 where the query started: only in its first batch

A batch reads the offsets that are done at its end but not at its start. They follow from these two alone, so that a
batch that is run again reads the same. A batch does not read a partition that is *unread* at its end, whatever its
start says: so a query resumes after the offsets that others have read of a partition.

The log of a query has the ends of its batches only. Where the first one starts is in its end, too: options, logs and
partitions may have changed when it is run again. Spark's own source writes that into a file of the checkpoint, whose
path Python sources do not get. A query that started at the beginning of complete logs needs no such note, so its
checkpoint has Spark's own form.

Spark's own source rejects the second, third and fourth form, and it should: it would skip records, read them twice, or
have other columns. It ignores the note of the start, which is a topic without partitions to it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from operator import index
from typing import Any, NamedTuple

from .._machines.commit.offset_set import OffsetSet
from .._machines.lanes.lanes import BACKLOG, LIVE
from ..types import TopicPartition
from .formats import TypedColumns, check_unchanged
from .offset_range import OffsetRange

DoneOffsets = dict[TopicPartition, OffsetSet]

METRICS_KEY = "headrace:metrics"
CLIENT_ID_KEY = "headrace:client"
"""Beside the topics in a query's progress. No topic can have these names."""
SCHEMAS_KEY = "headrace:schemas"
"""Beside the topics in the checkpoint."""
_START = "headrace:start="

NOT_STARTED: dict[str, Any] = {"headrace:not-started": {}}
"""The initial offset of every query, which Spark does not log. The first batch decides where it starts."""


def with_start(end: dict[str, Any], start: Checkpoint) -> dict[str, Any]:
    """The end of a query's first batch, with the note of its start."""
    return {**end, f"{_START}{json.dumps(start.to_json(), separators=(',', ':'))}": {}}


def without_start(offset: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in offset.items() if not name.startswith(_START)}


def noted_start(end: Mapping[str, Any]) -> Checkpoint | None:
    """Where the query started, if this is the end of its first batch and has the note."""
    for name in end:
        if name.startswith(_START):
            return Checkpoint.from_json(json.loads(name.removeprefix(_START)))
    return None


def with_schemas(offset: dict[str, Any], typed: TypedColumns) -> dict[str, Any]:
    """The offset as the checkpoint of a query with these columns has it. Without typed columns it is Spark's own."""
    if not typed.fields:
        return offset
    return {**offset, SCHEMAS_KEY: {each.options.field: each.description for each in typed.fields}}


def check_schemas(offset: Mapping[str, Any], typed: TypedColumns) -> None:
    """Raises SchemaChangedError if the checkpoint was written with other columns."""
    if typed.fields and SCHEMAS_KEY in offset:
        check_unchanged(typed, offset[SCHEMAS_KEY])


class LaneRange(NamedTuple):
    """The offsets from `start` up to, but not including, `end`, and their lane."""

    tp: TopicPartition
    start: int
    end: int
    lane: str

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.tp, self.start, self.end)


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """The offsets of each partition that are done: by this query or, if it is unread, by others."""

    done: DoneOffsets
    unread: frozenset[TopicPartition] = frozenset()

    @classmethod
    def from_offsets(cls, offsets: Mapping[TopicPartition, int], *, unread: bool = False) -> Checkpoint:
        return cls({tp: OffsetSet(at) for tp, at in offsets.items()}, frozenset(offsets) if unread else frozenset())

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Checkpoint:
        """Raises ValueError for a checkpoint that neither this source nor Spark's own has written."""
        done: DoneOffsets = {}
        unread: set[TopicPartition] = set()
        try:
            for topic, numbers in found.items():
                if topic == SCHEMAS_KEY:
                    continue
                for number, value in numbers.items():
                    tp = TopicPartition(topic, int(number))
                    done[tp], is_unread = _parse_partition(value)
                    if is_unread:
                        unread.add(tp)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError(
                f"The checkpoint does not contain Kafka offsets, but {found!r}: it belongs to another source. Start "
                f"the query with a new checkpoint"
            ) from None
        return cls(done, frozenset(unread))

    def to_json(self) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for tp in sorted(self.done):
            found.setdefault(tp.topic, {})[str(tp.partition)] = self._partition_to_json(tp)
        return found

    def _partition_to_json(self, tp: TopicPartition) -> Any:
        done = self.done[tp]
        if not done.holes and tp not in self.unread:
            return done.frontier
        holes = {"holes": {str(start): end for start, end in done.holes}} if done.holes else {}
        return {"frontier": done.frontier, **holes, **({"unread": True} if tp in self.unread else {})}

    def ranges_to(self, end: Checkpoint) -> list[LaneRange]:
        """The ranges that the batch from here to `end` reads. It does not read a partition that is not here."""
        return [
            LaneRange(tp, first, last, _lane(last, self.done[tp], end.done[tp]))
            for tp in sorted(end.done)
            if tp in self.done and tp not in end.unread
            for first, last in end.done[tp] - self.done[tp]
        ]


def _lane(last: int, before: OffsetSet, after: OffsetSet) -> str:
    """A range that ends before the frontier at the start, or before a hole at the end, was skipped: it is backlog."""
    skipped = max(before.frontier, after.holes[-1][1] if after.holes else 0)
    return BACKLOG if last <= skipped else LIVE


def _parse_partition(found: Any) -> tuple[OffsetSet, bool]:
    if not isinstance(found, dict):
        return OffsetSet(index(found)), False
    holes = [(int(start), index(end)) for start, end in found.get("holes", {}).items()]
    return OffsetSet(index(found["frontier"]), holes), bool(found.get("unread", False))
