"""spark.read.format("headrace") with a real local session and a real broker."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, Writer, numbered, write
from support.brokers.topic_contents import oracle_rows

pytestmark = pytest.mark.timeout(300)


def kafka(spark: SparkSession, servers: str, topic: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", servers)
    if topic is not None:
        reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader.load()


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    """Three partitions with 100, 200 and 300 records."""
    topic = admin.create("batch", 3)
    for number in range(3):
        write(servers, topic, numbered(100 * (number + 1), number))
    return topic


@pytest.mark.parametrize("codec", ["none", "zstd"])  # test_spark_beside_jvm.py has all codecs
def test_every_column_of_a_batch_has_the_written_values(
    spark: SparkSession, admin: Admin, servers: str, codec: str
) -> None:
    topic = admin.create("columns", 2, retention_ms=-1)
    records = [
        Outgoing(b"value", b"key", 0, 1_700_000_000_123, [("a", b"1"), ("a", None), ("b", b"")]),
        Outgoing(None, None, 0, 1_700_000_000_124),
        Outgoing(b"", b"", 1, 1),
        *(Outgoing(b"x" * size, b"%d" % size, 1, 1_700_000_001_000 + size) for size in (1, 100, 50_000)),
    ]
    write(servers, topic, records, compression_codec=codec)
    rows = kafka(spark, servers, topic, includeHeaders=True).orderBy("partition", "offset").collect()
    expected = oracle_rows(servers, topic, 2)
    assert [(row.partition, row.offset) for row in rows] == [(each.partition, each.offset) for each in expected]
    for row, each in zip(rows, expected, strict=True):
        assert row.topic == topic
        assert row.key == (None if each.key is None else bytearray(each.key))
        assert row.value == (None if each.value is None else bytearray(each.value))
        assert round(row.timestamp.timestamp() * 1000) == each.timestamp
        assert row.timestampType == 0
    assert [(h.key, h.value) for h in rows[0].headers] == [("a", bytearray(b"1")), ("a", None), ("b", bytearray())]
    assert rows[1].headers is None


def test_the_schema_is_that_of_spark_s_own_source(spark: SparkSession, servers: str, topic: str) -> None:
    columns = (
        "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
    )
    assert kafka(spark, servers, topic).schema.simpleString() == _simple(spark, columns)
    with_headers = f"{columns}, headers array<struct<key:string,value:binary>>"
    assert kafka(spark, servers, topic, includeHeaders=True).schema.simpleString() == _simple(spark, with_headers)


def _simple(spark: SparkSession, columns: str) -> str:
    return spark.createDataFrame([], columns).schema.simpleString()


class TestWhatIsRead:
    def test_a_batch_reads_all_of_a_topic(self, spark: SparkSession, servers: str, topic: str) -> None:
        found = places(kafka(spark, servers, topic))
        assert found == [(number, offset) for number in range(3) for offset in range(100 * (number + 1))]

    def test_a_batch_reads_only_assigned_partitions(self, spark: SparkSession, servers: str, topic: str) -> None:
        found = kafka(spark, servers, assign=f'{{"{topic}":[0,2]}}')
        assert {row.partition for row in found.select("partition").distinct().collect()} == {0, 2}

    def test_a_batch_reads_topics_by_pattern(self, spark: SparkSession, servers: str, topic: str, admin: Admin) -> None:
        prefix = unique("pat")
        for name in ("one", "two"):
            write(servers, admin.create("", name=f"{prefix}.{name}"), numbered(5))
        found = kafka(spark, servers, subscribePattern=f"{prefix}[.](one|two)").groupBy("topic").count().collect()
        assert {row.topic: row["count"] for row in found} == {f"{prefix}.one": 5, f"{prefix}.two": 5}

    def test_a_batch_reads_between_given_offsets(self, spark: SparkSession, servers: str, topic: str) -> None:
        frame = kafka(
            spark,
            servers,
            topic,
            startingOffsets=f'{{"{topic}":{{"0":-2,"1":150,"2":290}}}}',
            endingOffsets=f'{{"{topic}":{{"0":10,"1":160,"2":-1}}}}',
        )
        assert places(frame) == [
            *((0, offset) for offset in range(10)),
            *((1, offset) for offset in range(150, 160)),
            *((2, offset) for offset in range(290, 300)),
        ]

    def test_a_batch_reads_between_given_times(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("times", retention_ms=-1)
        write(servers, topic, [Outgoing(b"x", timestamp=1000 * number) for number in range(1, 11)])
        assert places(kafka(spark, servers, topic, startingTimestamp=4000, endingTimestamp=8000)) == [
            (0, offset) for offset in range(3, 7)
        ]
        each = f'{{"{topic}":{{"0":9000}}}}'
        assert places(kafka(spark, servers, topic, startingOffsetsByTimestamp=each)) == [(0, 8), (0, 9)]
        with pytest.raises(PySparkException, match="no record at or after"):
            kafka(spark, servers, topic, startingTimestamp=11_000).count()
        late = kafka(spark, servers, topic, startingTimestamp=11_000, startingOffsetsByTimestampStrategy="latest")
        assert late.count() == 0

    def test_a_batch_reads_only_committed_transactions(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        topic = admin.create("tx")
        writer = Writer(servers, transactional_id=unique("tx"))
        for commits in (True, False, True):
            writer.producer.begin_transaction()
            writer.send(topic, numbered(5))
            writer.flush()
            writer.producer.commit_transaction(30) if commits else writer.producer.abort_transaction(30)
        admin.wait_end(topic, 3 * 6)
        assert kafka(spark, servers, topic).count() == 15
        assert kafka(spark, servers, topic, kafka__isolation__level="read_committed").count() == 10

    def test_partition_options_decide_the_number_of_spark_tasks(
        self, spark: SparkSession, servers: str, topic: str
    ) -> None:
        assert kafka(spark, servers, topic).rdd.getNumPartitions() == 3
        assert kafka(spark, servers, topic, minPartitions=6).rdd.getNumPartitions() == 6
        split = kafka(spark, servers, topic, maxRecordsPerPartition=50)
        assert split.rdd.getNumPartitions() == 12
        assert split.count() == 600

    def test_a_batch_of_an_empty_topic_has_no_rows(self, spark: SparkSession, servers: str, admin: Admin) -> None:
        assert kafka(spark, servers, admin.create("empty")).count() == 0


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
            ({"startingOffsets": "latest"}, "would read nothing"),
            ({"startingOffsets": '{"t":{"0":1}}'}, "must name exactly the partitions"),
            ({"kafka__enable__auto__commit": "true"}, "checkpoint"),
        ],
    )
    def test_wrong_options_of_a_batch_are_refused(
        self, spark: SparkSession, servers: str, topic: str, options: dict[str, str], says: str
    ) -> None:
        with pytest.raises(PySparkException, match=says):
            kafka(spark, servers, topic, **options).count()

    def test_a_batch_of_a_topic_that_is_not_there_is_refused(self, spark: SparkSession, servers: str) -> None:
        with pytest.raises(PySparkException, match="topics that do not exist: nowhere"):
            kafka(spark, servers, "nowhere").count()

    def test_a_batch_without_a_broker_fails_within_the_api_timeout(self, spark: SparkSession, topic: str) -> None:
        began = time.monotonic()
        with pytest.raises(PySparkException, match=r"127\.0\.0\.1:9"):
            kafka(spark, "127.0.0.1:9", topic, kafka__default__api__timeout__ms=1000).count()
        assert time.monotonic() - began < 55, "less than the default timeout"


class TestDeletedRecords:
    @pytest.fixture
    def shortened(self, admin: Admin, servers: str) -> str:
        topic = admin.create("short")
        write(servers, topic, numbered(100))
        admin.delete_records(topic, 40)
        return topic

    def test_deleted_records_fail_a_batch(self, spark: SparkSession, servers: str, shortened: str) -> None:
        assert kafka(spark, servers, shortened).count() == 60
        with pytest.raises(PySparkException, match="its log begins at 40"):
            kafka(spark, servers, shortened, startingOffsets=f'{{"{shortened}":{{"0":10}}}}').count()

    def test_deleted_records_are_skipped_without_fail_on_data_loss(
        self, spark: SparkSession, servers: str, shortened: str
    ) -> None:
        frame = kafka(spark, servers, shortened, failOnDataLoss=False, startingOffsets=f'{{"{shortened}":{{"0":10}}}}')
        assert places(frame) == [(0, offset) for offset in range(40, 100)]
