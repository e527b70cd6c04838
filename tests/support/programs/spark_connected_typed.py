"""A Spark Connect client with its own server, which writes and reads typed columns: reports the roads that it found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

from support.spark.drivers import local_settings, report
from support.spark.streams import DEADLINE, started


def main(job: dict[str, Any]) -> None:
    where = Path(job["directory"])
    spark = SparkSession.builder.remote("local[2]").config(map=local_settings()).getOrCreate()
    rows = spark.range(5).selectExpr("concat('A', id) AS road")
    rows.write.format("headrace").options(**job["sink"]).mode("append").save()
    batch = spark.read.format("headrace").options(**job["source"]).load()
    batch.explain(True)
    stream = spark.readStream.format("headrace").options(**job["source"], startingOffsets="earliest").load()
    writer = stream.select("value.*").writeStream.format("parquet").option("path", str(where / "typed"))
    writer = writer.option("checkpointLocation", str(where / "checkpoint")).trigger(availableNow=True)
    started(writer.start).awaitTermination(DEADLINE)
    frames = (batch.select("value.*"), spark.read.parquet(str(where / "typed")))
    report(typed=[sorted(row.road for row in frame.collect()) for frame in frames])
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
