"""A streaming query whose batches a test sees one by one and can stop between any two of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from support.spark.streams import DEADLINE as LONG
from support.spark.streams import Stream, started

PartitionAndOffset = tuple[int, int]


class Batches:
    """`foreachBatch`, with batches by number: one that is run again replaces its first run.

    `run` runs the query to its end. `break_off` lets it fail after a number of complete batches, when the next batch
    has been written. `start` runs it until it is stopped.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.rows: dict[int, list[Any]] = {}
        self.is_run_again: dict[int, list[Any]] = {}
        """The rows of the first run of batches that were run again."""
        self.before_each: Callable[[DataFrame, int], None] | None = None
        self._left: int | None = None

    def _take(self, batch: DataFrame, number: int) -> None:
        if self.before_each is not None:
            self.before_each(batch, number)
        if number in self.rows:
            self.is_run_again[number] = self.rows[number]
        self.rows[number] = sorted(batch.collect(), key=lambda row: (row.topic, row.partition, row.offset))
        if self._left is not None and self.rows[number]:
            assert self._left, "broken off"
            self._left -= 1

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self.stream.load().writeStream.foreachBatch(self._take)
        where = str(self.stream.where / "checkpoint")
        prepared = writer.option("checkpointLocation", where).trigger(**(trigger or {"availableNow": True}))
        return started(prepared.start)

    def run(self) -> StreamingQuery:
        query = self.start()
        assert query.awaitTermination(LONG), "the query does not end"
        return query

    def break_off(self, after: int, **trigger: Any) -> StreamingQuery:
        self._left = after
        query = self.start(**trigger)
        with pytest.raises(StreamingQueryException, match="broken off"):
            query.awaitTermination(LONG)
        self._left = None
        return query

    def places(self) -> list[PartitionAndOffset]:
        """(partition, offset) of all rows in the sink."""
        return sorted((row.partition, row.offset) for rows in list(self.rows.values()) for row in rows)

    def ends(self) -> dict[int, dict[str, Any]]:
        """The end offsets of batches by number, from the checkpoint."""
        folder: Path = self.stream.where / "checkpoint" / "offsets"
        return {int(path.name): json.loads(path.read_text().splitlines()[2]) for path in folder.glob("[0-9]*")}


def sizes(query: StreamingQuery) -> list[int]:
    """The sizes of this run's batches that had records."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def metrics(query: StreamingQuery) -> list[dict[str, int]]:
    """The metrics of this run's batches that had records."""
    return [
        json.loads(progress["sources"][0]["latestOffset"])["headrace:metrics"]
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]
