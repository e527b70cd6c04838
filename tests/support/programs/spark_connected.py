"""A Spark Connect client with its own server, which reads a topic as a batch and as a stream."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headrace.spark
from support.spark.drivers import local_settings, report
from support.spark.streams import DEADLINE, started


def main(job: dict[str, Any]) -> None:
    where = Path(job["directory"])
    spark = SparkSession.builder.remote("local[2]").config(map=local_settings()).getOrCreate()
    report(session=type(spark).__module__)
    batch = spark.read.format("headrace").options(**job["options"]).load()
    report(found=_places(batch))
    headrace.spark.register(spark)
    report(registered=_places(spark.read.format("headrace").options(**job["options"]).load()))
    stream = spark.readStream.format("headrace").options(**job["options"], startingOffsets="earliest").load()
    writer = stream.writeStream.format("parquet").option("path", str(where / "out"))
    query = started(writer.option("checkpointLocation", str(where / "checkpoint")).trigger(availableNow=True).start)
    query.awaitTermination(DEADLINE)
    report(streamed=_places(spark.read.parquet(str(where / "out"))))
    for number, sink in enumerate(job.get("sinks", ())):
        rows = spark.range(0, 50, 1, 2).selectExpr("cast(id as string) as value")
        rows.write.format("headrace").options(**sink).mode("append").save()
        copied = stream.select("value").writeStream.format("headrace").options(**sink)
        copied = copied.option("checkpointLocation", str(where / f"sink-{number}")).trigger(availableNow=True)
        started(copied.start).awaitTermination(DEADLINE)
    if job.get("sinks"):
        report(foreach_batch=_refused_batch(stream, {**job["sinks"][-1], "sinkId": "of-a-function"}, where))
    try:
        spark.read.format("headrace").options(**job["options"], startingOffset="earliest").load().count()
    except PySparkException as refusal:
        report(refusal=str(refusal))
    spark.stop()


def _refused_batch(stream: Any, sink: dict[str, str], where: Path) -> str:
    """The error of a write with batchId in foreachBatch."""

    def write(rows: Any, batch: int) -> None:
        rows.select("value").write.format("headrace").options(**sink).option("batchId", batch).mode("append").save()

    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(where / "function"))
    query = started(writer.trigger(availableNow=True).start)
    with contextlib.suppress(PySparkException):
        query.awaitTermination(DEADLINE)
    return str(query.exception())


def _places(frame: Any) -> list[list[int]]:
    return sorted([row.partition, row.offset] for row in frame.select("partition", "offset").collect())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
