"""Queries of all four kinds, whose driver is killed at random while records are written. `ROUNDS` sets the kills.

No record is lost. With commitOffsets and enable.parallel.rebalance, an exactly-once sink has every record once. Members
of a group and of a share group repeat only the batch that ran when the query was killed, or was not committed yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from pyspark.sql import SparkSession

from headrace import Consumer, TopicPartition
from headrace.errors import CommitFailedError
from headrace.spark.checkpoint import Checkpoint
from support.brokers.admin import Admin, unique
from support.brokers.steady_writer import SteadyWriter
from support.harness.share_consumers import share_group
from support.spark.drivers import Driver

ROUNDS = int(os.environ.get("ROUNDS", "2"))
PARTITIONS = 4
SHARED = 1000
STARTS_WITHIN = 300.0
MEMBERS = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
}


@pytest.mark.soak
@pytest.mark.timeout(400 + 100 * ROUNDS)
def test_lane_member_and_share_queries_lose_nothing_when_drivers_are_killed(
    spark: SparkSession, admin: Admin, servers: str, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    topic = admin.create("killed", PARTITIONS)
    groups = {name: unique(name) for name in ("committed", "members")}
    queries = _queries(servers, topic, groups)
    job = {"directory": str(tmp_path), "queries": queries, "ends": False}
    untold: set[tuple[int, int]] = set()
    with (
        SteadyWriter(servers, topic, PARTITIONS, limit=2_000_000, pause=0.1) as writer,
        OtherMember(servers, topic, groups["members"]) as other,
    ):
        for number in range(ROUNDS):
            with Driver("spark_killed.py", job, tmp_path / f"driver-{number}.log") as driver:
                driver.reported("running", within=STARTS_WITHIN)
                time.sleep(chance.uniform(1, 8))  # killed at a random moment
                driver.kill()
            untold |= _last_batches(tmp_path / "checkpoint-member")
        ends = writer.finish()
    for query in queries.values():  # large batches, since the machine may be slow
        query["options"]["maxOffsetsPerTrigger"] = "5000"
    with Driver("spark_killed.py", {**job, "ends": True}, tmp_path / "driver-last.log") as driver:
        assert driver.end(within=STARTS_WITHIN) == 0, driver.said[-6000:]
    rows = {name: _rows(spark, tmp_path / name) for name in queries}
    expected = sorted((number, offset) for (_, number), end in ends.items() for offset in range(end))
    assert rows["laned"] == expected, f"seed {seed}"
    assert sorted({*rows["member"], *other.read}) == expected, f"seed {seed}"
    assert sorted(set(rows["shared"])) == expected, f"seed {seed}"
    holes = [path for path in tmp_path.glob("checkpoint-laned/offsets/[0-9]*") if "holes" in path.read_text()]
    assert holes, "no batch had a backlog"
    with Consumer(bootstrap_servers=servers, group_id=groups["committed"]) as consumer:
        found = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)])
    assert {tp.partition: at and at.offset for tp, at in found.items()} == {tp[1]: end for tp, end in ends.items()}
    again = {name: len(found) - len(set(found)) for name, found in rows.items()}
    twice = {*rows["member"]} & {*other.read}
    again["both members"] = len(twice)
    assert again["member"] == 0, "an exactly-once sink has each of its batches once"
    assert twice <= untold, f"seed {seed}: read by both members, but not in a last batch: {sorted(twice - untold)[:10]}"
    assert again["shared"] <= ROUNDS * SHARED, "more than one batch per kill"
    print(f"seed {seed}: {len(expected)} records, {len(other.read)} of them by the other member; read again: {again}")


class OtherMember:
    """A member of the query's group that reads and commits until the block ends."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        self.read: list[tuple[int, int]] = []
        self._settings = {"bootstrap.servers": servers, "group.id": group, **MEMBERS}
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="other member")

    def _run(self) -> None:
        with Consumer(self._settings, enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
            consumer.subscribe([self._topic])
            while not self._over.is_set():
                records = consumer.poll(0.2)
                self.read += [(record.partition, record.offset) for record in records]
                with contextlib.suppress(CommitFailedError):  # another member reads the records again
                    consumer.commit()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()


def _queries(servers: str, topic: str, groups: dict[str, str]) -> dict[str, dict[str, Any]]:
    base = {"kafka.bootstrap.servers": servers, "subscribe": topic, "maxOffsetsPerTrigger": "200"}
    early = {"startingOffsets": "earliest"}
    laned = {
        "enable.parallel.rebalance": "true",
        "commitOffsets": "true",
        "kafka.group.id": groups["committed"],
    }
    member = {
        "group.membership": "true",
        "kafka.group.id": groups["members"],
        **{f"kafka.{name}": value for name, value in MEMBERS.items()},
    }
    shared = {"share.group.id": share_group(servers), "maxOffsetsPerTrigger": str(SHARED)}
    return {
        "laned": {"options": base | early | laned, "sink": "files"},
        "member": {"options": base | early | member, "sink": "files"},
        "shared": {"options": base | shared, "sink": "added"},
    }


def _last_batches(checkpoint: Path) -> set[tuple[int, int]]:
    """The records of the last two planned batches, which may not have been committed to the group."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))[-3:]
    ends = [Checkpoint.from_json(json.loads(file.read_text().splitlines()[2])) for file in files]
    return {
        (each.tp.partition, offset)
        for before, after in pairwise(ends)
        for each in before.ranges_to(after)
        for offset in range(each.start, each.end)
    }


def _rows(spark: SparkSession, where: Path) -> list[tuple[int, int]]:
    """The rows of a query; none if it never got a partition."""
    if not list(where.glob("**/*.parquet")):
        return []
    frame = spark.read.parquet(str(where))
    return sorted(tuple(row) for row in frame.select("partition", "offset").collect())
