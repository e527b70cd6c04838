"""Options without effect in a query: none of them breaks it, and the log names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from headrace import Consumer
from headrace.config.consumer import ConsumerConfig, dotted
from headrace.errors import HeadraceError
from headrace.spark.group.member import create_member_consumer
from headrace.spark.offset_lookup import create_standalone_consumer
from headrace.spark.options.consumer import CONSUMER_SETTINGS, UNUSED_SETTINGS
from headrace.spark.options.parsers import OptionError
from headrace.spark.source import HeadraceSource
from headrace.spark.versions import ReadAllAvailable, ReadMaxRows
from headrace.spark.worker.reader import create_task_consumer

# Settings of the consumer that cannot be set behind `kafka.`
OWN = {
    "enable.auto.commit",
    "enable.parallel.rebalance",
    "parallel.rebalance.min.lag",
    "parallel.rebalance.backlog.share",
}
BASE = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
MEMBER = {"group.membership": "true", "kafka.group.id": "g"}
LANES = {"enable.parallel.rebalance": "true"}
SHARED = {"share.group.id": "s"}


def default_settings() -> dict[str, str]:
    """Every consumer setting that has a default, set to that default."""
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


@pytest.mark.pyspark("4.2")
@pytest.mark.parametrize("make", [create_standalone_consumer, create_task_consumer, create_member_consumer])
def test_every_setting_reaches_the_consumers(make: Callable[[Mapping[str, str]], Consumer]) -> None:
    given = {name: value for name, value in default_settings().items() if name not in OWN}
    assert len(given) > 40
    options = BASE | MEMBER | {f"kafka.{name}": value for name, value in given.items()}
    reader = HeadraceSource(options).streamReader(HeadraceSource(options).schema())
    settings = reader._group_options.settings  # type: ignore[attr-defined]
    assert settings.keys() >= (CONSUMER_SETTINGS - UNUSED_SETTINGS) & given.keys()
    make(settings).close()


@pytest.mark.pyspark("4.2")
@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"kafka.allow.auto.create.topics": "true", "kafka.max.poll.records": "5"}, "allow.auto.create.topics"),
        (MEMBER | {"kafka.revoke.mode": "immediate"}, "kafka.revoke.mode"),
        ({"groupIdPrefix": "p"}, "groupIdPrefix"),
        ({"useuninterruptiblethread": "true"}, "useUninterruptibleThread"),
        ({"kafka.some.java.setting": "1", "wholly.other": "2"}, "kafka.some.java.setting, wholly.other"),
        ({"kafka.group.id": "g", "kafka.session.timeout.ms": "1000"}, "kafka.group.id, kafka.session.timeout.ms"),
        ({"kafka.poll.drain.strategy": "5"}, "kafka.poll.drain.strategy"),
        (LANES | {"maxOffsetsPerTriggerShares": "proportional"}, "maxOffsetsPerTriggerShares"),
        (
            SHARED | {"failOnDataLoss": "false", "kafka.isolation.level": "read_committed", "kafka.group.id": "g"},
            "failOnDataLoss, kafka.group.id, kafka.isolation.level",
        ),
        (SHARED | {"maxRecordsPerPartition": "5", "maxTriggerDelay": "5m"}, "maxRecordsPerPartition, maxTriggerDelay"),
    ],
)
def test_options_without_a_meaning_are_logged_once(
    given: dict[str, str], names: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = reader_of(given)
    assert not caplog.records, "Spark creates two readers for a query and calls only one of them"
    for _ in range(2):
        reader.getDefaultReadLimit()
    (line,) = [record.getMessage() for record in caplog.records if "have no effect" in record.getMessage()]
    assert names in line


@pytest.mark.pyspark("4.2")
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
def test_options_with_a_meaning_are_not_logged(given: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    reader_of(given).getDefaultReadLimit()
    assert "have no effect" not in caplog.text


def test_options_without_a_meaning_in_a_batch_query_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    source = HeadraceSource(
        BASE | {"maxTriggerDelay": "5m", "maxOffsetsPerTrigger": "7", "kafka.default.api.timeout.ms": "100"}
    )
    reader = source.reader(source.schema())
    with pytest.raises(HeadraceError):
        reader.partitions()  # there is no broker
    assert "have no effect in this query: maxOffsetsPerTrigger, maxTriggerDelay" in caplog.text


def reader_of(given: dict[str, str]) -> Any:
    source = HeadraceSource(BASE | given)
    return source.streamReader(source.schema())


@pytest.mark.parametrize("kind", [StringType(), BinaryType()])
def test_a_schema_of_the_user_is_refused(kind: DataType) -> None:
    given = StructType([StructField("value", kind)])
    source = HeadraceSource(BASE)
    with pytest.raises(OptionError, match="is fixed"):
        source.reader(given)
    reader = source.streamReader(given)
    with pytest.raises(OptionError, match="is fixed"):
        reader.initialOffset()


@pytest.mark.pyspark("4.2")
@pytest.mark.parametrize("given", [MEMBER, SHARED])
def test_trigger_once_is_refused_where_one_batch_is_not_enough(given: dict[str, str]) -> None:
    """Only trigger(once=True) requests all available records in one batch."""
    reader = reader_of(given)
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    with pytest.raises(OptionError, match=r"trigger\(once=True\).*Use availableNow=True"):
        reader.latestOffset({}, ReadAllAvailable())
