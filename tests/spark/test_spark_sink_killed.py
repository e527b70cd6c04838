"""The sink with killed processes: drivers at chosen points and at random, executors, tasks. `ROUNDS=20` kills the
driver twenty times."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import Consumer
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.brokers.steady_writer import SteadyWriter
from support.brokers.topic_contents import oracle_rows
from support.harness.waiting import wait_for
from support.programs.spark_sink import POINTS
from support.spark.cluster import SparkCluster
from support.spark.drivers import Driver
from support.spark.streams import TOO_BUSY

ROUNDS = int(os.environ.get("ROUNDS", "2"))
PARTITIONS = 2
PER_BATCH = 100
pytestmark = [pytest.mark.soak, pytest.mark.timeout(300 + 60 * ROUNDS)]


class Copy:
    """A job of `spark_sink.py`, its source and its target topic."""

    def __init__(self, admin: Admin, servers: str, where: Path, *, exactly_once: bool = True) -> None:
        self.servers = servers
        self.where = where
        self.source, self.topic = admin.create("copied", PARTITIONS), admin.create("copy", PARTITIONS)
        sink = {"kafka.bootstrap.servers": servers, "topic": self.topic}
        if exactly_once:
            sink |= {"exactlyOnce": "true", "sinkId": unique("sink")}
        self.job: dict[str, Any] = {
            "directory": str(where),
            "source": {
                "kafka.bootstrap.servers": servers,
                "subscribe": self.source,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(PER_BATCH),
            },
            "sink": sink,
            "ends": True,
        }
        self._drivers = 0

    def driver(self, **changes: Any) -> Driver:
        self._drivers += 1
        return Driver("spark_sink.py", {**self.job, **changes}, self.where / f"driver-{self._drivers}.log")

    def finish(self, **changes: Any) -> None:
        for _ in range(3):
            with self.driver(**changes) as driver:
                if driver.end() == 0:
                    return
                assert TOO_BUSY in driver.said, driver.said[-6000:]

    def wanted(self) -> Counter[bytes]:
        return Counter(row.value or b"" for row in oracle_rows(self.servers, self.source, PARTITIONS))

    def found(self, isolation: str = "read_committed") -> Counter[bytes]:
        return Counter(row.value or b"" for row in oracle_rows(self.servers, self.topic, PARTITIONS, isolation))


@pytest.mark.parametrize("point", POINTS)
def test_every_record_is_visible_once_after_a_crash(admin: Admin, servers: str, tmp_path: Path, point: str) -> None:
    copy = Copy(admin, servers, tmp_path)
    numbered_topic(servers, copy.source, PARTITIONS, 2 * PER_BATCH)
    with copy.driver(crash=point) as driver:
        code = driver.end()
        assert (tmp_path / "crashed").exists(), driver.said[-6000:]
        assert (code == 0) == (point == "a task after its last row"), driver.said[-6000:]
    copy.finish()
    assert copy.found() == copy.wanted()


@pytest.mark.parametrize("point", POINTS[:-1])
def test_every_record_is_visible_once_after_a_crash_in_foreach_batch(
    admin: Admin, servers: str, tmp_path: Path, point: str
) -> None:
    copy = Copy(admin, servers, tmp_path)
    copy.job["foreach_batch"] = True
    numbered_topic(servers, copy.source, PARTITIONS, 2 * PER_BATCH)
    with copy.driver(crash=point) as driver:
        assert driver.end() != 0, driver.said[-6000:]
        assert (tmp_path / "crashed").exists(), driver.said[-6000:]
    copy.finish()
    assert copy.found() == copy.wanted()


def test_a_driver_that_stays_away_for_too_long_lists_what_is_missing(
    admin: Admin, servers: str, tmp_path: Path
) -> None:
    copy = Copy(admin, servers, tmp_path)
    copy.job["sink"]["kafka.transaction.timeout.ms"] = "8000"
    numbered_topic(servers, copy.source, PARTITIONS, 2 * PER_BATCH)
    with copy.driver(crash="after the first commit") as driver:
        driver.end()
        assert (tmp_path / "crashed").exists(), driver.said[-6000:]
    before = copy.found("read_uncommitted")
    wait_for("the broker aborts the open transactions", lambda: _all_transactions_have_ended(copy), 120, every=0.5)
    for _ in range(2):
        with copy.driver() as driver:
            assert driver.end() == 1, driver.said[-6000:]
            error = driver.reported("error")
        assert "Batch 1 of query" in error
        assert "is written only in part: 1 of its 2 transactions were aborted" in error
        assert "Missing: 50 rows of task 1" in error or "Missing: 50 rows of task 0" in error
    assert copy.found("read_uncommitted") == before, "no task has started"
    assert copy.found().total() == PER_BATCH + PER_BATCH // 2


@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly once", "at least once"])
def test_drivers_killed_at_random(admin: Admin, servers: str, tmp_path: Path, exactly_once: bool) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    copy = Copy(admin, servers, tmp_path, exactly_once=exactly_once)
    killed = 0
    with SteadyWriter(servers, copy.source, PARTITIONS, limit=2_000_000) as writer:
        while killed < (ROUNDS if exactly_once else 2):
            with copy.driver(ends=False) as driver:
                try:
                    driver.reported("batch" if killed == 0 or chance.random() < 0.7 else "running")
                except AssertionError:
                    assert TOO_BUSY in driver.said, driver.said[-6000:]
                    continue
                time.sleep(chance.uniform(0, 2))  # killed at a random moment
                driver.kill()
                killed += 1
        writer.finish()
    copy.job["source"].pop("maxOffsetsPerTrigger")
    copy.finish()
    # Values are offsets, so each value occurs once per partition.
    found, wanted = copy.found(), copy.wanted()
    if exactly_once:
        assert found == wanted, f"seed {seed}"
    else:
        assert found.keys() == wanted.keys(), f"seed {seed}"
        assert all(found[value] >= count for value, count in wanted.items()), f"seed {seed}"
    aborted = copy.found("read_uncommitted").total() - found.total()
    print(f"seed {seed}: {killed} kills, {found.total():,} records, {aborted:,} of aborted transactions")


def test_executors_killed_with_speculation(admin: Admin, servers: str, tmp_path: Path) -> None:
    copy = Copy(admin, servers, tmp_path)
    numbered_topic(servers, copy.source, PARTITIONS, 10 * PER_BATCH)
    settings = {
        "spark.speculation": "true",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.interval": "20ms",
        "spark.speculation.task.duration.threshold": "50ms",
        "spark.task.maxFailures": "50",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    with (
        SparkCluster(tmp_path, hosts=("127.0.0.1", "127.0.0.2")) as cluster,
        copy.driver(master=cluster.url, settings=settings, pause=2) as driver,
    ):
        driver.reported("batch")
        for _ in range(2):
            executors = wait_for("an executor", lambda: _executors(tmp_path), 60)
            known = {each.pid for each in executors}
            executors[0].kill()
            wait_for("its successor", lambda known=known: {each.pid for each in _executors(tmp_path)} - known, 60)
        assert driver.end() == 0, driver.said[-6000:]
    found = copy.found()
    assert found == copy.wanted()
    aborted = copy.found("read_uncommitted").total() - found.total()
    print(f"{found.total():,} records, {aborted:,} of aborted transactions")


def _all_transactions_have_ended(copy: Copy) -> bool:
    places = [(copy.topic, partition) for partition in range(PARTITIONS)]
    found = []
    for isolation in ("read_committed", "read_uncommitted"):
        with Consumer(bootstrap_servers=copy.servers, isolation_level=isolation) as consumer:
            found.append(consumer.end_offsets(places))
    return found[0] == found[1]


def _executors(directory: Path) -> list[psutil.Process]:
    """The executor JVMs of this cluster, which run in the directories of its workers."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            is_executor = any("CoarseGrainedExecutorBackend" in part for part in process.info["cmdline"] or [])
            if is_executor and process.cwd().startswith(str(directory)):
                found.append(process)
    return found
