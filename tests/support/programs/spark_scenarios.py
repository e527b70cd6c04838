"""Scenarios of Spark's suites in one Spark session: a program for the environment of `benchmarks.spark_peer`.

    python spark_scenarios.py '{"servers": …, "jars": …, "directory": …, "packages": …, "sources": […], "names": […]}'

Prints a line for each scenario, and what each source observed as JSON: {"ranges": …, "found": {name: {source: …}}}.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.sql import SparkSession

from headrace.spark.driver.ranges import split_ranges
from headrace.spark.offset_range import OffsetRange
from headrace.types import TopicPartition
from support.spark.peer_session import quiet_session

Ranges = list[tuple[int, int, int]]  # partition, start, end


def run(job: dict[str, Any]) -> dict[str, Any]:
    # confluent-kafka creates topics. It comes from the environment of the tests, after everything that this one has.
    sys.path.append(job["packages"])
    from support.brokers.admin import Admin
    from support.spark.scenarios import SCENARIOS
    from support.spark.scenarios.world import World

    spark, admin = quiet_session(job["jars"]), Admin(job["servers"])
    found: dict[str, dict[str, Any]] = {}
    for name in job["names"]:
        for source in job["sources"]:
            began = time.monotonic()
            world = World(spark, source, admin, Path(job["directory"]) / f"{source}-{len(found)}")
            found.setdefault(name, {})[source] = world.observe(SCENARIOS[name])
            print(f"{time.monotonic() - began:.1f} s", source, name, found[name][source], file=sys.stderr, flush=True)
    admin.close()
    return {"ranges": different_ranges(spark, job.get("ranges", 0)), "found": found}


def different_ranges(spark: SparkSession, count: int) -> list[Any]:
    """Random ranges that Spark's KafkaOffsetRangeCalculator splits otherwise."""
    chance = random.Random(7)
    different = []
    for _ in range(count):
        sizes = [
            chance.choice((0, 1, chance.randint(1, 30), chance.randint(1, 3000))) for _ in range(chance.randint(1, 6))
        ]
        least = chance.choice((None, chance.randint(1, 40)))
        longest = chance.choice((None, chance.randint(1, 2000)))
        starts = [chance.randint(0, 100) for _ in sizes]
        ranges = [(number, start, start + size) for number, (start, size) in enumerate(zip(starts, sizes, strict=True))]
        theirs = _by_spark(spark, ranges, least, longest)
        given = [OffsetRange(TopicPartition("t", number), start, end) for number, start, end in ranges]
        ours = [(tp.partition, start, end) for tp, start, end in split_ranges(given, least, longest)]
        if ours != theirs:
            different.append({"ranges": ranges, "least": least, "longest": longest, "theirs": theirs, "ours": ours})
    return different


def _by_spark(spark: SparkSession, ranges: Ranges, least: int | None, longest: int | None) -> Ranges:
    java: Any = spark._jvm
    kafka = java.org.apache.spark.sql.kafka010
    options = java.java.util.HashMap()
    for name, value in (("minPartitions", least), ("maxRecordsPerPartition", longest)):
        if value is not None:
            options.put(name, str(value))
    calculator = kafka.KafkaOffsetRangeCalculator.apply(
        java.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)
    )
    given = java.java.util.ArrayList()
    for number, start, end in ranges:
        tp = java.org.apache.kafka.common.TopicPartition("t", number)
        given.add(kafka.KafkaOffsetRange(tp, start, end, java.scala.Option.empty()))
    asked = java.scala.jdk.javaapi.CollectionConverters.asScala(given).toSeq()
    executors = java.scala.jdk.javaapi.CollectionConverters.asScala(java.java.util.ArrayList()).toSeq()
    found = calculator.getRanges(asked, executors)
    return [(each.partition(), each.fromOffset(), each.untilOffset()) for each in _elements(found)]


def _elements(found: Any) -> list[Any]:
    return [found.apply(number) for number in range(found.size())]


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
