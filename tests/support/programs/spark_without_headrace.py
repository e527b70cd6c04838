"""A driver whose workers run a Python without headrace."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headrace.spark
from support.spark.drivers import local_settings, report


def main(job: dict[str, Any]) -> None:
    os.environ["PYSPARK_PYTHON"] = job["python"]
    spark = SparkSession.builder.master("local[1]").config(map=local_settings()).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    headrace.spark.register(spark)
    try:
        spark.read.format("headrace").option("subscribe", "t").load()
    except PySparkException as error:
        report(error=str(error))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
