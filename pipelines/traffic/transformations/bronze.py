"""Bronze: the readings as they came, with where they stand in Kafka."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

# Which cluster, and how to log in there: what `headrace run` was told by -b and -C.
KAFKA = {
    name.removeprefix("headrace."): value
    for name, value in spark.conf.getAll.items()
    if name.startswith("headrace.kafka.")
}


@dp.table(comment="Every record of the topic, once")
def readings_raw() -> DataFrame:
    return (
        spark.readStream.format("headrace")
        .options(**KAFKA)
        .option("subscribe", spark.conf.get("traffic.topic"))
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(
            "CAST(key AS STRING) AS key",
            "CAST(value AS STRING) AS value",
            "partition",
            "offset",
            "timestamp AS arrived",
        )
    )
