"""A streaming query with PySpark 4.0 and 4.1, without Spark: the same calls in the same order, with a real broker.

The reader works with every version of PySpark, so these tests do, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.spark.driver.legacy_stream import LegacyStreamReader
from headrace.spark.error_boundary import FailedStreamReader
from headrace.spark.options.parsers import OptionError
from headrace.spark.source import HeadraceSource
from support.brokers.admin import Admin
from support.brokers.produce import numbered, numbered_topic, write
from support.spark.streams import grid

Rows = list[tuple[int, int]]
Offset = dict[str, Any]


@pytest.fixture(autouse=True)
def no_admission_control(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.source.HAS_ADMISSION_CONTROL", False)
    monkeypatch.setattr("headrace.spark.versions.HAS_ADMISSION_CONTROL", False)


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("legacy", 2), 2, 100)


class Query:
    """The calls of a query, run after run, and its checkpoint: the ends of its batches, and how many are complete."""

    def __init__(self, servers: str, topic: str) -> None:
        self.options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
        self.ends: list[Offset] = []
        self.complete = 0
        self._reader: LegacyStreamReader | None = None

    @property
    def reader(self) -> LegacyStreamReader:
        """A run begins with the first call."""
        if self._reader is None:
            source = HeadraceSource(dict(self.options))
            found = source.streamReader(source.schema())
            if isinstance(found, FailedStreamReader):
                found.initialOffset()  # raises
            assert isinstance(found, LegacyStreamReader)
            self._reader = found
            if self.ends:
                assert self.tasks(self.ends[-1], self.ends[-1]) == []
        return self._reader

    def tasks(self, start: Offset, end: Offset) -> Rows:
        return sorted(
            place
            for task in self.reader.partitions(start, end)
            for batch in self.reader.read(task)
            for place in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
        )

    def trigger(self, *, fails: bool = False) -> Rows | None:
        """The rows of the next batch, which is an interrupted one if there is one. None if there is no batch."""
        reader = self.reader
        if self.complete == len(self.ends):
            end = json.loads(json.dumps(reader.latestOffset()))
            if self.ends and end == self.ends[-1]:
                return None
            self.ends.append(end)
        start = self.ends[self.complete - 1] if self.complete else json.loads(json.dumps(reader.initialOffset()))
        rows = self.tasks(start, self.ends[self.complete])
        if fails:
            self.stop()
        else:
            self.complete += 1
        return rows

    def triggers(self) -> list[Rows]:
        found = []
        while (rows := self.trigger()) is not None:
            found.append(rows)
        return found

    def stop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()


@pytest.fixture
def query(servers: str, topic: str) -> Iterator[Query]:
    query = Query(servers, topic)
    yield query
    query.stop()


def test_a_query_without_a_limit_reads_everything_in_its_first_batch(query: Query, servers: str, topic: str) -> None:
    assert query.triggers() == [grid(2, 100)]
    write(servers, topic, numbered(5, 0))
    assert query.triggers() == [[(0, offset) for offset in range(100, 105)]]


def test_max_offsets_per_trigger_limits_every_batch_of_every_run(query: Query) -> None:
    query.options["maxOffsetsPerTrigger"] = "60"
    assert query.trigger() == grid(2, 30)
    query.stop()
    assert query.trigger() == [(number, offset) for number in range(2) for offset in range(30, 60)]
    assert [len(rows) for rows in query.triggers()] == [60, 20]


@pytest.mark.parametrize("interrupted", [0, 1])
def test_an_interrupted_batch_is_repeated_exactly_and_the_query_continues_at_its_end(
    query: Query, servers: str, topic: str, interrupted: int
) -> None:
    query.options["maxOffsetsPerTrigger"] = "60"
    for _ in range(interrupted):
        query.trigger()
    rows = query.trigger(fails=True)
    write(servers, topic, numbered(100, 0))
    query.options["maxOffsetsPerTrigger"] = "1000"
    assert query.trigger() == rows
    rest = query.triggers()
    assert len(rest) == 1
    assert len(rest[0]) == 300 - 60 * (interrupted + 1)


def test_a_first_batch_from_latest_is_empty_also_when_it_is_repeated(query: Query, servers: str, topic: str) -> None:
    query.options["startingOffsets"] = "latest"
    assert query.trigger(fails=True) == []
    write(servers, topic, numbered(5, 0))
    assert query.trigger() == []
    assert query.triggers() == [[(0, offset) for offset in range(100, 105)]]


def test_a_restarted_query_reads_the_newest_records_first_with_two_lanes(
    query: Query, servers: str, topic: str
) -> None:
    query.trigger()
    query.stop()
    write(servers, topic, numbered(100, 0))
    query.options |= {"enable.parallel.rebalance": "true", "maxOffsetsPerTrigger": "40"}
    first = query.trigger()
    assert first is not None
    assert (0, 199) in first
    assert len(first) == 40
    query.stop()
    rest = [place for rows in query.triggers() for place in rows]
    assert sorted(first + rest) == [(0, offset) for offset in range(100, 200)]


def test_a_batch_whose_tasks_spark_optimizes_away_does_not_stop_the_query(query: Query) -> None:
    query.options["maxOffsetsPerTrigger"] = "60"
    reader = query.reader
    first = reader.latestOffset()
    reader.initialOffset()
    assert reader.latestOffset() == first
    assert reader.latestOffset() != first
    assert reader.latestOffset() == {query.options["subscribe"]: {"0": 90, "1": 90}}


def test_a_limited_first_batch_warns_of_triggers_that_run_one_batch(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    query.options["maxOffsetsPerTrigger"] = "60"
    query.trigger()
    assert "leaves 140 offsets to later batches. If the trigger is availableNow or once" in caplog.text
    caplog.clear()
    query.triggers()
    assert not caplog.text


@pytest.mark.parametrize("is_new", [True, False])
def test_the_wrapper_for_available_now_is_rejected_before_a_task_reads(query: Query, is_new: bool) -> None:
    end = query.reader.latestOffset()
    if is_new:
        query.reader.initialOffset()
        assert query.reader.latestOffset() == end
    with pytest.raises(OptionError, match=r"AvailableNowWrapper.enabled=true needs PySpark 4.2 or newer"):
        query.reader.initialOffset() if is_new else query.reader.partitions(end, end)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("group.membership", {"group.membership": "true", "kafka.group.id": "g"}),
        ("share.group.id", {"share.group.id": "g"}),
        ("watermarkDelay", {"watermarkDelay": "5 seconds", "enable.parallel.rebalance": "true"}),
    ],
)
def test_options_that_need_admission_control_name_the_version_that_has_it(
    query: Query, name: str, options: dict[str, str]
) -> None:
    del query.options["startingOffsets"]
    query.options |= options
    with pytest.raises(OptionError, match=rf"{name} needs PySpark 4.2 or newer: .*This is \d"):
        query.reader.latestOffset()
