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
from .offset_limits import EARLIEST, LATEST, EarliestOrLatest, OffsetRangeLimit, check_batch_limits, parse_limit
from .parsers import (
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
from .parsers import OptionError as OptionError

_INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""A pattern does not select them."""

# -- which partitions ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class AssignStrategy:
    partitions: frozenset[TopicPartition]

    @property
    def names(self) -> list[str]:
        return sorted({tp.topic for tp in self.partitions})

    def selects(self, tp: TopicPartition) -> bool:
        return tp in self.partitions


@dataclasses.dataclass(frozen=True, slots=True)
class SubscribeStrategy:
    topics: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return list(self.topics)

    def selects(self, tp: TopicPartition) -> bool:
        return tp.topic in self.topics


@dataclasses.dataclass(frozen=True, slots=True)
class SubscribePatternStrategy:
    pattern: re.Pattern[str]

    def matches(self, topic: str) -> bool:
        return topic not in _INTERNAL_TOPICS and self.pattern.search(topic) is not None

    def selects(self, tp: TopicPartition) -> bool:
        return self.matches(tp.topic)


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """All of them, checked. Picklable: Spark sends it to executors."""

    strategy: AssignStrategy | SubscribeStrategy | SubscribePatternStrategy
    starting: OffsetRangeLimit
    ending: OffsetRangeLimit
    falls_back_to_latest: bool  # if no record is at or after startingTimestamp; otherwise that is an error
    fail_on_data_loss: bool
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
        starting = parse_limit(options, "starting", EarliestOrLatest(LATEST if streaming else EARLIEST))
        ending = parse_limit(options, "ending", EarliestOrLatest(LATEST))
        if streaming:
            _reject_ending(options)
        else:
            check_batch_limits(starting, ending)
        # As in Spark, a batch query ignores one of the two, whatever its value is.
        are_parsed = streaming or {"minoffsetspertrigger", "maxoffsetspertrigger"} <= options.keys()
        min_offsets = parse_count(options, "minoffsetspertrigger") if are_parsed else None
        max_offsets = parse_count(options, "maxoffsetspertrigger") if are_parsed else None
        if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
            raise OptionError(f"minOffsetsPerTrigger={min_offsets} is greater than maxOffsetsPerTrigger={max_offsets}")
        no_match = parse_choice(options, "startingoffsetsbytimestampstrategy", ("error", "latest"), "error")
        fail_on_data_loss = parse_boolean(options, "failOnDataLoss", default=True)
        parse_boolean(options, "includeHeaders")  # only checked: `source_schema` reads it
        return cls(
            strategy=strategy,
            starting=starting,
            ending=ending,
            falls_back_to_latest=no_match == "latest",
            fail_on_data_loss=fail_on_data_loss,
            max_offsets=max_offsets,
            min_offsets=min_offsets,
            max_trigger_delay=parse_duration(
                options.get("maxtriggerdelay", "15m") if streaming else "15m", "maxTriggerDelay"
            ),
            distribution=parse_choice(options, "maxoffsetspertriggershares", ("fair", "proportional"), "fair"),
            min_partitions=parse_count(options, "minpartitions"),
            max_records_per_partition=parse_count(options, "maxrecordsperpartition"),
            retry_attempts=parse_count_or_default(options, "fetchoffset.numretries", 3),
            retry_interval=parse_count_or_default(options, "fetchoffset.retryintervalms", 10, low=0) / 1000,
            poll_timeout=parse_count_or_default(options, "kafkaconsumer.polltimeoutms", 120_000) / 1000,
            settings=consumer_settings(options),
        )


def named_topics(given: Mapping[str, str]) -> list[str] | None:
    """The topics that the options name, or None. Does not check the options: SourceOptions.parse() does."""
    options = lowercase_names(given)
    if "subscribe" not in options and "assign" not in options:
        return None
    strategy = _parse_strategy(options)
    return None if isinstance(strategy, SubscribePatternStrategy) else strategy.names


_PARTITIONS = '{"topic":[0,1]}'

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


def _reject_ending(options: Mapping[str, str]) -> None:
    for name in ("endingtimestamp", "endingoffsetsbytimestamp", "endingoffsets"):
        if name in options:
            raise OptionError(f"{KNOWN_OPTIONS[name]} cannot be set in a streaming query, which has no end. Remove it")
