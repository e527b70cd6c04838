"""The options of the source: Spark's own for its Kafka source, with its defaults, precedences and refusals.

Names are case-insensitive. What is wrong is said when the query starts, by an OptionError, and not in a task. Options
that only the JVM connector understands are accepted and logged; one that looks like a misspelt known one is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import NoReturn

from ..types import TopicPartition
from .consumer_settings import SECURITY, SETTINGS, consumer_settings
from .option_values import KNOWN, check_names, choice, count, count_or, duration, flag, json_by_topic, lowered, whole
from .option_values import OptionError as OptionError

LATEST = -1
EARLIEST = -2


# -- what to read --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Assigned:
    partitions: frozenset[TopicPartition]

    @property
    def names(self) -> list[str]:
        return sorted({tp.topic for tp in self.partitions})


@dataclasses.dataclass(frozen=True, slots=True)
class Subscribed:
    topics: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return list(self.topics)


@dataclasses.dataclass(frozen=True, slots=True)
class Matching:
    pattern: re.Pattern[str]


# -- from where, to where ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class AtEnd:
    """LATEST or EARLIEST, of all partitions."""

    which: int


@dataclasses.dataclass(frozen=True, slots=True)
class AtOffsets:
    """Of each partition; may be LATEST or EARLIEST."""

    offsets: Mapping[TopicPartition, int]


@dataclasses.dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after it, in milliseconds: one time for all, or one for each partition."""

    everywhere: int | None
    each: Mapping[TopicPartition, int]


Bound = AtEnd | AtOffsets | AtTime


def is_late(bound: Bound, tp: TopicPartition) -> bool:
    """Whether its offset may be another one when a batch query runs again: one that is not given as a number."""
    return not isinstance(bound, AtOffsets) or bound.offsets[tp] < 0


def is_of_any(bound: Bound) -> bool:
    """Whether it is one for all partitions, also for those that are new."""
    return isinstance(bound, AtEnd) or (isinstance(bound, AtTime) and bound.everywhere is not None)


def only(bound: Bound, tp: TopicPartition) -> Bound:
    """The same for one partition."""
    if isinstance(bound, AtOffsets):
        return AtOffsets({tp: bound.offsets[tp]})
    if isinstance(bound, AtTime) and bound.everywhere is None:
        return AtTime(None, {tp: bound.each[tp]})
    return bound


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """All of them, checked. Picklable: executors get it."""

    strategy: Assigned | Subscribed | Matching
    starting: Bound
    ending: Bound
    falls_back_to_latest: bool  # where no record is as young as asked for; else that is an error
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay: float
    shares: str  # how max_offsets is shared out: fair or proportional
    min_partitions: int | None
    max_records_per_partition: int | None
    attempts: int
    attempt_pause: float
    poll_timeout: float
    settings: Mapping[str, str] = dataclasses.field(repr=False)  # of the consumers, secrets included

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Raises OptionError."""
        check_names(given, SETTINGS | SECURITY)
        options = lowered(given)
        strategy = _strategy(options)
        starting = _bound(options, "starting", AtEnd(LATEST if streaming else EARLIEST))
        ending = _bound(options, "ending", AtEnd(LATEST))
        if streaming:
            _refuse_ending(options)
        else:
            _check_batch(starting, ending)
        least, most = count(options, "minoffsetspertrigger"), count(options, "maxoffsetspertrigger")
        if least is not None and most is not None and least > most:
            raise OptionError(f"minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}")
        return cls(
            strategy=strategy,
            starting=starting,
            ending=ending,
            falls_back_to_latest=choice(options, "startingoffsetsbytimestampstrategy", ("error", "latest"), "error")
            == "latest",
            fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
            include_headers=flag(options, "includeHeaders"),
            max_offsets=most,
            min_offsets=least,
            max_trigger_delay=duration(options.get("maxtriggerdelay", "15m"), "maxTriggerDelay"),
            shares=choice(options, "maxoffsetspertriggershares", ("fair", "proportional"), "fair"),
            min_partitions=count(options, "minpartitions"),
            max_records_per_partition=count(options, "maxrecordsperpartition"),
            attempts=count_or(options, "fetchoffset.numretries", 3),
            attempt_pause=count_or(options, "fetchoffset.retryintervalms", 10, low=0) / 1000,
            poll_timeout=count_or(options, "kafkaconsumer.polltimeoutms", 120_000) / 1000,
            settings=consumer_settings(options),
        )


_PARTITIONS = '{"topic":[0,1]}'
_OFFSETS = '{"topic":{"0":23,"1":-1}}'
_TIMES = '{"topic":{"0":1700000000000,"1":1700000000000}}'

# -- single options ------------------------------------------------------------------------------------------------


def _strategy(options: Mapping[str, str]) -> Assigned | Subscribed | Matching:
    names = ("assign", "subscribe", "subscribepattern")
    chosen = [name for name in names if name in options]
    shown = ", ".join(KNOWN[name] for name in names)
    if not chosen:
        raise OptionError(f"one of these options must be given: {shown}")
    if len(chosen) > 1:
        raise OptionError(f"only one of these options can be given: {shown}")
    value = options[chosen[0]].strip()
    if chosen[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise OptionError(f"subscribe={value!r} names no topic")
        return Subscribed(topics)
    if chosen[0] == "subscribepattern":
        if not value:
            raise OptionError("subscribePattern is empty")
        try:
            return Matching(re.compile(value))
        except re.error as error:
            raise OptionError(f"subscribePattern={value!r} is not a regular expression: {error}") from None
    found = json_by_topic(value, "assign", _PARTITIONS)
    partitions = [
        TopicPartition(topic, whole(number, f"assign of {topic}"))
        for topic, numbers in found.items()
        for number in (numbers if isinstance(numbers, list) else _refuse("assign", value))
    ]
    if not partitions:
        raise OptionError(f"assign={value!r} names no partition; write {_PARTITIONS}")
    return Assigned(frozenset(partitions))


def _refuse(name: str, value: str) -> NoReturn:
    raise OptionError(f"{name}={value!r}: lists of partitions are needed, as {_PARTITIONS}")


def _bound(options: Mapping[str, str], which: str, default: Bound) -> Bound:
    """By Spark's precedence: one time, times, offsets."""
    once, by_time, by_offset = f"{which}timestamp", f"{which}offsetsbytimestamp", f"{which}offsets"
    if once in options:
        return AtTime(whole(options[once], KNOWN[once], low=0), {})
    if by_time in options:
        return AtTime(None, _by_partition(options[by_time], KNOWN[by_time], low=0))
    value = options.get(by_offset, "").strip()
    if not value:
        return default
    if value.lower() in ("latest", "earliest"):
        return AtEnd(LATEST if value.lower() == "latest" else EARLIEST)
    return AtOffsets(_by_partition(value, KNOWN[by_offset], low=EARLIEST))


def _refuse_ending(options: Mapping[str, str]) -> None:
    for name in ("endingtimestamp", "endingoffsetsbytimestamp", "endingoffsets"):
        if name in options:
            raise OptionError(f"{KNOWN[name]} cannot be given in a streaming query: it has no end")


def _check_batch(starting: Bound, ending: Bound) -> None:
    if starting == AtEnd(LATEST):
        raise OptionError("startingOffsets=latest: a batch query would read nothing")
    if ending == AtEnd(EARLIEST):
        raise OptionError("endingOffsets=earliest: a batch query would read nothing")
    if isinstance(starting, AtOffsets) and (found := [tp for tp, at in starting.offsets.items() if at == LATEST]):
        raise OptionError(f"startingOffsets of {found[0]} is latest (-1): a batch query would read nothing")
    if isinstance(ending, AtOffsets) and (found := [tp for tp, at in ending.offsets.items() if at == EARLIEST]):
        raise OptionError(f"endingOffsets of {found[0]} is earliest (-2): a batch query would read nothing")
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        _check_order(starting.offsets, ending.offsets, "Offsets")
    elif isinstance(starting, AtTime) and isinstance(ending, AtTime):
        _check_order(starting.each, ending.each, "OffsetsByTimestamp")  # one time for all is not checked by Spark


def _check_order(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], name: str) -> None:
    for tp, start in starts.items():
        if 0 <= ends.get(tp, LATEST) < start:
            raise OptionError(f"starting{name} of {tp} is {start}, which is after ending{name}, {ends[tp]}")


def _by_partition(text: str, name: str, low: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    form = _OFFSETS if low < 0 else _TIMES
    for topic, numbers in json_by_topic(text, name, form).items():
        if not isinstance(numbers, dict):
            raise OptionError(f"{name}={text!r}: write it as {form}")
        for number, value in numbers.items():
            tp = TopicPartition(topic, whole(number, f"{name} of {topic}, a partition"))
            found[tp] = whole(value, f"{name} of {tp}", low=low)
    return found
