"""A batch DataFrame that is used more than once: in one query, in several queries, through a view.

Spark keeps the tasks of a Python source for each DataFrame that load() returns, for all filters and later actions. So
the tasks must be correct for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, numbered, write
from support.harness.waiting import wait_for

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
pytestmark = pytest.mark.timeout(300)


def loaded(spark: SparkSession, servers: str, *topics: str) -> DataFrame:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", ",".join(topics)).load()


@pytest.fixture(params=["false", "true"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param
    spark.conf.unset(PUSHDOWN)


@pytest.fixture(scope="module")
def two(admin: Admin, servers: str) -> tuple[str, str]:
    """Two topics of two partitions, with 60 and 40 records per partition."""
    found = admin.create("reuse-a", 2), admin.create("reuse-b", 2)
    for topic, count in zip(found, (60, 40), strict=True):
        write(servers, topic, [*numbered(count, 0), *numbered(count, 1)])
    return found


@pytest.mark.usefixtures("pushdown")
class TestFilters:
    """Filters belong to one scan and tasks to all scans, so filters must not reduce the ranges."""

    def test_a_union_of_two_filters_has_the_rows_of_both(
        self, spark: SparkSession, servers: str, two: tuple[str, str]
    ) -> None:
        frame, (a, b) = loaded(spark, servers, *two), two
        both = frame.where(frame.topic == a).union(frame.where(frame.topic == b))
        assert both.count() == 200
        assert {row.topic: row["count"] for row in both.groupBy("topic").count().collect()} == {a: 120, b: 80}

    def test_a_join_of_a_frame_with_itself_filters_each_side(
        self, spark: SparkSession, servers: str, two: tuple[str, str]
    ) -> None:
        frame, (a, b) = loaded(spark, servers, *two), two
        place = ["partition", "offset"]
        ours, theirs = frame.where(frame.topic == a).select(*place), frame.where(frame.topic == b).select(*place)
        assert ours.join(theirs, place).count() == 80

    def test_a_view_filters_each_query_anew(self, spark: SparkSession, servers: str, two: tuple[str, str]) -> None:
        loaded(spark, servers, *two).createOrReplaceTempView("reused")
        a, b = two

        def count(rest: str) -> int:
            return int(spark.sql(f"select count(*) as rows from reused {rest}").collect()[0].rows)

        assert count(f"where topic = '{a}' and partition = 1 and offset < 10") == 10
        assert count(f"where topic = '{b}'") == 80
        assert count("where `offset` in (7, 50)") == 6
        assert count("") == 200
        assert count(f"where topic = '{a}' and offset > (select max(offset) from reused where topic = '{b}')") == 40

    def test_filters_of_one_action_do_not_affect_the_next(
        self, spark: SparkSession, servers: str, two: tuple[str, str]
    ) -> None:
        frame, (a, b) = loaded(spark, servers, *two), two
        assert frame.where(frame.topic == a).count() == 120
        assert frame.where(frame.topic == b).count() == 80
        assert frame.where("offset >= 50").count() == 20
        assert frame.count() == 200
        first, second = frame.where("partition = 0"), frame.where("partition = 1")
        assert (first.count(), second.count(), first.count()) == (100, 100, 100)

    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            ("partition = 1", 100),
            ("partition > 0 and offset >= 10 and offset < 20", 20),
            ("topic = 'nothing'", 0),
            ("topic like 'reuse-a%'", 120),
            ("value = cast('7' as binary) or offset = 9", 8),
            ("partition in (0, 2) and offset <= 1", 4),
        ],
    )
    def test_a_filter_returns_exactly_the_rows_that_match(
        self, spark: SparkSession, servers: str, two: tuple[str, str], condition: str, expected: int
    ) -> None:
        assert loaded(spark, servers, *two).filter(condition).count() == expected

    def test_filters_by_time_return_the_rows_of_that_time(
        self, spark: SparkSession, servers: str, admin: Admin
    ) -> None:
        topic = admin.create("times", retention_ms=-1)
        write(servers, topic, [Outgoing(b"x", timestamp=1000 * (number % 7 + 1)) for number in range(21)])
        frame = loaded(spark, servers, topic)
        since = F.timestamp_millis(F.lit(5000))
        assert frame.filter(frame.timestamp >= since).count() == 9
        assert frame.filter(frame.timestamp < since).count() == 12


class TestLaterActions:
    """Each action reads the current records, as with Spark's own source (test_spark_beside_jvm.py compares both)."""

    def test_later_actions_read_new_records(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("grows", 2)
        write(servers, topic, numbered(100, 0))
        frame = loaded(spark, servers, topic)
        frame.createOrReplaceTempView("grown")
        late = frame.where("offset >= 90")
        assert (frame.count(), late.count(), len(late.collect())) == (100, 10, 10)
        write(servers, topic, [*numbered(30, 0), *numbered(20, 1)])
        assert (frame.count(), late.count(), len(late.collect())) == (150, 40, 40)
        assert spark.sql("select count(*) as rows from grown").collect()[0].rows == 150

    def test_later_actions_read_new_records_in_split_ranges(
        self, spark: SparkSession, servers: str, admin: Admin
    ) -> None:
        topic = admin.create("grows", 1)
        write(servers, topic, numbered(100))
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers)
        frame = reader.options(subscribe=topic, minPartitions="4").load()
        assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(100))
        write(servers, topic, numbered(50))
        assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(150))

    def test_later_actions_start_at_the_new_beginning_of_the_log(
        self, spark: SparkSession, servers: str, admin: Admin
    ) -> None:
        topic = admin.create("shrinks", 1)
        write(servers, topic, numbered(100))
        frame = loaded(spark, servers, topic)
        assert frame.count() == 100
        admin.delete_records(topic, 40)
        assert frame.count() == 60, "earliest is the current log start, so no requested record is lost"

    def test_later_actions_read_new_partitions_and_topics(
        self, spark: SparkSession, servers: str, admin: Admin
    ) -> None:
        prefix = unique("grows")
        topic = admin.create("", 1, name=f"{prefix}.one")
        write(servers, topic, numbered(10))
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers)
        by_name = reader.option("subscribe", topic).load()
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers)
        by_pattern = reader.option("subscribePattern", f"{prefix}[.].*").load()
        assert (by_name.count(), by_pattern.count()) == (10, 10)
        admin.add_partitions(topic, 3)
        write(servers, topic, numbered(7, 2))
        write(servers, admin.create("", 2, name=f"{prefix}.two"), numbered(5, 1))
        assert (by_name.count(), by_pattern.count()) == (17, 22)

    def test_later_actions_keep_given_ending_offsets(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("grows", 2)
        write(servers, topic, [*numbered(100, 0), *numbered(100, 1)])
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers)
        ends = f'{{"{topic}":{{"0":50,"1":-1}}}}'
        frame = reader.options(subscribe=topic, endingOffsets=ends).load()
        assert frame.count() == 150
        write(servers, topic, [*numbered(10, 0), *numbered(10, 1)])
        assert frame.count() == 160, "only one partition has a fixed end"

    def test_later_actions_keep_given_timestamps(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("times", retention_ms=-1)
        write(servers, topic, [Outgoing(b"x", timestamp=1000 * number) for number in range(1, 11)])
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers)
        frame = reader.options(subscribe=topic, startingTimestamp="4000", endingTimestamp="12000").load()
        assert frame.count() == 7
        write(servers, topic, [Outgoing(b"x", timestamp=1000 * number) for number in range(11, 21)])
        assert frame.count() == 8, "from 4 s to before 12 s"

    @pytest.mark.pyspark("4.1")
    def test_later_actions_fail_for_a_deleted_topic(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("deleted")
        write(servers, topic, numbered(10))
        frame = loaded(spark, servers, topic)
        assert frame.count() == 10
        admin.delete(topic)
        wait_for("the topic to be gone", lambda: not admin.is_there(topic))
        with pytest.raises(PySparkException, match="was deleted after the query was planned"):
            frame.count()
