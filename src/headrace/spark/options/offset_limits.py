"""Where a query starts and ends: startingOffsets, startingTimestamp, startingOffsetsByTimestamp; and ending…"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ...types import TopicPartition
from .parsers import KNOWN_OPTIONS, OptionError, parse_integer, parse_json_by_topic

LATEST = -1
EARLIEST = -2
_OFFSETS = '{"topic":{"0":23,"1":-1}}'
_TIMES = '{"topic":{"0":1700000000000,"1":1700000000000}}'


@dataclasses.dataclass(frozen=True, slots=True)
class EarliestOrLatest:
    """LATEST or EARLIEST, for all partitions."""

    which: int


@dataclasses.dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """An offset for each partition, which may be LATEST or EARLIEST."""

    offsets: Mapping[TopicPartition, int]


@dataclasses.dataclass(frozen=True, slots=True)
class SpecificTimestamps:
    """The first record at or after a timestamp in milliseconds: one for all partitions, or one for each."""

    global_timestamp: int | None
    timestamps: Mapping[TopicPartition, int]


OffsetRangeLimit = EarliestOrLatest | SpecificOffsets | SpecificTimestamps


def is_resolved_by_tasks(limit: OffsetRangeLimit, tp: TopicPartition) -> bool:
    """Whether a task of a batch query resolves it when it runs, so that another run may get another offset ("late
    binding" in Spark): everything but an offset that is given as a number."""
    return not isinstance(limit, SpecificOffsets) or limit.offsets[tp] < 0


def is_global(limit: OffsetRangeLimit) -> bool:
    """Whether it applies to all partitions, including new ones."""
    if isinstance(limit, SpecificTimestamps):
        return limit.global_timestamp is not None
    return isinstance(limit, EarliestOrLatest)


def restrict_to_partition(limit: OffsetRangeLimit, tp: TopicPartition) -> OffsetRangeLimit:
    """The same limit for one partition only."""
    if isinstance(limit, SpecificOffsets):
        return SpecificOffsets({tp: limit.offsets[tp]})
    if isinstance(limit, SpecificTimestamps) and limit.global_timestamp is None:
        return SpecificTimestamps(None, {tp: limit.timestamps[tp]})
    return limit


def parse_limit(options: Mapping[str, str], which: str, default: OffsetRangeLimit) -> OffsetRangeLimit:
    """By Spark's precedence: one timestamp, timestamps by partition, offsets."""
    once, by_time, by_offset = f"{which}timestamp", f"{which}offsetsbytimestamp", f"{which}offsets"
    if once in options:
        return SpecificTimestamps(parse_integer(options[once].strip(), KNOWN_OPTIONS[once], low=0), {})
    if by_time in options:
        return SpecificTimestamps(None, _parse_by_partition(options[by_time], KNOWN_OPTIONS[by_time], low=0))
    value = options.get(by_offset, "").strip()
    if not value:
        return default
    if value.lower() in ("latest", "earliest"):
        return EarliestOrLatest(LATEST if value.lower() == "latest" else EARLIEST)
    return SpecificOffsets(_parse_by_partition(value, KNOWN_OPTIONS[by_offset], low=EARLIEST))


def check_batch_limits(starting: OffsetRangeLimit, ending: OffsetRangeLimit) -> None:
    if starting == EarliestOrLatest(LATEST):
        raise OptionError("startingOffsets=latest: a batch query would read nothing. Use earliest or offsets")
    if ending == EarliestOrLatest(EARLIEST):
        raise OptionError("endingOffsets=earliest: a batch query would read nothing. Use latest or offsets")
    if isinstance(starting, SpecificOffsets) and (found := [tp for tp, at in starting.offsets.items() if at == LATEST]):
        raise OptionError(f"startingOffsets of {found[0]} is latest (-1): a batch query would read nothing")
    if isinstance(ending, SpecificOffsets) and (found := [tp for tp, at in ending.offsets.items() if at == EARLIEST]):
        raise OptionError(f"endingOffsets of {found[0]} is earliest (-2): a batch query would read nothing")
    if isinstance(starting, SpecificOffsets) and isinstance(ending, SpecificOffsets):
        _check_order(starting.offsets, ending.offsets, "Offsets")
    elif isinstance(starting, SpecificTimestamps) and isinstance(ending, SpecificTimestamps):
        # Two global timestamps are not compared: Spark does not either.
        _check_order(starting.timestamps, ending.timestamps, "OffsetsByTimestamp")


def _check_order(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], name: str) -> None:
    for tp, start in starts.items():
        if 0 <= ends.get(tp, LATEST) < start:
            raise OptionError(f"starting{name} of {tp} is {start}, which is after ending{name}, {ends[tp]}")


def _parse_by_partition(text: str, name: str, low: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    form = _OFFSETS if low < 0 else _TIMES
    for topic, numbers in parse_json_by_topic(text, name, form).items():
        if not isinstance(numbers, dict):
            raise OptionError(f"{name}={text!r} must have an object by partition for each topic. Use the form {form}")
        for number, value in numbers.items():
            tp = TopicPartition(topic, parse_integer(number, f"{name}: partition of {topic}"))
            found[tp] = parse_integer(value, f"{name} of {tp}", low=low)
    return found
