"""Silver: readings that make sense, and those that do not, with the reason. None is dropped."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

# What a reading must have besides being one: the first that holds is the reason.
REASONS = {
    "no sensor or road": "sensor IS NULL OR road IS NULL OR speed_limit IS NULL",
    "no time": "at IS NULL",
    "no speed": "speed IS NULL",
    "speed out of range": "speed NOT BETWEEN 0 AND 250",
    "limit out of range": "speed_limit NOT BETWEEN 1 AND 250",
    "occupancy out of range": "occupancy IS NULL OR occupancy NOT BETWEEN 0 AND 1",
}


def checked() -> DataFrame:
    """Each reading, and the reason if it makes no sense: that of the source, or one of the above."""
    rules = "CASE " + " ".join(f"WHEN {test} THEN '{name}'" for name, test in REASONS.items()) + " END"
    return spark.readStream.table("readings_raw").select("*", F.expr(f"coalesce(value_error, {rules}) AS reason"))


@dp.table(comment="Readings that make sense")
def readings() -> DataFrame:
    return checked().where("reason IS NULL").select("sensor", "road", "at", "speed", "speed_limit", "occupancy")


@dp.table(comment="Readings that do not, and why")
def readings_rejected() -> DataFrame:
    return (
        checked()
        .where("reason IS NOT NULL")
        .select("reason", "sensor", "road", "at", "speed", "speed_limit", "occupancy", "partition", "offset", "arrived")
    )
