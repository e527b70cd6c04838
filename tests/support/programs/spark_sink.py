"""A driver that copies a topic with the sink, until it has copied everything, is killed, or kills itself.

    python spark_sink.py '{"directory": …, "source": {…}, "sink": {…}, "crash": "after the decision", …}'

A crash happens once, in the second batch; a file in the directory then marks it as done. `crash` is one of POINTS.
`foreach_batch` writes in the function of foreachBatch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.spark.source import HeadraceSource
from headrace.spark.versions import DataSourceStreamArrowWriter
from support.spark.drivers import local_settings, report
from support.spark.streams import started

POINTS = (
    "before the decision",
    "after the decision",
    "after the first commit",
    "after all commits",
    "after the completion",
    "commit() after the decision",
    "a task after its last row",
)
"""Where the JVM is killed. The last two kill only a Python worker."""
CRASHING_BATCH = 1


class CrashingWriter(DataSourceStreamArrowWriter):
    """Kills the process of a task after its rows are written."""

    def __init__(self, writer: Any, marker: str) -> None:
        self.writer = writer
        self.marker = marker

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message: WriterCommitMessage = self.writer.write(iterator)
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        if batch == str(CRASHING_BATCH) and context.partitionId() == 0 and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.writer.abort(messages, batchId)


class CrashingSource(HeadraceSource):
    """Runs in the driver's Python workers and crashes at the chosen point."""

    point = ""
    marker = ""
    jvm = 0

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        crash_at(self.point, self.marker, self.jvm)
        writer = super().streamWriter(schema, overwrite)
        return CrashingWriter(writer, self.marker) if self.point == "a task after its last row" else writer

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        crash_at(self.point, self.marker, self.jvm)
        return CrashingBatchWriter(super().writer(schema, overwrite), self.point, self.marker, self.jvm)


class CrashingBatchWriter(DataSourceArrowWriter):
    """Of foreachBatch. Spark calls commit() in another process than writer()."""

    def __init__(self, writer: Any, *crash: Any) -> None:
        self.inner = writer
        self.crash = crash

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message: WriterCommitMessage = self.inner.write(iterator)
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        crash_at(*self.crash)
        self.inner.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.inner.abort(messages)


def crash_at(point: str, marker: str, jvm: int) -> None:
    """Makes the sink's driver in this process crash at the point."""
    from headrace.spark.sink import writers
    from headrace.spark.sink.brokers import BrokerCoordination

    def reach(here: str) -> None:
        if here != point or os.path.exists(marker):
            return
        Path(marker).touch()
        if not here.startswith("commit()"):
            os.kill(jvm, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    class Crashing(BrokerCoordination):
        is_decided = False

        def record(self, driver: Any, decision: Any) -> Any:
            is_watched = decision.batch == CRASHING_BATCH
            if is_watched:
                reach("after all commits" if decision.is_complete else "before the decision")
            identity = super().record(driver, decision)
            if is_watched:
                self.is_decided = not decision.is_complete
                if decision.is_complete:
                    reach("after the completion")
                else:
                    reach("after the decision")
                    reach("commit() after the decision")
            return identity

        def end_all(self, transactions: Iterable[Any], *, commits: bool) -> Mapping[Any, Any]:
            remaining = list(transactions)
            if not (self.is_decided and commits):
                return super().end_all(remaining, commits=commits)
            results = dict(super().end_all(remaining[:1], commits=True))
            reach("after the first commit")
            results.update(super().end_all(remaining[1:], commits=True))
            return results

    writers.BrokerCoordination = Crashing  # type: ignore[misc]


def write_batch(sink: dict[str, str], rows: DataFrame, batch: int) -> None:
    rows.write.format("headrace").options(**sink).option("batchId", batch).mode("append").save()


def main(job: dict[str, Any]) -> None:
    where = Path(job["directory"])
    settings = {**local_settings(), **job.get("settings", {})}
    spark = SparkSession.builder.master(job.get("master", "local[2,4]")).config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    report(jvm=jvm)
    if job.get("crash"):
        CrashingSource.point, CrashingSource.jvm = job["crash"], jvm
        CrashingSource.marker = str(where / "crashed")
        spark.dataSource.register(CrashingSource)
    loaded = spark.readStream.format("headrace").options(**job["source"]).load().select("key", "value")
    if job.get("pause"):
        loaded = loaded.selectExpr(
            "key", f"java_method('java.lang.Thread', 'sleep', {job['pause']}L) as pause", "value"
        )
    if job.get("foreach_batch"):
        writer = loaded.writeStream.outputMode("update").foreachBatch(functools.partial(write_batch, job["sink"]))
    else:
        writer = loaded.writeStream.format("headrace").options(**job["sink"])
    trigger = {"availableNow": True} if job["ends"] else {"processingTime": "0 seconds"}
    query = started(writer.option("checkpointLocation", str(where / "checkpoint")).trigger(**trigger).start)
    report(running=True)
    batch = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["numInputRows"] and progress["batchId"] != batch:
            batch = progress["batchId"]
            report(batch=batch)
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination(0.05)
    if query.exception() is not None:
        report(error=str(query.exception()))
        spark.stop()
        sys.exit(1)
    report(ended=True, time=time.time())
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
