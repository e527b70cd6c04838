"""`headrace new`: creates a small pipeline."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from ..local.errors import storage_error
from .commands import command

_SPEC = """\
# headrace run {directory}                     starts its own broker and writes sample data
# headrace run {directory} -b localhost:9092   uses a running cluster
name: {name}
# For `spark-pipelines run`. `headrace run` keeps its data in the directory state/.
storage: file:///tmp/{name}/checkpoints
libraries:
  - glob:
      include: transformations/**
configuration:
  {name}.topic: orders
  headrace.kafka.bootstrap.servers: localhost:9092
  headrace.show: SELECT * FROM totals ORDER BY customer
  # For runs of seconds on a laptop. Leave both out for large tables: the optimizing compiler then pays.
  spark.sql.shuffle.partitions: "2"
  spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""

_ORDERS = '''\
"""The parsed orders of the topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

# The client settings that were passed to `headrace run` with -b, -C and -F: cluster and credentials.
KAFKA = {{
    name.removeprefix("headrace."): value
    for name, value in spark.conf.getAll.items()
    if name.startswith("headrace.kafka.")
}}


@dp.table
def orders() -> DataFrame:
    return (
        spark.readStream.format("headrace")
        .options(**KAFKA)
        .option("subscribe", spark.conf.get("{name}.topic"))
        .option("startingOffsets", "earliest")
        .option("value.format", "json")
        .option("value.schema", "customer STRING, amount DOUBLE")
        .option("value.flatten", "true")
        .option("mode", "PERMISSIVE")  # value_error says why a record is not an order
        .option("columns", "customer,amount,value_error,timestamp,partition,offset")
        .load()
    )
'''

_TOTALS = """\
CREATE MATERIALIZED VIEW totals AS
SELECT customer, count(*) AS orders, round(sum(amount), 2) AS amount
FROM orders
GROUP BY customer;
"""

_SAMPLE = '''\
"""Sample orders for the pipeline. The n-th order is the same in every run."""

import json
from collections.abc import Iterator

TOPIC = "orders"
PARTITIONS = 3


def records(first: int, count: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Key, value and timestamp (milliseconds) of `count` records, starting with number `first`."""
    for number in range(first, first + count):
        customer = ("ada", "grace", "edsger", "barbara")[number * 7 % 4]
        order = {"customer": customer, "amount": round(5 + number * 37 % 1000 / 10, 2)}
        yield customer.encode(), json.dumps(order).encode(), 1_767_225_600_000 + number
'''


@command(
    epilog="""\b
Examples:
  headrace new shop
  headrace run shop
"""
)
@click.argument("directory", type=click.Path(path_type=Path))
def new(directory: Path) -> None:
    """Create a small Spark pipeline in DIRECTORY, which must not exist yet: orders from a topic, totals in SQL."""
    name = re.sub(r"[^a-z0-9_]+", "_", directory.absolute().name.lower()).strip("_") or "pipeline"
    quoted = shlex.quote(str(directory))
    files = {
        "spark-pipeline.yml": _SPEC.format(name=name, directory=quoted),
        "transformations/orders.py": _ORDERS.format(name=name),
        "transformations/totals.sql": _TOTALS,
        "sample.py": _SAMPLE,
        ".gitignore": "state/\n",
    }
    try:
        _write(directory, files)
    except OSError as error:
        raise storage_error(error, directory, "the directory") from error
    click.echo(f"{directory}: {', '.join(sorted(files))}\nheadrace run {quoted}")


def _write(directory: Path, files: Mapping[str, str]) -> None:
    if directory.exists():
        raise click.BadParameter(f"{directory} already exists", param_hint="DIRECTORY")
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
