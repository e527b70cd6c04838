"""Streaming queries with every supported PySpark: limits, interrupted batches, and options of newer versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace.spark.versions import HAS_ADMISSION_CONTROL
from support.brokers.admin import Admin
from support.brokers.produce import numbered, numbered_topic, write
from support.harness.waiting import wait_for
from support.spark.batches import Batches
from support.spark.streams import DEADLINE, Stream, grid

pytestmark = pytest.mark.timeout(400)
before_admission_control = pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="for PySpark 4.0 and 4.1")
WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
OFTEN = {"processingTime": "50 milliseconds"}


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("versions", 2), 2, 100)


@pytest.fixture
def stream(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, servers, topic, tmp_path)


def test_a_limited_query_that_fails_repeats_its_batch_and_reads_every_record_once(
    stream: Stream, servers: str, topic: str
) -> None:
    stream.options["maxOffsetsPerTrigger"] = 60
    batches = Batches(stream)
    batches.break_off(1, **OFTEN)
    write(servers, topic, numbered(20, 0))
    query = batches.start(**OFTEN)
    try:
        wait_for("all records", lambda: len(batches.places()) == 220, DEADLINE, every=0.1)
    finally:
        query.stop()
        query.awaitTermination(DEADLINE)
    assert batches.is_run_again == {1: batches.rows[1]}
    assert [len(rows) for _, rows in sorted(batches.rows.items()) if rows] == [60, 60, 60, 40]
    assert batches.places() == sorted(grid(2, 100) + [(0, offset) for offset in range(100, 120)])


@before_admission_control
def test_available_now_runs_one_batch_that_keeps_to_the_limit(stream: Stream) -> None:
    stream.options["maxOffsetsPerTrigger"] = 120
    stream.run()
    assert stream.places() == grid(2, 60)
    stream.run()
    assert stream.places() == grid(2, 100)


@before_admission_control
def test_spark_s_wrapper_for_available_now_is_rejected(spark: SparkSession, stream: Stream) -> None:
    spark.conf.set(WRAPPER, "true")
    try:
        with pytest.raises(StreamingQueryException, match=f"{WRAPPER}=true needs PySpark 4.2"):
            stream.run()
    finally:
        spark.conf.set(WRAPPER, "false")
    stream.run()
    assert stream.places() == grid(2, 100)
    spark.conf.set(WRAPPER, "true")
    try:
        with pytest.raises(StreamingQueryException, match=f"{WRAPPER}=true needs PySpark 4.2"):
            stream.run()
    finally:
        spark.conf.unset(WRAPPER)


@before_admission_control
def test_an_option_that_needs_a_newer_version_fails_the_query_at_its_start(stream: Stream) -> None:
    stream.options |= {"group.membership": "true", "kafka.group.id": "g"}
    with pytest.raises(StreamingQueryException, match=r"group.membership needs PySpark 4.2 or newer: .*This is 4\."):
        stream.run()
