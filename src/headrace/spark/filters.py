"""Filters on topic, partition, offset and timestamp, as ranges that need not be fetched.

Every filter is left to Spark as well: what is here only makes the ranges smaller. A lower bound of the timestamp cuts
off what lies before the first record that is as young. An upper one cuts nothing off: a producer sets its timestamps as
it likes, so a late record can be an old one.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringEndsWith,
    StringStartsWith,
)

from ..types import TopicPartition
from .ranges import OffsetRange

Kind = type[Filter]

_COMPARED: dict[Kind, Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, other: bool(value == other),
    EqualNullSafe: lambda value, other: bool(value == other),
    GreaterThan: lambda value, other: bool(value > other),
    GreaterThanOrEqual: lambda value, other: bool(value >= other),
    LessThan: lambda value, other: bool(value < other),
    LessThanOrEqual: lambda value, other: bool(value <= other),
    In: lambda value, others: value in others,
    StringStartsWith: lambda value, start: str(value).startswith(start),
    StringEndsWith: lambda value, end: str(value).endswith(end),
}
# The offsets that pass, as a range: None is no bound.
_BOUNDS: dict[Kind, Callable[[Any], tuple[int | None, int | None]]] = {
    EqualTo: lambda value: (value, value + 1),
    EqualNullSafe: lambda value: (value, value + 1),
    GreaterThan: lambda value: (value + 1, None),
    GreaterThanOrEqual: lambda value: (value, None),
    LessThan: lambda value: (None, value),
    LessThanOrEqual: lambda value: (None, value + 1),
    In: lambda values: (min(values), max(values) + 1),
}
_LOWER_BOUNDS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)


class Condition(NamedTuple):
    """A filter that compares one column with a value that is not null."""

    column: str
    kind: Kind
    value: Any


class Pruning:
    """What a set of filters, all of which hold, leaves to be read."""

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self._conditions = [condition for each in filters if (condition := _condition(each)) is not None]

    def keeps(self, tp: TopicPartition) -> bool:
        """Whether anything of the partition can pass."""
        return all(
            _COMPARED[each.kind](getattr(tp, each.column), each.value)
            for each in self._conditions
            if each.column in ("topic", "partition")
        )

    def cut(self, whole: OffsetRange) -> OffsetRange:
        """By the offset."""
        start, end = whole.start, whole.end
        for each in self._conditions:
            if each.column == "offset" and each.kind in _BOUNDS:
                first, last = _BOUNDS[each.kind](each.value)
                start = start if first is None else max(start, first)
                end = end if last is None else min(end, last)
        return OffsetRange(whole.tp, start, max(start, end))

    @property
    def since(self) -> int | None:
        """Only records from this time on (in milliseconds) can pass."""
        times = [
            _milliseconds(each.value)
            for each in self._conditions
            if each.column == "timestamp" and each.kind in _LOWER_BOUNDS and isinstance(each.value, datetime.datetime)
        ]
        return max(times, default=None)


def _condition(given: Any) -> Condition | None:
    """None for what cannot make a range smaller."""
    if type(given) not in _COMPARED or len(given.attribute) != 1:
        return None
    value = given.value
    if type(given) is In:
        value = [each for each in value if each is not None]
    if value is None or value == []:
        return None
    return Condition(given.attribute[0], type(given), value)


def _milliseconds(moment: datetime.datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return max(0, int(moment.timestamp() * 1000))
