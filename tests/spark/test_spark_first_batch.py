"""The first batch of a query starts at the same offsets however often it is run, with a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace.spark.data_loss import DataLossError
from headrace.spark.options.parsers import OptionError
from headrace.spark.versions import ReadAllAvailable
from support.brokers.admin import Admin
from support.brokers.produce import Outgoing, numbered, numbered_topic, write
from support.spark.batches import Batches
from support.spark.readers import Runs
from support.spark.streams import Stream, grid

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("first", 2, retention_ms=-1)
    write(servers, topic, [Outgoing(b"x", None, number, 1000 * (at + 1)) for number in range(2) for at in range(10)])
    return topic


@pytest.fixture
def runs(servers: str, topic: str) -> Iterator[Runs]:
    runs = Runs(servers, topic)
    yield runs
    runs.stop()


STARTS: dict[str, tuple[dict[str, str], int]] = {
    "earliest": ({}, 0),
    "earliest of each": ({"startingOffsets": '{"TOPIC":{"0":-2,"1":-2}}'}, 0),
    "offsets": ({"startingOffsets": '{"TOPIC":{"0":3,"1":3}}'}, 3),
    "a timestamp": ({"startingTimestamp": "5000"}, 4),
    "timestamps": ({"startingOffsetsByTimestamp": '{"TOPIC":{"0":6000,"1":6000}}'}, 5),
}


@pytest.mark.parametrize("start", STARTS)
class TestARepeatedFirstBatch:
    def test_it_fails_if_retention_has_deleted_its_first_records(
        self, runs: Runs, admin: Admin, topic: str, start: str
    ) -> None:
        given, first = _with(topic, start)
        end = runs.new(**given).plan()
        admin.delete_records(topic, 6, partition=1)
        with pytest.raises(DataLossError, match=rf"1: the records from offset {first} to before 6 are no longer"):
            runs.new(**given).rows(end)
        expected = [(number, at) for number, low in ((0, first), (1, 6)) for at in range(low, 10)]
        assert runs.new(failOnDataLoss="false", **given).rows(end) == expected

    def test_it_starts_where_it_did_although_a_partition_was_added(
        self, runs: Runs, servers: str, admin: Admin, topic: str, start: str
    ) -> None:
        given, first = _with(topic, start)
        end = runs.new(**given).plan()
        admin.add_partitions(topic, 3)
        write(servers, topic, numbered(2, 2))
        again = runs.new(**given)
        assert again.rows(end) == [(number, at) for number in range(2) for at in range(first, 10)]
        again.at, again._is_new = end, False
        assert again.trigger() == [(2, 0), (2, 1)]


def _with(topic: str, start: str) -> tuple[dict[str, str], int]:
    given, first = STARTS[start]
    return {name: value.replace("TOPIC", topic) for name, value in given.items()}, first


class TestTheNoteOfTheStart:
    def test_other_options_do_not_move_the_start_of_a_batch_that_is_planned(self, runs: Runs, topic: str) -> None:
        end = runs.new(startingOffsets=f'{{"{topic}":{{"0":3,"1":-1}}}}').plan()
        for starting in ("earliest", "latest", f'{{"{topic}":{{"0":9,"1":9}}}}'):
            assert runs.new(startingOffsets=starting).rows(end) == [(0, at) for at in range(3, 10)]

    def test_a_query_from_the_beginning_has_spark_s_own_checkpoint(self, runs: Runs, topic: str) -> None:
        assert runs.new().plan() == {topic: {"0": 10, "1": 10}}

    def test_it_is_in_the_end_of_the_first_batch_only(self, runs: Runs, servers: str, topic: str) -> None:
        """To Spark's own source it is a topic without partitions."""
        query = runs.new(startingTimestamp="5000")
        assert query.trigger() == [(number, at) for number in range(2) for at in range(4, 10)]
        noted = query.at
        assert noted is not None
        assert noted.pop(f'headrace:start={{"{topic}":{{"0":4,"1":4}}}}') == {}
        assert noted == {topic: {"0": 10, "1": 10}}
        write(servers, topic, numbered(1, 0))
        query.trigger()
        assert query.at == {topic: {"0": 11, "1": 10}}

    def test_without_new_records_there_is_no_batch_that_only_removes_it(self, runs: Runs) -> None:
        query = runs.new(startingTimestamp="5000")
        query.trigger()
        assert query.trigger() is None

    def test_a_first_batch_of_an_unknown_start_is_refused(self, runs: Runs, topic: str) -> None:
        """Spark's own source keeps its start in a file, which it does not show to others."""
        planned_by_spark = {topic: {"0": 10, "1": 10}}
        with pytest.raises(OptionError, match="does not say where it starts: Spark's own source planned it"):
            runs.new(startingOffsets="latest").rows(planned_by_spark)
        assert runs.new().rows(planned_by_spark) == grid(2, 10)


def test_a_single_batch_reads_everything_from_a_start_that_is_partly_latest(runs: Runs, topic: str) -> None:
    """trigger(once=True), and availableNow before PySpark 4.2: there is no second batch."""
    query = runs.new(startingOffsets=f'{{"{topic}":{{"0":3,"1":-1}}}}')
    query.limit = ReadAllAvailable()
    assert query.trigger() == [(0, at) for at in range(3, 10)]


def test_spark_repeats_a_failed_first_batch_from_its_start_or_reports_data_loss(
    spark: SparkSession, servers: str, admin: Admin, tmp_path: Path
) -> None:
    topic = numbered_topic(servers, admin.create("repeated", retention_ms=-1), 1, 10)
    stream = Stream(spark, servers, topic, tmp_path)
    stream.options["startingOffsets"] = json.dumps({topic: {"0": 2}})
    batches = Batches(stream)
    batches.break_off(0, once=True)
    admin.delete_records(topic, 6)
    with pytest.raises(StreamingQueryException, match="from offset 2 to before 6 are no longer in the log"):
        batches.run()
    stream.options["failOnDataLoss"] = "false"
    batches.run()
    assert batches.places() == [(0, at) for at in range(6, 10)]
