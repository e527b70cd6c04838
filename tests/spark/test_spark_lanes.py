"""enable.parallel.rebalance=true: a restarted query reads the newest records first, along with its backlog."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from headrace import Consumer, TopicPartition
from headrace._machines.commit.offset_set import OffsetSet
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, numbered_topic, write
from support.harness.waiting import wait_for
from support.spark.batches import LONG, Batches, metrics, sizes
from support.spark.streams import Stream, grid

pytestmark = [pytest.mark.timeout(400), pytest.mark.pyspark("4.2")]


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("laned", 2), 2, 50)


@pytest.fixture
def query(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> Batches:
    """A query that has read 50 records of each partition in batch 0 and restarts when there are 500."""
    stream = Stream(spark, servers, topic, tmp_path)
    stream.options |= {"enable.parallel.rebalance": "true", "maxOffsetsPerTrigger": 200, "includeLane": "true"}
    query = Batches(stream)
    query.run()
    assert query.ends() == {0: {topic: {"0": 50, "1": 50}}}, "a new query has no backlog"
    for number in range(2):
        write(servers, topic, numbered(450, number))
    return query


def test_a_restarted_query_with_lanes_reads_the_newest_records_first(query: Batches, topic: str) -> None:
    run = query.run()
    ends = query.ends()
    assert ends[1] == {topic: {str(number): {"frontier": 500, "holes": {"75": 425}} for number in range(2)}}
    assert ends[2] == {topic: {str(number): {"frontier": 500, "holes": {"175": 425}} for number in range(2)}}
    assert ends[5] == {topic: {"0": 500, "1": 500}}, "no open ranges at the end, in Spark's own format"
    assert sizes(run) == [200, 200, 200, 200, 100]
    assert [each["backlogOpen"] for each in metrics(run)] == [700, 500, 300, 100, 0]
    assert {each["liveLag"] for each in metrics(run)} == {0}
    assert query.places() == grid(2, 500)
    lanes = {(row.offset, row.lane) for rows in query.rows.values() for row in rows}
    assert lanes == {
        *((offset, "live") for offset in (*range(50), *range(425, 500))),
        *((offset, "backlog") for offset in range(50, 425)),
    }


def test_a_query_stopped_in_the_middle_of_its_backlog_resumes_it(query: Batches, servers: str, topic: str) -> None:
    """The interrupted batch is repeated unchanged. Then the query reads the newest records first again."""
    query.break_off(after=2)
    write(servers, topic, numbered(300, 0))
    query.run()
    assert query.is_run_again == {3: query.rows[3]}
    assert query.ends()[4][topic]["0"] == {"frontier": 800, "holes": {"300": 425, "500": 650}}
    assert query.places() == sorted(grid(2, 500) + [(0, offset) for offset in range(500, 800)])


def test_a_query_with_lanes_switched_off_reads_its_open_ranges_first(query: Batches, servers: str, topic: str) -> None:
    query.break_off(after=1)
    write(servers, topic, numbered(100, 1))
    del query.stream.options["enable.parallel.rebalance"]
    run = query.run()
    assert query.is_run_again == {2: query.rows[2]}
    assert query.ends()[3] == {topic: {str(number): {"frontier": 500, "holes": {"275": 425}} for number in range(2)}}
    assert query.ends()[5] == {topic: {"0": 500, "1": 600}}
    assert max(sizes(run)) <= 200
    assert query.places() == sorted(grid(2, 500) + [(1, offset) for offset in range(500, 600)])


@pytest.mark.soak
def test_a_backlog_that_retention_shortens_is_worked_off(query: Batches, admin: Admin, topic: str) -> None:
    query.stream.options["maxOffsetsPerTrigger"] = 60
    query.break_off(after=2)
    admin.delete_records(topic, 300)
    with pytest.raises(StreamingQueryException, match=r"were deleted|no longer in the log"):
        query.run()
    query.stream.options["failOnDataLoss"] = "false"
    query.run()
    found = query.places()
    assert len(found) == len(set(found))
    assert set(found) >= {(1, offset) for offset in range(500)} | {
        (0, offset) for offset in (*range(50), *range(300, 500))
    }
    assert query.ends()[max(query.ends())] == {topic: {"0": 500, "1": 500}}


def test_commits_of_a_query_contain_the_open_ranges_of_its_backlog(query: Batches, servers: str, topic: str) -> None:
    """A commit has the lowest open offset and the done offsets beyond it, so the next owner misses nothing."""
    group = unique("laned")
    query.stream.options |= {"commitOffsets": "true", "kafka.group.id": group}
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=servers, group_id=group) as consumer:

        def committed() -> OffsetSet | None:
            found = consumer.committed([tp])[tp]
            return found and OffsetSet.from_text(found.metadata, found.offset)

        def see_the_one_before(batch: DataFrame, number: int) -> None:
            """Wait for the previous batch's commit, since a query does not wait long for it."""
            if number == 2:
                wait_for("the commit", lambda: committed() == OffsetSet(500, [(75, 425)]), LONG)

        query.before_each = see_the_one_before
        query.break_off(after=1)
        assert committed() == OffsetSet(500, [(75, 425)])
        query.before_each = None
        query.run()
        wait_for("the last commit", lambda: consumer.committed([tp])[tp] == (500, "", None), LONG)
