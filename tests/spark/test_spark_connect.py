"""Spark Connect and Declarative Pipelines, with the installed source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from headrace.local import LocalRegistry
from support.brokers.admin import Admin
from support.brokers.produce import numbered, numbered_topic, write
from support.brokers.topic_contents import oracle_rows
from support.formats.guarded_registry import guarded_registry
from support.spark.avro_topics import register
from support.spark.drivers import Driver
from support.spark.streams import grid

SPEC = """\
name: counts
storage: file://{directory}/storage
libraries:
  - glob:
      include: transformations/**
"""
PIPELINE = """\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def records() -> DataFrame:
    return spark.readStream.format("headrace").options(**{options}).load()


@dp.materialized_view
def counts() -> DataFrame:
    return spark.read.table("records").groupBy("partition").count()
"""


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("connected", 2), 2, 50)


pytestmark = [pytest.mark.soak, pytest.mark.timeout(700)]


def test_a_topic_is_read_and_written_through_spark_connect(
    servers: str, topic: str, admin: Admin, tmp_path: Path
) -> None:
    plain, once = admin.create("connected-plain", 2), admin.create("connected-once", 2)
    job = {
        "directory": str(tmp_path),
        "options": {"kafka.bootstrap.servers": servers, "subscribe": topic},
        "sinks": [
            {"kafka.bootstrap.servers": servers, "topic": plain},
            {"kafka.bootstrap.servers": servers, "topic": once, "exactlyOnce": "true", "sinkId": once},
        ],
    }
    everything = [list(place) for place in grid(2, 50)]
    with Driver("spark_connected.py", job, tmp_path / "driver.log") as driver:
        assert driver.end() == 0, driver.said[-6000:]
        assert "connect" in driver.reported("session")
        assert driver.reported("found") == driver.reported("registered") == driver.reported("streamed") == everything
        assert "did you mean startingOffsets" in driver.reported("refusal")
        assert "batchId is for writes in the function of foreachBatch" in driver.reported("foreach_batch")
        assert "does not work with Spark Connect" in driver.reported("foreach_batch")
    for written in (plain, once):
        values = [int(row.value or b"") for row in oracle_rows(servers, written, 2, "read_committed")]
        assert sorted(values) == sorted(3 * list(range(50))), "a batch job, and two streams"


def test_typed_columns_are_read_and_written_through_spark_connect(
    servers: str, admin: Admin, schema_registry: LocalRegistry, tmp_path: Path
) -> None:
    topic, secret = admin.create("connected-typed"), "hunter2-of-the-registry"
    schema = {"type": "record", "name": "R", "fields": [{"name": "road", "type": "string"}]}
    register(schema_registry.url, f"{topic}-value", schema)
    with guarded_registry(schema_registry.url, f"Bearer {secret}", tmp_path) as guard:
        options = {
            "kafka.bootstrap.servers": servers,
            "value.format": "avro",
            "schema.registry.url": guard.url,
            "schema.registry.ssl.ca.location": guard.ca_file,
            "schema.registry.token": secret,
        }
        job = {
            "directory": str(tmp_path),
            "source": {**options, "subscribe": topic},
            "sink": {**options, "topic": topic},
        }
        with Driver("spark_connected_typed.py", job, tmp_path / "driver.log") as driver:
            assert driver.end() == 0, driver.said[-6000:]
            assert driver.reported("typed") == [[f"A{number}" for number in range(5)]] * 2
            kept = (path.read_text(errors="replace") for path in tmp_path.rglob("*checkpoint/**/*") if path.is_file())
            assert not [text for text in (driver.said, *kept) if secret in text]


def test_a_declarative_pipeline_resumes_where_it_stopped(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(directory=tmp_path))
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "records.py").write_text(PIPELINE.replace("{options}", repr(options)))
    rows = tmp_path / "spark-warehouse" / "records"

    _run(tmp_path)
    assert _places(spark, rows) == grid(2, 50)
    first = set(rows.glob("*.parquet"))
    write(servers, topic, numbered(7, 1))
    _run(tmp_path)
    assert _places(spark, rows) == sorted(grid(2, 50) + [(1, offset) for offset in range(50, 57)])
    assert first < set(rows.glob("*.parquet")), "old records must not be read again"


def _run(project: Path) -> None:
    command = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    # Tables survive a run only in a persistent catalog: Hive's, in the project's directory. The settings are few, since
    # PySpark 4.3 passes them to a Connect session in portions and keeps only the last portion.
    given = [
        "ui.enabled=false",
        "driver.host=127.0.0.1",
        "driver.bindAddress=127.0.0.1",
        "sql.catalogImplementation=hive",
    ]
    settings = [word for each in given for word in ("--conf", f"spark.{each}")]
    done = subprocess.run(
        [str(command), "run", *settings],
        cwd=project,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]


def _places(spark: SparkSession, rows: Path) -> list[tuple[int, int]]:
    found = spark.read.parquet(str(rows)).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in found)
