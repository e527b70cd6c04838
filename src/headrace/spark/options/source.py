"""The options of Spark's own Kafka source, with the same defaults, precedence and checks.

Names are case-insensitive. An invalid option raises OptionError when the query starts, not in a task. Options that only
the JVM connector has are accepted and logged; a name that is similar to a known one is rejected.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import NoReturn

from ...types import TopicPartition
from .consumer import CONSUMER_SETTINGS, SECURITY_SETTINGS, consumer_settings
from .values import (
    KNOWN_OPTIONS,
    check_names,
    lowercase_names,
    parse_boolean,
    parse_choice,
    parse_count,
    parse_count_or_default,
    parse_duration,
    parse_integer,
    parse_json_by_topic,
)
from .values import OptionError as OptionError

LATEST = -1
EARLIEST = -2


# -- which partitions ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class AssignStrategy:
    partitions: frozenset[TopicPartition]

    @property
    def names(self) -> list[str]:
        return sorted({tp.topic for tp in self.partitions})


@dataclasses.dataclass(frozen=True, slots=True)
class SubscribeStrategy:
    topics: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return list(self.topics)


@dataclasses.dataclass(frozen=True, slots=True)
class SubscribePatternStrategy:
    pattern: re.Pattern[str]


# -- starting and ending offsets -----------------------------------------------------------------------------------


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


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """All of them, checked. Picklable: Spark sends it to executors."""

    strategy: AssignStrategy | SubscribeStrategy | SubscribePatternStrategy
    starting: OffsetRangeLimit
    ending: OffsetRangeLimit
    falls_back_to_latest: bool  # if no record is at or after startingTimestamp; otherwise that is an error
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay: float
    distribution: str  # of max_offsets among the partitions: fair or proportional
    min_partitions: int | None
    max_records_per_partition: int | None
    retry_attempts: int
    retry_interval: float
    poll_timeout: float
    settings: Mapping[str, str] = dataclasses.field(repr=False)  # of the consumers, including secrets

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Raises OptionError."""
        check_names(given, CONSUMER_SETTINGS | SECURITY_SETTINGS)
        options = lowercase_names(given)
        strategy = _parse_strategy(options)
        starting = _parse_limit(options, "starting", EarliestOrLatest(LATEST if streaming else EARLIEST))
        ending = _parse_limit(options, "ending", EarliestOrLatest(LATEST))
        if streaming:
            _reject_ending(options)
        else:
            _check_batch(starting, ending)
        min_offsets = parse_count(options, "minoffsetspertrigger")
        max_offsets = parse_count(options, "maxoffsetspertrigger")
        if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
            raise OptionError(f"minOffsetsPerTrigger={min_offsets} is greater than maxOffsetsPerTrigger={max_offsets}")
        no_match = parse_choice(options, "startingoffsetsbytimestampstrategy", ("error", "latest"), "error")
        return cls(
            strategy=strategy,
            starting=starting,
            ending=ending,
            falls_back_to_latest=no_match == "latest",
            fail_on_data_loss=parse_boolean(options, "failOnDataLoss", default=True),
            include_headers=parse_boolean(options, "includeHeaders"),
            max_offsets=max_offsets,
            min_offsets=min_offsets,
            max_trigger_delay=parse_duration(options.get("maxtriggerdelay", "15m"), "maxTriggerDelay"),
            distribution=parse_choice(options, "maxoffsetspertriggershares", ("fair", "proportional"), "fair"),
            min_partitions=parse_count(options, "minpartitions"),
            max_records_per_partition=parse_count(options, "maxrecordsperpartition"),
            retry_attempts=parse_count_or_default(options, "fetchoffset.numretries", 3),
            retry_interval=parse_count_or_default(options, "fetchoffset.retryintervalms", 10, low=0) / 1000,
            poll_timeout=parse_count_or_default(options, "kafkaconsumer.polltimeoutms", 120_000) / 1000,
            settings=consumer_settings(options),
        )


_PARTITIONS = '{"topic":[0,1]}'
_OFFSETS = '{"topic":{"0":23,"1":-1}}'
_TIMES = '{"topic":{"0":1700000000000,"1":1700000000000}}'

# -- single options ------------------------------------------------------------------------------------------------


def _parse_strategy(options: Mapping[str, str]) -> AssignStrategy | SubscribeStrategy | SubscribePatternStrategy:
    names = ("assign", "subscribe", "subscribepattern")
    chosen = [name for name in names if name in options]
    shown = ", ".join(KNOWN_OPTIONS[name] for name in names)
    if not chosen:
        raise OptionError(f"No topics are given. Set one of these options: {shown}")
    if len(chosen) > 1:
        raise OptionError(f"Only one of these options can be set: {shown}")
    value = options[chosen[0]].strip()
    if chosen[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise OptionError(f"subscribe={value!r} names no topic")
        return SubscribeStrategy(topics)
    if chosen[0] == "subscribepattern":
        if not value:
            raise OptionError("subscribePattern is empty")
        try:
            return SubscribePatternStrategy(re.compile(value))
        except re.error as error:
            raise OptionError(f"subscribePattern={value!r} is not a regular expression: {error}") from None
    found = parse_json_by_topic(value, "assign", _PARTITIONS)
    partitions = [
        TopicPartition(topic, parse_integer(number, f"assign of {topic}"))
        for topic, numbers in found.items()
        for number in (numbers if isinstance(numbers, list) else _reject_assign(value))
    ]
    if not partitions:
        raise OptionError(f"assign={value!r} names no partition. Use the form {_PARTITIONS}")
    return AssignStrategy(frozenset(partitions))


def _reject_assign(value: str) -> NoReturn:
    raise OptionError(f"assign={value!r} must have a list of partitions for each topic. Use the form {_PARTITIONS}")


def _parse_limit(options: Mapping[str, str], which: str, default: OffsetRangeLimit) -> OffsetRangeLimit:
    """By Spark's precedence: one timestamp, timestamps by partition, offsets."""
    once, by_time, by_offset = f"{which}timestamp", f"{which}offsetsbytimestamp", f"{which}offsets"
    if once in options:
        return SpecificTimestamps(parse_integer(options[once], KNOWN_OPTIONS[once], low=0), {})
    if by_time in options:
        return SpecificTimestamps(None, _parse_by_partition(options[by_time], KNOWN_OPTIONS[by_time], low=0))
    value = options.get(by_offset, "").strip()
    if not value:
        return default
    if value.lower() in ("latest", "earliest"):
        return EarliestOrLatest(LATEST if value.lower() == "latest" else EARLIEST)
    return SpecificOffsets(_parse_by_partition(value, KNOWN_OPTIONS[by_offset], low=EARLIEST))


def _reject_ending(options: Mapping[str, str]) -> None:
    for name in ("endingtimestamp", "endingoffsetsbytimestamp", "endingoffsets"):
        if name in options:
            raise OptionError(f"{KNOWN_OPTIONS[name]} cannot be set in a streaming query, which has no end. Remove it")


def _check_batch(starting: OffsetRangeLimit, ending: OffsetRangeLimit) -> None:
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
