"""Bronze: the readings as they came, with typed columns, and with where they stand in Kafka."""

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
READING = "sensor STRING, road STRING, at TIMESTAMP, speed DOUBLE, `limit` INT, occupancy DOUBLE"


@dp.table(comment="Every record of the topic, once. value_error says why one is no reading")
def readings_raw() -> DataFrame:
    return (
        spark.readStream.format("headrace")
        .options(**KAFKA)
        .option("subscribe", spark.conf.get("traffic.topic"))
        .option("startingOffsets", "earliest")
        # `headrace lag -g traffic` shows how far the pipeline is.
        .option("kafka.group.id", "traffic")
        .option("commitOffsets", "true")
        # After a pause, the newest readings come first and the backlog after them (KIP-333).
        .option("enable.parallel.rebalance", "true")
        .option("maxOffsetsPerTrigger", "50000")
        .option("value.format", "json")
        .option("value.schema", READING)
        .option("value.flatten", "true")
        .option("mode", "PERMISSIVE")
        .option("columns", "sensor,road,at,speed,limit,occupancy,value_error,partition,offset,timestamp")
        .load()
        .withColumnsRenamed({"limit": "speed_limit", "timestamp": "arrived"})
    )
