"""Filters on topic, partition, offset and timestamp, as ranges that need not be fetched.

Every filter is left to Spark as well: what is here only makes the ranges smaller. A lower bound of the timestamp cuts
off what lies before the first record that is as young. An upper one cuts nothing off: a producer sets its timestamps as
it likes, so a late record can be an old one.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any

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

_COMPARED: dict[type[Filter], Callable[[Any, Any], bool]] = {
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


class Pruning:
    """What a set of filters, all of which hold, leaves to be read."""

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self._filters = [each for each in filters if type(each) in _COMPARED and len(each.attribute) == 1]  # type: ignore[attr-defined]

    def keeps(self, tp: TopicPartition) -> bool:
        """Whether anything of the partition can pass."""
        return all(
            _COMPARED[type(each)](getattr(tp, each.attribute[0]), each.value)  # type: ignore[attr-defined]
            for each in self._filters
            if each.attribute[0] in ("topic", "partition") and _value(each) is not None  # type: ignore[attr-defined]
        )

    def cut(self, whole: OffsetRange) -> OffsetRange:
        """By the offset."""
        start, end = whole.start, whole.end
        for each in self._filters:
            if each.attribute[0] != "offset" or (value := _value(each)) is None:  # type: ignore[attr-defined]
                continue
            if isinstance(each, (EqualTo, EqualNullSafe)):
                start, end = max(start, value), min(end, value + 1)
            elif isinstance(each, GreaterThan):
                start = max(start, value + 1)
            elif isinstance(each, GreaterThanOrEqual):
                start = max(start, value)
            elif isinstance(each, LessThan):
                end = min(end, value)
            elif isinstance(each, LessThanOrEqual):
                end = min(end, value + 1)
            elif isinstance(each, In) and each.value:
                start, end = max(start, min(each.value)), min(end, max(each.value) + 1)
        return OffsetRange(whole.tp, start, max(start, end))

    @property
    def since(self) -> int | None:
        """Only records from this time on (in milliseconds) can pass."""
        times = [
            _milliseconds(each.value)
            for each in self._filters
            if isinstance(each, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual))
            and each.attribute == ("timestamp",)
            and isinstance(each.value, datetime.datetime)
        ]
        return max(times, default=None)


def _value(each: Any) -> Any:
    return each.value


def _milliseconds(moment: datetime.datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return max(0, int(moment.timestamp() * 1000))
