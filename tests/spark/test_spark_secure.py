"""The source with SASL_SSL and the Java options of Spark's own connector. Spark stores no secret."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from support.brokers.secured import SecuredBroker
from support.spark.streams import Stream, grid

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def topic(secured: SecuredBroker) -> str:
    return secured.create("spark-secured", 100, partitions=2)


@pytest.fixture(scope="module")
def options(secured: SecuredBroker, topic: str) -> dict[str, str]:
    """The same options as for `format("kafka")`."""
    lines = secured.broker.client_properties.read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    return {"subscribe": topic, **{f"kafka.{name}": value for name, value in settings.items()}}


@pytest.fixture
def password(secured: SecuredBroker) -> str:
    return secured.broker.client_config["sasl.password"]


def batch(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("headrace").options(**options).load()


def stream(spark: SparkSession, options: dict[str, str], where: Path) -> Stream:
    made = Stream(spark, options["kafka.bootstrap.servers"], "", where)
    made.options |= options
    return made


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def test_a_batch_and_a_stream_authenticate_with_java_s_options(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    assert places(batch(spark, options)) == grid(2, 100)
    query = stream(spark, options, tmp_path)
    query.run()
    assert query.places() == grid(2, 100)


def test_a_batch_authenticates_with_librdkafka_s_settings_and_a_certificate(
    spark: SparkSession, secured: SecuredBroker, topic: str
) -> None:
    for config in (secured.broker.config_of("admin", "PLAIN"), secured.broker.mutual_config):
        options = {"subscribe": topic, **{f"kafka.{name}": value for name, value in config.items()}}
        assert places(batch(spark, options)) == grid(2, 100)


# -- secrets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def event_log(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """The event log that spark.eventLog.enabled=true would write during a test."""
    where = tmp_path / "events"
    where.mkdir()
    context: Any = spark.sparkContext
    jvm = context._jvm
    conf = context._jsc.sc().conf().clone().set("spark.eventLog.compress", "false")
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "secrets",
        jvm.scala.Option.apply(None),
        jvm.java.net.URI(where.as_uri()),
        conf,
        context._jsc.hadoopConfiguration(),
    )
    listener.start()
    context._jsc.sc().addSparkListener(listener)
    yield where
    context._jsc.sc().removeSparkListener(listener)
    listener.stop()


def test_plans_event_logs_and_checkpoints_contain_no_secret(
    spark: SparkSession,
    options: dict[str, str],
    password: str,
    event_log: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level("DEBUG", "headrace")
    frame: Any = batch(spark, options)
    frame.collect()
    frame.createOrReplaceTempView("secured")
    query: Any = stream(spark, options, tmp_path).run()
    frame.explain(True)
    frame.explain("formatted")
    query.explain(True)
    shown = [
        repr(frame),
        frame._jdf.queryExecution().toString(),
        spark.sql("EXPLAIN EXTENDED SELECT * FROM secured").collect()[0][0],
        repr(list(query.recentProgress)),
        *(path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()),
        *caplog.messages,
        *capfd.readouterr(),
    ]
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(100_000)  # type: ignore[union-attr]
    events = [path.read_text(errors="replace") for path in event_log.rglob("*") if path.is_file()]
    assert any("SparkListenerSQLExecutionStart" in text for text in events), "the event log must exist"
    for text in (*shown, *events):
        assert password not in text


def test_the_error_of_a_wrong_password_does_not_show_it(
    spark: SparkSession, options: dict[str, str], password: str, tmp_path: Path
) -> None:
    wrong = options | {"kafka.sasl.jaas.config": options["kafka.sasl.jaas.config"].replace(password, "wr0ng-secret")}
    with pytest.raises(PySparkException) as caught:
        batch(spark, wrong).collect()
    assert "SASL authenticate" in str(caught.value)
    assert "wr0ng-secret" not in str(caught.value)
    with pytest.raises(StreamingQueryException) as failed:
        stream(spark, wrong, tmp_path).run()
    assert "SASL authenticate" in str(failed.value)
    assert "wr0ng-secret" not in str(failed.value)


def test_the_error_of_a_wrong_security_option_contains_no_secret(
    spark: SparkSession, options: dict[str, str], password: str
) -> None:
    for name in ("kafka.sasl.jaas.config", "kafka.ssl.truststore.location"):
        with pytest.raises(PySparkException) as caught:
            batch(spark, options | {name: options[name].replace(";", "").replace("ca.pem", "missing.pem")}).collect()
        assert name.removeprefix("kafka.") in str(caught.value)
        assert password not in str(caught.value)
