"""A driver that writes a topic to Parquet with two queries at the same time, until it is killed or is finished.

files/      the file sink, which keeps a log of its files
batches/    foreachBatch: each batch replaces the files of the same batch number
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession

from support.spark.drivers import local_settings, report
from support.spark.streams import started


def main(job: dict[str, Any]) -> None:
    where = Path(job["directory"])
    spark = SparkSession.builder.master("local[2]").config(map=local_settings()).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    report(jvm=spark._jvm.java.lang.ProcessHandle.current().pid())

    def frame() -> DataFrame:
        loaded = spark.readStream.format("headrace").options(**job["options"]).load()
        return loaded.selectExpr("partition", "offset", "cast(value as string) as value")

    def replace(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(where / "batches" / f"batch={number}"))
        report(batch=number)

    files = frame().writeStream.format("parquet").option("path", str(where / "files"))
    batches = frame().writeStream.foreachBatch(replace)
    trigger = {"availableNow": True} if job["ends"] else {"processingTime": "0 seconds"}
    queries = [
        started(writer.option("checkpointLocation", str(where / name)).trigger(**trigger).start)
        for name, writer in (("checkpoint-files", files), ("checkpoint-batches", batches))
    ]
    report(running=True)
    while any(query.isActive for query in queries):
        spark.streams.awaitAnyTermination()  # raises the query's error
        spark.streams.resetTerminated()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
