"""A driver that runs a batch query and a streaming query with options without effect, at log level ERROR."""

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
    spark = SparkSession.builder.master("local[2]").config(map=local_settings()).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.read.format("headrace").options(**job["batch"]).load()
    counts = [frame.count(), frame.count()]
    stream = spark.readStream.format("headrace").options(**job["stream"]).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", job["checkpoint"])
    query = started(writer.trigger(availableNow=True).start)
    report(counts=counts, ended=query.awaitTermination(DEADLINE))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
