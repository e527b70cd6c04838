"""Every record is in Parquet once, whenever the driver is killed. `ROUNDS=20` kills it twenty times."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.spark.versions import HAS_ADMISSION_CONTROL
from support.brokers.admin import Admin
from support.brokers.steady_writer import SteadyWriter
from support.spark.drivers import Driver
from support.spark.streams import TOO_BUSY

ROUNDS = int(os.environ.get("ROUNDS", "2"))
PARTITIONS = 3


@pytest.mark.soak
@pytest.mark.timeout(300 + 60 * ROUNDS)
def test_every_record_is_written_once_when_drivers_are_killed(
    spark: SparkSession, admin: Admin, servers: str, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    topic = admin.create("once", PARTITIONS)
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "200",
    }
    job = {"directory": str(tmp_path), "options": options, "ends": False}
    with SteadyWriter(servers, topic, PARTITIONS, limit=2_000_000) as writer:
        for number in range(ROUNDS):
            with Driver("spark_exactly_once.py", job, tmp_path / f"driver-{number}.log") as driver:
                # During the first batches, or while it restores its position.
                if _is_running(driver, "batch" if number == 0 or chance.random() < 0.6 else "running"):
                    time.sleep(chance.uniform(0, 2))  # killed at a random moment
                    driver.kill()
        ends = writer.finish()
    del options["maxOffsetsPerTrigger"]
    runs = 1 if HAS_ADMISSION_CONTROL else 2  # one to repeat an interrupted batch, one for the new records
    for number in range(2 + runs):
        with Driver("spark_exactly_once.py", {**job, "ends": True}, tmp_path / f"driver-last-{number}.log") as driver:
            if driver.end() == 0:
                runs -= 1
                if not runs:
                    break
                continue
            assert TOO_BUSY in driver.said, driver.said[-6000:]
    expected = [(number, offset, str(offset)) for (_, number), end in ends.items() for offset in range(end)]
    for name in ("files", "batches"):
        found = _rows(spark.read.parquet(str(tmp_path / name)))
        assert found == sorted(expected), f"{name}, seed {seed}"
    batches = len(list((tmp_path / "checkpoint-batches" / "commits").glob("[0-9]*")))
    print(f"seed {seed}: {ROUNDS} kills, {len(expected):,} records in {batches} batches")


def _is_running(driver: Driver, sign: str) -> bool:
    """Whether the driver runs and can be killed. It may have died by itself, which is just as good."""
    try:
        return driver.reported(sign) is not None
    except AssertionError:
        if TOO_BUSY not in driver.said:
            raise
        return False


def _rows(frame: DataFrame) -> list[tuple[int, int, str]]:
    return sorted(tuple(row) for row in frame.select("partition", "offset", "value").collect())
