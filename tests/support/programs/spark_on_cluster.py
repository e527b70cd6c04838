"""A driver that writes a topic to Parquet on a cluster, with a breakpoint in the middle of a batch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

from support.spark.breakpoint import BatchBreakpoint
from support.spark.drivers import local_settings, report
from support.spark.streams import started


def main(job: dict[str, Any]) -> None:
    where = Path(job["directory"])
    settings = local_settings(
        [
            ("spark.cores.max", "2"),
            ("spark.executor.cores", "1"),
            ("spark.executor.memory", "512m"),
            ("spark.scheduler.minRegisteredResourcesRatio", "1.0"),
        ]
    )
    spark = SparkSession.builder.master(job["master"]).config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.readStream.format("headrace").options(**job["options"]).load()
    writer = BatchBreakpoint(where).before(frame).select("partition", "offset").writeStream.format("parquet")
    query = started(
        writer.option("path", str(where / "out"))
        .option("checkpointLocation", str(where / "checkpoint"))
        .trigger(availableNow=True)
        .start
    )
    query.awaitTermination()
    places = spark.read.parquet(str(where / "out")).collect()
    report(places=sorted([row.partition, row.offset] for row in places))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
