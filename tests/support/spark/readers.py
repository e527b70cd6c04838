"""The driver's side of a streaming query without Spark: the same calls in the same order.

It uses a real broker and is fast, since no JVM has to start. Spark's own part is in the tests with a session.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.datasource import InputPartition

from headrace.spark.driver.stream import StreamReader
from headrace.spark.error_boundary import FailedStreamReader
from headrace.spark.source import HeadraceSource
from headrace.spark.versions import ReadLimit

PartitionAndOffset = tuple[int, int]


class Run:
    """One run of a query, from a checkpoint or from the start. Each value goes through JSON, as in Spark."""

    def __init__(self, servers: str, options: dict[str, Any], checkpoint: dict[str, Any] | None = None) -> None:
        given = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest", **options}
        source = HeadraceSource({name: str(value) for name, value in given.items()})
        reader = source.streamReader(source.schema())
        if isinstance(reader, FailedStreamReader):
            reader.initialOffset()  # raises
        assert isinstance(reader, StreamReader)
        self.reader = reader
        self.at = checkpoint
        self._is_new = checkpoint is None  # the first batch runs even if it is empty
        self.limit: ReadLimit = reader.getDefaultReadLimit()

    def begin(self, *, available_now: bool = False) -> None:
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        if self.at is None:
            self.at = _saved(self.reader.initialOffset())

    def plan(self) -> dict[str, Any]:
        """The end of the next batch; equal to its start if there is none."""
        assert self.at is not None
        return _saved(self.reader.latestOffset(self.at, self.limit))

    def tasks(self, end: dict[str, Any]) -> list[InputPartition]:
        assert self.at is not None
        return list(self.reader.partitions(self.at, end))

    def trigger(self) -> list[PartitionAndOffset] | None:
        """Run the next batch; return (partition, offset) of its rows, or None if there is no batch."""
        end = self.plan()
        is_first, self._is_new = self._is_new, False
        if end == self.at and not is_first:
            return None
        rows = self.rows(end)
        self.at = end
        return rows

    def rows(self, end: dict[str, Any]) -> list[PartitionAndOffset]:
        """(partition, offset) of the rows of a batch up to `end`."""
        return sorted(
            place
            for task in self.tasks(end)
            for batch in self.reader.read(task)
            for place in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
        )

    def to_the_end(self) -> list[PartitionAndOffset]:
        """Run to the end, as trigger AvailableNow does."""
        self.begin(available_now=True)
        found: list[PartitionAndOffset] = []
        while (rows := self.trigger()) is not None:
            found += rows
        return sorted(found)

    def stop(self) -> None:
        self.reader.stop()


class Runs:
    """Creates runs that read a topic, and stops all of them. Two underscores in the name of an option are a dot."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._made: list[Run] = []

    def __call__(self, checkpoint: dict[str, Any] | None = None, **options: Any) -> Run:
        given = {name.replace("__", "."): value for name, value in options.items()}
        if not given.keys() & {"assign", "subscribePattern"}:
            given.setdefault("subscribe", self._topic)
        self._made.append(Run(self._servers, given, checkpoint))
        return self._made[-1]

    def new(self, **options: Any) -> Run:
        """A run without a checkpoint that has begun."""
        run = self(**options)
        run.begin()
        return run

    def stop(self) -> None:
        for each in self._made:
            each.stop()


def _saved(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found
