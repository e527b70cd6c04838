"""Typed columns, and Spark's own connector with from_json or from_avro, in one session: prints a JSON object.

    python spark_compare_formats.py '{"servers": …, "jars": …, "registry": …, "json": …, "avro": …}'

A program for the environment of `benchmarks.spark_peer`. Results are texts: "the same, 123 rows", or the difference.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from support.spark.peer_session import quiet_session

_FRAMING_BYTES = 5


def main(job: dict[str, Any]) -> dict[str, str]:
    spark = quiet_session(job["jars"])

    def load(source: str, topic: str, **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": job["servers"], "subscribe": topic, **options}
        return spark.read.format(source).options(**given).load()

    found = {}
    topic, ddl = job["json"]["topic"], job["json"]["schema"]
    theirs = load("kafka", topic).withColumn("value", F.from_json(F.col("value").cast("string"), ddl))
    found["json"] = _compare(theirs, load("headrace", topic, **{"value.format": "json", "value.schema": ddl}))
    topic, schema = job["avro"]["topic"], job["avro"]["schema"]
    raw = load("kafka", topic)
    theirs = raw.withColumn("value", from_avro(F.expr(f"substring(value, {_FRAMING_BYTES + 1})"), schema))
    registry = {"value.format": "avro", "schema.registry.url": job["registry"]}
    found["avro"] = _compare(theirs, load("headrace", topic, **registry))
    spark.stop()
    return found


def _compare(theirs: DataFrame, ours: DataFrame) -> str:
    if theirs.schema.simpleString() != ours.schema.simpleString():
        return f"the schemas differ: {theirs.schema.simpleString()}, {ours.schema.simpleString()}"
    one, other = (frame.orderBy("partition", "offset").collect() for frame in (theirs, ours))
    for left, right in zip(one, other, strict=True):
        if left != right:
            return f"Spark's has {left}, ours {right}"
    return f"the same, {len(other)} rows"


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
