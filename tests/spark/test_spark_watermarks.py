"""watermarkDelay=…: the progress counts the backlog records that a watermark drops."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, Writer, write
from support.spark.readers import Run
from support.spark.streams import DEADLINE, Stream, started

pytestmark = pytest.mark.timeout(400)

BEGAN = round(1000 * time.time()) - 3_600_000  # within retention
LANES = {"enable.parallel.rebalance": "true", "maxOffsetsPerTrigger": 200, "watermarkDelay": "5 seconds"}


def each_second(partition: int, first: int, end: int) -> Iterator[Outgoing]:
    """One record per second of event time."""
    for number in range(first, end):
        yield Outgoing(b"%d" % number, partition=partition, timestamp=BEGAN + 1000 * number)


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("late", 2)
    for number in range(2):
        write(servers, topic, each_second(number, 0, 50))
    return topic


def test_late_records_equals_the_number_that_the_watermark_drops(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    """1,800 records were written while the query was stopped."""
    stream = Stream(spark, servers, topic, tmp_path)
    stream.options |= LANES

    def run() -> StreamingQuery:
        rows = (
            stream.load().withWatermark("timestamp", "5 seconds").dropDuplicatesWithinWatermark(["partition", "offset"])
        )
        writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = started(writer.start)
        assert query.awaitTermination(DEADLINE)
        return query

    assert all(each.get("lateRecords") == 0 for each in figures(run()))
    for number in range(2):
        write(servers, topic, each_second(number, 50, 950))
    query = run()
    dropped = [progress["stateOperators"][0]["numRowsDroppedByWatermark"] for progress in query.recentProgress]
    late = [each.get("lateRecords") for each in figures(query)]
    with_rows = [number for number, progress in enumerate(query.recentProgress) if progress["numInputRows"]]
    assert [late[number] for number in with_rows] == [dropped[number] for number in with_rows]
    lost = 1900 - stream.table().count()
    assert sum(dropped) == lost
    assert lost == 1400, "all but the first two batches: Spark uses the watermark of the previous batch"


def figures(query: StreamingQuery) -> list[dict[str, Any]]:
    return [json.loads(each["sources"][0]["latestOffset"])["headrace:metrics"] for each in query.recentProgress]


def late_records(query: Run) -> int:
    shown = query.reader.reportLatestOffset()
    assert shown is not None
    return int(shown["headrace:metrics"]["lateRecords"])


@pytest.mark.parametrize("is_member", [False, True], ids=["alone", "member"])
def test_late_records_are_counted_behind_a_transaction_marker(
    servers: str, topic: str, admin: Admin, caplog: pytest.LogCaptureFixture, is_member: bool
) -> None:
    """The last offset of a log may be a transaction marker, whose timestamp Spark does not see."""
    writer = Writer(servers, transactional_id=f"late-{topic}")
    writer.producer.begin_transaction()
    writer.send(topic, each_second(0, 50, 500))
    writer.producer.commit_transaction(30)
    admin.wait_end(topic, 501)
    group = {"group.membership": "true", "kafka.group.id": unique("late")} if is_member else {}
    query = Run(servers, {"subscribe": topic, **LANES, **group}, {topic: {"0": 50, "1": 50}})
    try:
        query.begin(available_now=True)
        seen = []
        while query.trigger() is not None:
            seen.append(late_records(query))
        assert seen == [0, 0, 51], "Spark uses the watermark of the previous batch"
        assert caplog.text.count("older than the watermark") == 1
        assert query.trigger() is None
        assert late_records(query) == 0
    finally:
        query.stop()


def test_a_deleted_watermark_record_does_not_stop_the_query(servers: str, topic: str, admin: Admin) -> None:
    write(servers, topic, each_second(0, 50, 500))
    query = Run(servers, {"subscribe": topic, "failOnDataLoss": "false", **LANES}, {topic: {"0": 50, "1": 50}})
    try:
        query.begin()
        first = query.trigger()
        assert first
        admin.delete_records(topic, 500)  # including the record that determines the watermark
        while (found := query.trigger()) is not None:
            assert found == []
            assert late_records(query) == 0
    finally:
        query.stop()
