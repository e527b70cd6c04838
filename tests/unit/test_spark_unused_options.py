"""Options that mean nothing in a query: none of them breaks it, and the log names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from headrace import Consumer
from headrace.config import ConsumerConfig, dotted
from headrace.errors import HeadraceError
from headrace.spark.consumer_settings import SETTINGS, UNUSED, idle_consumer
from headrace.spark.membership import member_consumer
from headrace.spark.option_values import OptionError
from headrace.spark.reading import reading_consumer
from headrace.spark.source import HeadraceSource

BASE = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
MEMBER = {"group.membership": "true", "kafka.group.id": "g"}
LANES = {"enable.parallel.rebalance": "true"}
SHARED = {"share.group.id": "s"}


def default_settings() -> dict[str, str]:
    """Every setting of consumers that has a default, with it."""
    found = {
        dotted(field.name): field.default
        for field in dataclasses.fields(ConsumerConfig)
        if field.default is not None and field.default is not dataclasses.MISSING
    }
    return {name: _text(value) for name, value in found.items() if name != "auto.offset.reset"}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("make", [idle_consumer, reading_consumer, member_consumer])
def test_every_setting_reaches_the_consumers(make: Callable[[Mapping[str, str]], Consumer]) -> None:
    given = {name: value for name, value in default_settings().items() if name != "enable.auto.commit"}
    assert len(given) > 40
    options = BASE | MEMBER | {f"kafka.{name}": value for name, value in given.items()}
    reader = HeadraceSource(options).streamReader(HeadraceSource(options).schema())
    settings = reader._groups.settings  # type: ignore[attr-defined]
    assert settings.keys() >= (SETTINGS - UNUSED) & given.keys()
    make(settings).close()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"kafka.allow.auto.create.topics": "true", "kafka.max.poll.records": "5"}, "allow.auto.create.topics"),
        (MEMBER | {"kafka.revoke.mode": "immediate"}, "kafka.revoke.mode"),
        ({"groupIdPrefix": "p"}, "groupIdPrefix"),
        ({"useuninterruptiblethread": "true"}, "useUninterruptibleThread"),
        ({"kafka.some.java.setting": "1", "wholly.other": "2"}, "kafka.some.java.setting, wholly.other"),
        ({"kafka.group.id": "g", "kafka.session.timeout.ms": "1000"}, "kafka.group.id, kafka.session.timeout.ms"),
        ({"kafka.parallel.rebalance.min.lag": "5"}, "kafka.parallel.rebalance.min.lag"),
        (LANES | {"maxOffsetsPerTriggerShares": "proportional"}, "maxOffsetsPerTriggerShares"),
        (
            SHARED | {"failOnDataLoss": "false", "kafka.isolation.level": "read_committed", "kafka.group.id": "g"},
            "failOnDataLoss, kafka.group.id, kafka.isolation.level",
        ),
        (SHARED | {"maxRecordsPerPartition": "5", "maxTriggerDelay": "5m"}, "maxRecordsPerPartition, maxTriggerDelay"),
    ],
)
def test_they_are_logged(given: dict[str, str], names: str, caplog: pytest.LogCaptureFixture) -> None:
    reader = reader_of(given)
    assert not caplog.records, "Spark makes two readers for a query, and calls one of them"
    for _ in range(2):
        reader.getDefaultReadLimit()
    (line,) = [record.getMessage() for record in caplog.records if "mean nothing" in record.getMessage()]
    assert names in line


@pytest.mark.parametrize(
    "given",
    [
        {},
        MEMBER | {"kafka.session.timeout.ms": "20000", "kafka.group.instance.id": "i"},
        {"commitOffsets": "true", "kafka.group.id": "g"},
        LANES | {"maxOffsetsPerTriggerShares": "fair"},
        SHARED | {"kafka.max.poll.interval.ms": "1000", "maxOffsetsPerTrigger": "5"},
    ],
)
def test_those_with_a_meaning_are_not(given: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    reader_of(given).getDefaultReadLimit()
    assert "mean nothing" not in caplog.text


def test_in_a_batch_query(caplog: pytest.LogCaptureFixture) -> None:
    source = HeadraceSource(
        BASE | {"maxTriggerDelay": "5m", "maxOffsetsPerTrigger": "7", "kafka.default.api.timeout.ms": "100"}
    )
    reader = source.reader(source.schema())
    with pytest.raises(HeadraceError):
        reader.partitions()  # there is no broker
    assert "mean nothing in this query: maxOffsetsPerTrigger, maxTriggerDelay" in caplog.text


def reader_of(given: dict[str, str]) -> Any:
    source = HeadraceSource(BASE | given)
    return source.streamReader(source.schema())


@pytest.mark.parametrize("kind", [StringType(), BinaryType()])
def test_the_schema_is_a_fixed_one(kind: DataType) -> None:
    given = StructType([StructField("value", kind)])
    source = HeadraceSource(BASE)
    with pytest.raises(OptionError, match="the schema is a fixed one"):
        source.reader(given)
    reader = source.streamReader(given)
    with pytest.raises(OptionError, match="the schema is a fixed one"):
        reader.initialOffset()


@pytest.mark.parametrize("given", [MEMBER, SHARED])
def test_trigger_once_is_refused_where_one_batch_is_not_enough(given: dict[str, str]) -> None:
    """It alone asks for all that is available."""
    reader = reader_of(given)
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    with pytest.raises(OptionError, match=r"trigger\(once=True\).*use availableNow=True"):
        reader.latestOffset({}, ReadAllAvailable())
