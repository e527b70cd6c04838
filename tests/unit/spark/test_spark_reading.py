"""How long a task waits for records, with a scripted consumer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from headrace.spark.group.member import to_full_match
from headrace.spark.offset_range import OffsetRange
from headrace.spark.options.source import SourceOptions
from headrace.spark.worker import reader as reading
from headrace.types import TopicPartition

T0 = TopicPartition("t", 0)
OPTIONS = SourceOptions.parse({"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}, streaming=True)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class ScriptedConsumer:
    """A consumer whose polls return the given numbers of records and take no time."""

    def __init__(self, polls: list[int]) -> None:
        self._polls = polls
        self._position = 0
        self._parts = SimpleNamespace(buffer=self)

    def assign(self, partitions: Any) -> None:
        pass

    def read_range(self, tp: TopicPartition, start: int, end: int) -> None:
        self._position = start

    def poll(self, timeout: float, max_records: int) -> range:
        first = self._position
        self._position += self._polls.pop(0)
        return range(first, self._position)

    def position(self, tp: TopicPartition) -> int:
        return self._position

    def partitions_for_topic(self, topic: str, timeout: float) -> list[SimpleNamespace]:
        return [SimpleNamespace(partition=0)]

    def watermarks(self, tp: TopicPartition, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(low=0, high=100)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reading, "time", clock)
    return clock


def read(polls: list[int]) -> Iterator[Any]:
    return reading._poll_range(ScriptedConsumer(polls), OffsetRange(T0, 0, 10), OPTIONS)  # type: ignore[arg-type]


def test_a_sink_that_takes_its_time_does_not_count_for_the_timeout(clock: Clock) -> None:
    found = read([4, 0, 6])
    assert list(next(found)) == [0, 1, 2, 3]
    clock.now += OPTIONS.poll_timeout + 1
    assert list(next(found)) == [4, 5, 6, 7, 8, 9]


def test_a_broker_that_takes_its_time_counts_for_the_timeout(clock: Clock) -> None:
    found = read([4, 0, 0])
    next(found)
    played = iter([OPTIONS.poll_timeout / 2, OPTIONS.poll_timeout])
    clock.monotonic = lambda: clock.now + next(played, 2 * OPTIONS.poll_timeout)  # type: ignore[method-assign]
    with pytest.raises(TimeoutError, match="No records of t-0 arrived from offset 4 on"):
        next(found)


@pytest.mark.parametrize(
    ("searched", "name"),
    [
        ("(?i)ORD", "my-orders"),
        ("(?i)(?s)ORD", "my-orders"),
        ("^(a|b)$", "b"),
        ("a|b", "xbx"),
        ("(?x)ord  # what is ordered", "my-orders"),
    ],
)
def test_patterns_that_are_searched_for_fit_the_whole_name(searched: str, name: str) -> None:
    pattern = re.compile(searched)
    assert pattern.search(name)
    assert to_full_match(pattern).fullmatch(name)
    assert not to_full_match(pattern).fullmatch("nothing")
