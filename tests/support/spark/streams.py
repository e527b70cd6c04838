"""A streaming query that tests run repeatedly from its checkpoint."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

DEADLINE = 150
"""Seconds for any action of a query. On a busy machine it takes a while to start its processes."""

TOO_BUSY = "failed to connect back"
"""Spark's error for a Python process that has not started within ten seconds, which is not configurable."""


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query and wait until its reader exists or has failed. If the machine is too busy, start it again."""
    deadline = time.monotonic() + DEADLINE
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.05)  # polling, since Spark gives no event for it
        if not could_not_start(query) or time.monotonic() > deadline:
            return query


def could_not_start(query: StreamingQuery) -> bool:
    return not query.isActive and TOO_BUSY in str(query.exception())


class Stream:
    """A query that writes to Parquet files."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, where: Path) -> None:
        self.spark = spark
        self.where = where
        self.options: dict[str, Any] = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}
        if topic:
            self.options["subscribe"] = topic

    def load(self) -> DataFrame:
        reader = self.spark.readStream.format("headrace")
        return reader.options(**{name: str(value) for name, value in self.options.items()}).load()

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self.load().writeStream.format("parquet").option("path", str(self.where / "out"))
        return started(writer.option("checkpointLocation", str(self.where / "checkpoint")).trigger(**trigger).start)

    def run(self, **trigger: Any) -> StreamingQuery:
        """Run to the current end of the topic."""
        query = self.start(**(trigger or {"availableNow": True}))
        assert query.awaitTermination(DEADLINE), "the query does not end"
        return query

    def table(self) -> DataFrame:
        return self.spark.read.parquet(str(self.where / "out"))

    def places(self) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in self.table().select("partition", "offset").collect())


def offsets_of(progress: str) -> dict[str, Any]:
    """An offset of a query's progress, which PySpark 4.0 and 4.1 have as Python's text instead of JSON."""
    found: dict[str, Any] = ast.literal_eval(progress) if progress.startswith("{'") else json.loads(progress)
    return found


def grid(partitions: int, count: int) -> list[tuple[int, int]]:
    return [(number, offset) for number in range(partitions) for offset in range(count)]
