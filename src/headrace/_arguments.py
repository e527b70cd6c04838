"""Checks the arguments of public methods, before the methods do anything.

Each function takes the user's value and returns it in the form that is used internally. An invalid value raises an
error of one line that names the argument, what is expected and what was given:

    TypeError    the type is wrong
    ValueError   the type is right and the value is not (ConfigError for topics, partitions and patterns)

Whole numbers are ints and everything with `__index__` (numpy integers have it), except bools. Timeouts are seconds: 0
or less does not wait, infinity waits without limit.
"""

from __future__ import annotations

import dis
import functools
import inspect
import math
import numbers
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from .errors import ConfigError
from .types import OffsetAndMetadata, TopicPartition

LONGEST_STRING = 2**15 - 1  # bytes of UTF-8: a broker closes the connection if it receives a longer string

SomePartitions = Iterable[TopicPartition | tuple[str, int]]
F = TypeVar("F", bound=Callable[..., Any])

LAST_OFFSET = LAST_TIMESTAMP = 2**63 - 1
LAST_PARTITION = LAST_EPOCH = 2**31 - 1
LONGEST_TOPIC = 249

_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_TOPIC}}}")
_TOPIC_RULE = f"a topic's name is 1 to {LONGEST_TOPIC} letters, digits, '.', '_' and '-', and not '.' or '..'"
_PARTITION_RULE = f"it must be a topic's name and a number from 0 to {LAST_PARTITION}"
_LONGEST_SHOWN = 80
_IS_LAZY = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def short_repr(value: object) -> str:
    """The value's repr for an error message: on one line, truncated if it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


# -- numbers -----------------------------------------------------------------------------------------------------


def number_of(name: str, value: Any, unit: str = "a number of seconds") -> float:
    if isinstance(value, bool) or not isinstance(value, (float, int, numbers.Real)):
        raise TypeError(f"{name} must be {unit}, not {short_repr(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} must be {unit}: {short_repr(value)} is too large") from None
    if math.isnan(number):
        raise ValueError(f"{name} must be {unit}, not NaN")
    return number


def seconds_of(value: Any, name: str = "timeout") -> float:
    if type(value) is float and value >= 0.0:  # each poll() calls this, and not with NaN
        return value
    return max(0.0, number_of(name, value))


def optional_seconds_of(value: Any, name: str = "timeout") -> float | None:
    if value is None:
        return None
    return max(0.0, number_of(name, value, "a number of seconds, or None for default.api.timeout.ms"))


def whole_number_of(name: str, value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {short_repr(value)}") from None


def partition_number_of(value: Any) -> int:
    """The number of a partition of a topic that is named elsewhere."""
    number = whole_number_of("partition", value)
    if not 0 <= number <= LAST_PARTITION:
        raise ConfigError(f"partition must be a number from 0 to {LAST_PARTITION}, not {short_repr(number)}")
    return number


def _bounded(name: str, value: Any, last: int) -> int:
    number = whole_number_of(name, value)
    if number < 0:
        raise ValueError(f"{name} must not be negative: {number}")
    if number > last:
        raise ValueError(f"{name} must be at most {last}: {short_repr(number)}")
    return number


def limit_of(max_records: Any, *, has_none: bool = True) -> int:
    """The most records of one poll. -1 means no limit, if `has_none` allows it."""
    limit = whole_number_of("max_records", max_records)
    if limit < 1 and not (has_none and limit == -1):
        raise ValueError("max_records must be at least 1" + (", or -1 for no limit" if has_none else ""))
    return limit


# -- text and functions --------------------------------------------------------------------------------------------


def text_of(name: str, value: Any) -> str:
    """A string that fits into a string field of the Kafka protocol."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {short_repr(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be text without lone surrogates: {short_repr(value)}") from None
    if size > LONGEST_STRING:
        raise ValueError(f"{name} must be at most {LONGEST_STRING} bytes of UTF-8, not {size}")
    return value


def function_of(name: str, value: F | None) -> F:
    if not callable(value):
        raise TypeError(f"{name} must be a function, not {short_repr(value)}")
    return value


def returns_nothing(function: Any) -> bool:
    """Whether this is a plain Python function, or a method, that returns None whenever it returns: it is no coroutine
    function, and does not return what one returned."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(function) or function.__code__.co_flags & _IS_LAZY:
        return False
    before = None
    for each in dis.get_instructions(function):
        if each.opname == "RETURN_CONST" and each.argval is not None:
            return False
        if each.opname == "RETURN_VALUE" and (
            before is None or before.opname != "LOAD_CONST" or before.argval is not None
        ):
            return False
        before = each
    return True


def callback_of(name: str, value: F | None) -> F | None:
    """A plain function, or None. Not a coroutine function, because nothing would await it."""
    if value is None:
        return None
    if inspect.iscoroutinefunction(function_of(name, value)):
        raise TypeError(f"{name} must be a plain function, not the coroutine function {short_repr(value)}")
    return value


def pattern_of(pattern: Any) -> str | re.Pattern[str]:
    if isinstance(pattern, re.Pattern):
        if not isinstance(pattern.pattern, str):
            raise TypeError(
                f"pattern must be a regular expression for str, not for bytes: {short_repr(pattern.pattern)}"
            )
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a string or a compiled regular expression, not {short_repr(pattern)}")
    if not pattern:
        raise ConfigError("pattern must not be empty: it has to match a topic's whole name")
    return text_of("pattern", pattern)


# -- topics and partitions -----------------------------------------------------------------------------------------


def _is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def topic_of(value: Any, name: str = "") -> str:
    """`name` is the name of the argument, for the error message."""
    if not isinstance(value, str):
        raise TypeError(f"{name or 'the name of a topic'} must be a string, not {short_repr(value)}")
    if not _is_topic(value):
        raise ConfigError(f"{name}{'=' if name else ''}{short_repr(value)} is not a valid topic name: {_TOPIC_RULE}")
    return value


def topics_in(topics: Any) -> frozenset[str]:
    if isinstance(topics, (str, bytes)) or not isinstance(topics, Iterable):
        raise TypeError(f"topics must be a list of topic names, not {short_repr(topics)}")
    names = frozenset(topic_of(each) for each in topics)
    if not names:
        raise ConfigError("subscribe() needs at least one topic; to end a subscription, call unsubscribe()")
    return names


def partition_of(value: Any) -> TopicPartition:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"a partition must be a TopicPartition or a tuple (topic, number), not {short_repr(value)}")
    topic, number = value
    try:
        number = whole_number_of("partition", number)
    except TypeError:
        number = -1
    if not isinstance(topic, str) or not topic or not 0 <= number <= LAST_PARTITION:
        raise ConfigError(f"{short_repr(value)} is not a valid partition: {_PARTITION_RULE}")
    if not _is_topic(topic):
        raise ConfigError(f"{short_repr(value)} is not a valid partition: {_TOPIC_RULE}")
    return TopicPartition(topic, number)


def partitions_in(partitions: Any) -> list[TopicPartition]:
    """The partitions in order, without duplicates."""
    if isinstance(partitions, (str, bytes, TopicPartition)) or not isinstance(partitions, Iterable):
        raise TypeError(f"partitions must be a list of partitions, not {short_repr(partitions)}")
    return list(dict.fromkeys(partition_of(each) for each in partitions))


# -- offsets -------------------------------------------------------------------------------------------------------


def offset_of(value: Any) -> OffsetAndMetadata:
    """An offset, with its metadata and leader epoch if given."""
    if not isinstance(value, OffsetAndMetadata):
        if value is None or isinstance(value, (tuple, list, str)):
            raise TypeError(f"offset must be a whole number or an OffsetAndMetadata, not {short_repr(value)}")
        return OffsetAndMetadata(_bounded("offset", value, LAST_OFFSET))
    offset, metadata, epoch = value
    if epoch is not None:
        epoch = whole_number_of("leader_epoch", epoch)
        if not -1 <= epoch <= LAST_EPOCH:
            raise ValueError(
                f"leader_epoch must be from 0 to {LAST_EPOCH}, or None if it is unknown: {short_repr(epoch)}"
            )
        epoch = None if epoch < 0 else epoch  # records use -1 for an unknown epoch
    return OffsetAndMetadata(_bounded("offset", offset, LAST_OFFSET), text_of("metadata", metadata), epoch)


def commits_in(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata] | None:
    if offsets is None:
        return None
    _check_mapping("offsets", offsets, "offsets")
    return {partition_of(tp): offset_of(offset) for tp, offset in offsets.items()}


def timestamps_in(timestamps: Any) -> dict[TopicPartition, int]:
    _check_mapping("timestamps", timestamps, "milliseconds since 1970")
    found = {partition_of(tp): at for tp, at in timestamps.items()}
    for tp, at in found.items():
        if not isinstance(at, bool) and isinstance(at, numbers.Real) and at < 0:
            raise ValueError("a timestamp cannot be negative: use beginning_offsets() or end_offsets()")
        found[tp] = _bounded(f"the timestamp of {tp}, in milliseconds,", at, LAST_TIMESTAMP)
    return found


def _check_mapping(name: str, value: Any, values: str) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of partitions to {values}, not {short_repr(value)}")
