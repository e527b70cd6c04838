"""Faults during a batch: brokers and executors die, retention overtakes the task, topics grow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace import LocalBroker
from support.brokers.admin import Admin
from support.brokers.produce import numbered, write
from support.spark.breakpoint import RECORD_BYTES, RECORDS, SMALL_STEPS, BatchBreakpoint
from support.spark.cluster import SparkCluster
from support.spark.drivers import Driver

DEADLINE = 150.0
pytestmark = pytest.mark.timeout(400)


class Counting:
    """Counts the rows of a query on another thread."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._rows: int | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._rows = self._frame.selectExpr("count(*) as rows").collect()[0].rows
        except BaseException as failure:  # noqa: BLE001  # rows() raises it
            self._failure = failure

    def rows(self) -> int | None:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the query does not end"
        if self._failure is not None:
            raise self._failure
        return self._rows


def slowly(spark: SparkSession, servers: str, topic: str, stop: BatchBreakpoint, **options: Any) -> Counting:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    return Counting(stop.before(reader.options(**SMALL_STEPS, **options).load()))


@pytest.fixture
def stop(tmp_path: Path) -> BatchBreakpoint:
    return BatchBreakpoint(tmp_path)


def long_topic(servers: str, create: Callable[..., str], **settings: Any) -> str:
    topic = create("long", **settings)
    write(servers, topic, numbered(RECORDS, size=RECORD_BYTES))
    return topic


@pytest.mark.soak
def test_a_batch_survives_a_broker_that_dies(
    spark: SparkSession, whole_cluster: LocalBroker, cluster_admin: Admin, stop: BatchBreakpoint
) -> None:
    servers = whole_cluster.bootstrap_servers
    topic = long_topic(servers, cluster_admin.create, replication=3)
    query = slowly(spark, servers, topic, stop)
    stop.wait()
    whole_cluster.kill(cluster_admin.leader(topic))
    stop.open()
    assert query.rows() == RECORDS


class TestRetentionOvertakesATask:
    def test_a_task_that_retention_overtakes_fails(
        self, spark: SparkSession, servers: str, admin: Admin, stop: BatchBreakpoint
    ) -> None:
        topic = long_topic(servers, admin.create)
        query = slowly(spark, servers, topic, stop)
        stop.wait()
        admin.delete_records(topic, RECORDS - 100)
        stop.open()
        with pytest.raises(PySparkException, match="are no longer in the log"):
            query.rows()

    def test_a_task_that_retention_overtakes_continues_without_fail_on_data_loss(
        self, spark: SparkSession, servers: str, admin: Admin, stop: BatchBreakpoint
    ) -> None:
        topic = long_topic(servers, admin.create)
        query = slowly(spark, servers, topic, stop, failOnDataLoss="false")
        stop.wait()
        admin.delete_records(topic, RECORDS - 100)
        stop.open()
        rows = query.rows()
        assert rows is not None
        assert 200 <= rows < RECORDS, "the records read before, and the last hundred"


@pytest.mark.soak
def test_a_task_fails_when_no_records_arrive_within_the_poll_timeout(
    spark: SparkSession, whole_cluster: LocalBroker, cluster_admin: Admin, stop: BatchBreakpoint
) -> None:
    """The only broker of the partition is down: the task fails after kafkaConsumer.pollTimeoutMs."""
    servers = whole_cluster.bootstrap_servers
    topic = long_topic(servers, cluster_admin.create, replicas=[[3]])
    query = slowly(spark, servers, topic, stop, **{"kafkaConsumer.pollTimeoutMs": "1500"})
    stop.wait()
    whole_cluster.kill(3)
    stop.open()
    with pytest.raises(PySparkException, match=r"No records of .* arrived from offset \d+ on for 1\.5 s"):
        query.rows()


@pytest.mark.soak
def test_a_batch_survives_an_executor_that_dies(
    servers: str, admin: Admin, stop: BatchBreakpoint, tmp_path: Path
) -> None:
    topic = admin.create("long", 2)
    for number in range(2):
        write(servers, topic, numbered(RECORDS, number, size=RECORD_BYTES))
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest", **SMALL_STEPS}
    with SparkCluster(tmp_path) as cluster:
        job = {"master": cluster.url, "directory": str(tmp_path), "options": options}
        with Driver("spark_on_cluster.py", job, tmp_path / "driver.log") as driver:
            stop.executor().kill()
            stop.open()
            found = driver.reported("places")
            assert driver.end() == 0
    assert found == [[number, offset] for number in range(2) for offset in range(RECORDS)]
