"""A driver with several queries of one topic, each into Parquet, until it is killed or all have finished.

files      the file sink, which keeps a log of its files
added      foreachBatch: each batch is appended, even one that is run again
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from support.spark.drivers import local_settings, report
from support.spark.streams import DEADLINE, started


def main(job: dict[str, Any]) -> None:
    spark = SparkSession.builder.master("local[2]").config(map=local_settings()).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    report(jvm=spark._jvm.java.lang.ProcessHandle.current().pid())
    queries = [_started(spark, name, job) for name in job["queries"]]
    report(running=True)
    for query in queries:
        query.awaitTermination()
    spark.stop()


def _started(spark: SparkSession, name: str, job: dict[str, Any]) -> StreamingQuery:
    """Start the queries one after the other: each starts Python processes, which takes a while."""
    query = started(lambda: _start(spark, name, Path(job["directory"]), job["ends"], **job["queries"][name]))
    deadline = time.monotonic() + DEADLINE
    while query.isActive and query.lastProgress is None and time.monotonic() < deadline:
        time.sleep(0.1)  # polling, since Spark gives no event for it
    return query


def _start(
    spark: SparkSession, name: str, directory: Path, ends: bool, options: dict[str, str], sink: str
) -> StreamingQuery:
    where = str(directory / name)

    def add(batch: DataFrame, number: int) -> None:
        batch.write.mode("append").parquet(where)

    loaded = spark.readStream.format("headrace").options(**options).load()
    writer = loaded.selectExpr("partition", "offset").writeStream
    writer = writer.format("parquet").option("path", where) if sink == "files" else writer.foreachBatch(add)
    trigger: dict[str, Any] = {"availableNow": True} if ends else {"processingTime": "0 seconds"}
    return writer.option("checkpointLocation", str(directory / f"checkpoint-{name}")).trigger(**trigger).start()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
