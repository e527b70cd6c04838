"""Argument checks: accepted values, their conversion, and error messages for rejected ones."""

from __future__ import annotations

import fractions
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from headrace import OffsetAndMetadata, TopicPartition
from headrace._aio.produce.arguments import timestamp_of
from headrace._arguments import (
    callback_of,
    commits_in,
    limit_of,
    offset_of,
    optional_seconds_of,
    partition_number_of,
    partition_of,
    partitions_in,
    pattern_of,
    seconds_of,
    short_repr,
    text_of,
    timestamps_in,
    topic_of,
    topics_in,
    whole_number_of,
)
from headrace._machines.admin.reset_target import reset_target
from headrace.config.producer import ProducerConfig
from headrace.errors import ConfigError
from headrace.formats import Protobuf
from support.harness import wrong_arguments as wrong

TP = TopicPartition("t", 0)


class Index:
    """An integer type of another library, like numpy's."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"Index(\n  {self.value}\n)"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *((1, 1.0), (1.5, 1.5), (fractions.Fraction(1, 2), 0.5), (1e300, 1e300), (math.inf, math.inf)),
        *((0, 0.0), (-1, 0.0), (-math.inf, 0.0)),
    ],
)
def test_timeouts_may_be_any_number_and_negative_ones_are_zero(given: Any, found: float) -> None:
    assert seconds_of(given) == optional_seconds_of(given) == found
    assert type(seconds_of(given)) is float
    assert optional_seconds_of(None) is None


def test_whole_numbers_may_be_any_object_with_index() -> None:
    assert (whole_number_of("n", 5), whole_number_of("n", -(2**70))) == (5, -(2**70))
    assert type(whole_number_of("n", Index(5))) is int
    assert (limit_of(-1), limit_of(1), limit_of(2**70)) == (-1, 1, 2**70)


def test_every_whole_number_follows_the_same_rule() -> None:
    """In arguments of producers, consumers, admins and formats, and in settings, which may be text as well."""
    proto = 'syntax = "proto3"; message M { int32 x = 1; }'
    takers: list[Callable[[Any], Any]] = [
        partition_number_of,
        limit_of,
        timestamp_of,
        lambda value: offset_of(value).offset,
        lambda value: partition_of(("t", value)).partition,
        lambda value: timestamps_in({TP: value})[TP],
        lambda value: reset_target(value, 0.0).number,
        lambda value: ProducerConfig.parse(bootstrap_servers="b:1", linger_ms=value).linger_ms,
        lambda value: Protobuf(proto, recursion=value) and value.__index__(),
    ]
    for taker in takers:
        for given in (5, Index(5)):
            assert taker(given) == 5
        for refused in (True, 1.5, b"5", math.nan):
            with pytest.raises((TypeError, ConfigError)):
                taker(refused)


@pytest.mark.parametrize("given", [("t", 0), ["t", 0], TP, ("t", Index(0))])
def test_partitions_may_be_tuples_or_lists(given: Any) -> None:
    found = partition_of(given)
    assert found == TP
    assert (type(found), type(found.partition)) == (TopicPartition, int)
    assert partitions_in(iter([given, TP])) == partitions_in({TP: 5}) == [TP]
    assert partitions_in([]) == []


def test_topic_names_that_kafka_takes_are_accepted() -> None:
    for name in ("t", "T.9_-", "...", "__consumer_offsets", "t" * 249):
        assert topic_of(name) == name
        assert partition_of((name, 2**31 - 1)) == (name, 2**31 - 1)
    assert topics_in(name for name in ("a", "b", "a")) == {"a", "b"}


def test_offsets_may_be_numbers_or_have_metadata_and_epochs() -> None:
    assert offset_of(2**63 - 1) == OffsetAndMetadata(2**63 - 1, "", None)
    assert offset_of(OffsetAndMetadata(5, "ü" * 16383, 0)) == OffsetAndMetadata(5, "ü" * 16383, 0)
    assert offset_of(OffsetAndMetadata(5, "", -1)) == OffsetAndMetadata(5, "", None), "records have -1 for no epoch"
    assert commits_in({("t", 0): Index(5)}) == {TP: OffsetAndMetadata(5)}
    assert commits_in({}) == {}
    assert commits_in(None) is None
    assert timestamps_in({("t", 0): 2**63 - 1}) == {TP: 2**63 - 1}


def test_patterns_callbacks_and_texts_are_accepted() -> None:
    compiled = re.compile("t.*")
    assert (pattern_of("t.*"), pattern_of(compiled)) == ("t.*", compiled)
    assert callback_of("callback", print) is print
    assert callback_of("callback", None) is None
    assert text_of("reason", "") == ""


CHECKS: list[tuple[Any, list[wrong.Wrong]]] = [
    (seconds_of, wrong.NEEDED_SECONDS),
    (optional_seconds_of, wrong.SECONDS),
    (limit_of, wrong.MAX_RECORDS),
    (partition_of, wrong.PARTITION),
    (partitions_in, wrong.NEEDED_PARTITIONS),
    (topic_of, wrong.NAME),
    (topics_in, wrong.TOPICS),
    (offset_of, wrong.OFFSET),
    (commits_in, wrong.OFFSETS),
    (timestamps_in, wrong.TIMESTAMPS),
    (lambda value: callback_of("callback", value), wrong.CALLBACK),
]


@pytest.mark.parametrize(("check", "values"), CHECKS)
def test_wrong_arguments_raise_an_error_of_one_line(check: Any, values: list[wrong.Wrong]) -> None:
    for value, error in values:
        with pytest.raises(error) as caught:
            check(value)
        assert re.fullmatch(".{10,300}", str(caught.value)), "one line"
        assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: seconds_of("1"), "timeout must be a number of seconds, not '1'"),
        (lambda: seconds_of(math.nan), "timeout must be a number of seconds, not NaN"),
        (
            lambda: optional_seconds_of("1"),
            "timeout must be a number of seconds, or None for default.api.timeout.ms, not '1'",
        ),
        (lambda: offset_of(1.5), "offset must be a whole number, not 1.5"),
        (lambda: offset_of(-1), "offset must not be negative: -1"),
        (lambda: offset_of(2**70), f"offset must be at most {2**63 - 1}: {2**70}"),
        (
            lambda: partitions_in(["t"]),
            "a partition must be a TopicPartition or a tuple (topic, number), not 't'",
        ),
        (lambda: commits_in([TP]), f"offsets must be a mapping of partitions to offsets, not [{TP!r}]"),
        (lambda: callback_of("callback", 5), "callback must be a function, not 5"),
        (
            lambda: topic_of("", "dead_letter"),
            "dead_letter='' is not a valid topic name: a topic's name is 1 to 249 letters, digits, '.', '_' and '-', "
            "and not '.' or '..'",
        ),
    ],
)
def test_errors_of_wrong_arguments_say_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert str(caught.value) == message


def test_a_value_in_a_message_is_short_and_on_one_line() -> None:
    assert short_repr("a\nb") == r"'a\nb'"
    assert short_repr(Index(0)) == "Index( 0 )"
    assert len(short_repr("x" * 10_000)) < 100
