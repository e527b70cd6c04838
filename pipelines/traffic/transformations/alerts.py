"""Alerts: a record for each road that becomes congested, written back to Kafka.

Consumers with isolation.level=read_committed see each alert once, also if a run is killed and repeated.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

KAFKA = {
    name.removeprefix("headrace."): value
    for name, value in spark.conf.getAll.items()
    if name.startswith("headrace.kafka.")
}

dp.create_sink(
    "alerts",
    "headrace",
    {
        **KAFKA,
        "topic": spark.conf.get("traffic.alerts"),
        "exactlyOnce": "true",
        # A sinkId belongs to one checkpoint. If the state is deleted, the next run needs another one.
        "sinkId": f"traffic-alerts-{spark.conf.get('headrace.state.id')}",
    },
)


@dp.append_flow(target="alerts")
def congested_roads() -> DataFrame:
    return spark.readStream.table("congested").selectExpr(
        "road AS key", "to_json(struct(road, minute, speed, congestion)) AS value"
    )
