"""Silver: readings that make sense, and those that do not, with the reason. None is dropped."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

READING = "sensor STRING, road STRING, at STRING, speed DOUBLE, `limit` INT, occupancy DOUBLE, broken STRING"

# The first that holds is the reason.
REASONS = {
    "not JSON": "value IS NULL OR reading IS NULL OR reading.broken IS NOT NULL",
    "no sensor or road": "reading.sensor IS NULL OR reading.road IS NULL OR reading.limit IS NULL",
    "no time": "try_to_timestamp(reading.at) IS NULL",
    "no speed": "reading.speed IS NULL",
    "speed out of range": "reading.speed NOT BETWEEN 0 AND 250",
    "limit out of range": "reading.limit NOT BETWEEN 1 AND 250",
    "occupancy out of range": "reading.occupancy IS NULL OR reading.occupancy NOT BETWEEN 0 AND 1",
}


def checked() -> DataFrame:
    """Of each raw reading, what it says, and the reason if that makes no sense."""
    reason = F.expr("CASE " + " ".join(f"WHEN {test} THEN '{name}'" for name, test in REASONS.items()) + " END")
    parsed = F.from_json("value", READING, {"columnNameOfCorruptRecord": "broken"})
    return spark.readStream.table("readings_raw").withColumn("reading", parsed).withColumn("reason", reason)


@dp.table(comment="Readings that make sense")
def readings() -> DataFrame:
    return (
        checked()
        .where("reason IS NULL")
        .selectExpr(
            "reading.sensor AS sensor",
            "reading.road AS road",
            "try_to_timestamp(reading.at) AS at",
            "reading.speed AS speed",
            "reading.limit AS speed_limit",
            "reading.occupancy AS occupancy",
        )
    )


@dp.table(comment="Readings that do not, and why")
def readings_rejected() -> DataFrame:
    return checked().where("reason IS NOT NULL").selectExpr("reason", "value", "partition", "offset", "arrived")
