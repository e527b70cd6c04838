"""Alerts: a record for each road that becomes congested, written back to Kafka.

Consumers with isolation.level=read_committed see each alert once, also if a run is killed and repeated.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

KAFKA = {
    name.removeprefix("headrace."): value
    for name, value in spark.conf.getAll.items()
    if name.startswith("headrace.kafka.")
}

dp.create_sink(
    "alerts",
    "headrace",
    {**KAFKA, "topic": spark.conf.get("traffic.alerts"), "exactlyOnce": "true", "sinkId": "traffic-alerts"},
)


@dp.append_flow(target="alerts")
def congested_roads() -> DataFrame:
    """Compares each minute of a road with the minute before. A minute counts when readings are 30 seconds past it."""
    threshold = float(spark.conf.get("traffic.alerts.congestion"))
    is_second = F.expr("at >= minutes.start + INTERVAL 1 MINUTE")
    congestion = 1 - F.col("speed") / F.col("speed_limit")
    return (
        spark.readStream.table("readings")
        .withWatermark("at", "30 seconds")
        .withColumn("minutes", F.window("at", "2 minutes", "1 minute"))
        .groupBy("road", "minutes")
        .agg(
            F.coalesce(F.avg(F.when(~is_second, congestion)), F.lit(0.0)).alias("before"),
            F.avg(F.when(is_second, congestion)).alias("congestion"),
            F.round(F.avg(F.when(is_second, F.col("speed"))), 1).alias("speed"),
        )
        .where((F.col("before") < threshold) & (F.col("congestion") >= threshold))
        .selectExpr(
            "road AS key",
            "to_json(struct(road, minutes.start + INTERVAL 1 MINUTE AS minute, speed, "
            "round(congestion, 2) AS congestion)) AS value",
        )
    )
