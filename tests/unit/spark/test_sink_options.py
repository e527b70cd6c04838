"""Options and columns of the sink, without a Spark session."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.spark.options.parsers import OptionError
from headrace.spark.options.sink import SinkOptions, unused_sink_options
from headrace.spark.sink.columns import written_columns

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
HEADERS = "array<struct<key:string,value:binary>>"
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,binary>": MapType(StringType(), BinaryType()),
    HEADERS: ArrayType(
        StructType([StructField("key", StringType(), False), StructField("value", BinaryType())]), False
    ),
}


def parse(**options: str) -> SinkOptions:
    return SinkOptions.parse(SERVERS | {name.replace("__", "."): value for name, value in options.items()})


class TestOptions:
    def test_settings_of_the_producer_have_a_prefix(self) -> None:
        options = parse(Topic="orders", kafka__linger__ms="50", kafka__group__id="readers", subscribe="orders")
        assert options.topic == "orders"
        assert options.sink_id is None
        assert options.settings == {
            "bootstrap.servers": "localhost:9092",
            "linger.ms": "50",
            "client.id": "headrace-spark",
        }

    def test_exactly_once_writes_have_an_id(self) -> None:
        options = parse(topic="t", exactlyonce="TRUE", sinkid="orders.v2", decisionTopic="internal")
        assert (options.sink_id, options.decision_topic) == ("orders.v2", "internal")
        assert pickle.loads(pickle.dumps(options)) == options

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"kafka.bootstrap.servers": " "}, "The option kafka.bootstrap.servers is missing"),
            ({"kafka.transactional.id": "x"}, "kafka.transactional.id is not supported: use exactlyOnce=true"),
            ({"kafka.key.serializer": "x"}, "kafka.key.serializer is not supported"),
            ({"kafka.interceptor.classes": "x"}, "kafka.interceptor.classes is not supported"),
            ({"kafka.partitioner.class": "x"}, "headrace cannot run Java classes"),
            ({"kafka.linger.mss": "5"}, "Unknown option kafka.linger.mss: did you mean kafka.linger.ms?"),
            ({"kafka.acks": "3"}, "kafka.acks='3': must be all"),
            ({"acks": "1"}, "Unknown option acks: settings of the producer have the prefix kafka., use kafka.acks"),
            ({"topics": "a"}, "Unknown option topics: did you mean topic?"),
            ({"exactlyOnce": "yes"}, "exactlyOnce='yes' must be true or false"),
            ({"includeHeaders": "1"}, "includeHeaders='1' must be true or false"),
            ({"exactlyOnce": "true"}, "exactlyOnce=true needs a sinkId"),
            ({"sinkId": "s"}, "sinkId is for exactly-once writes only"),
            ({"exactlyOnce": "true", "sinkId": "a b"}, "sinkId='a b' can only have letters, digits"),
            ({"exactlyOnce": "true", "sinkId": "s", "kafka.acks": "1"}, "transactional.id"),
            ({"topic": ""}, "The option topic is empty"),
        ],
    )
    def test_wrong_options_are_refused(self, options: dict[str, str], text: str) -> None:
        with pytest.raises(OptionError) as caught:
            SinkOptions.parse(SERVERS | options)
        assert text in str(caught.value)

    def test_unknown_options_are_listed(self) -> None:
        given = {**SERVERS, "topic": "t", "wholly.other": "1", "kafka.a.plugin": "2", "checkpointLocation": "/tmp"}
        assert unused_sink_options(given) == ["kafka.a.plugin", "wholly.other"]
        SinkOptions.parse(given)

    def test_secrets_are_not_shown(self) -> None:
        assert "hunter2" not in repr(parse(topic="t", kafka__sasl__password="hunter2"))


class TestColumns:
    def columns(self, schema: str, topic: str | None = None) -> list[str]:
        columns = [column.split(" ") for column in schema.split(", ")]
        return written_columns(StructType([StructField(name, TYPES[kind]) for name, kind in columns]), topic)[0]

    def test_known_columns_are_written(self) -> None:
        schema = (
            f"topic string, other int, value binary, key string, partition int, headers {HEADERS}, timestamp timestamp"
        )
        assert self.columns(schema) == ["topic", "value", "key", "partition", "headers"]
        assert self.columns(schema, "given") == ["value", "key", "partition", "headers"]

    def test_the_type_of_an_unused_topic_column_does_not_matter(self) -> None:
        assert self.columns("topic int, value string", "given") == ["value"]

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            ("value string", "No topic is given. Set the option topic, or add a column topic"),
            ("topic string, Value string", "The column value is missing: the columns are topic, Value"),
            ("topic string, value int", "The column value is int, but must be string or binary"),
            ("topic string, value string, partition bigint", "The column partition is bigint, but must be int"),
            ("topic string, value string, headers map<string,binary>", f"but must be {HEADERS}"),
            ("topic binary, value string", "The column topic is binary, but must be string"),
        ],
    )
    def test_wrong_columns_are_refused(self, schema: str, text: str) -> None:
        with pytest.raises(OptionError) as caught:
            self.columns(schema)
        assert text in str(caught.value)
