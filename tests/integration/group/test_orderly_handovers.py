"""KIP-983 as intended: slow work outside of the poll loop, members that join and leave, no record processed twice.

SECONDS=60 makes it the long run of `make soak`.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace import Consumer, Record
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.groups import WAYS, with_session
from support.harness.waiting import wait_for

SECONDS = float(os.environ.get("SECONDS", "3"))
PARTITIONS = 12
RECORDS = int(30 * SECONDS)  # per partition
SLOWEST = 0.2
_THREADS = 16
_MOST_IN_FLIGHT = 48


class ProcessedRecords:
    """Counts how often each record was processed, over all members."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: Counter[tuple[int, int]] = Counter()

    def add(self, record: Record) -> None:
        with self._lock:
            self._times[record.partition, record.offset] += 1

    def __len__(self) -> int:
        with self._lock:
            return len(self._times)

    def twice(self) -> list[tuple[int, int]]:
        with self._lock:
            return sorted(place for place, times in self._times.items() if times > 1)


class Worker(threading.Thread):
    """A member with the loop of KIP-983 and work on a thread pool."""

    def __init__(self, processed: ProcessedRecords, seed: int, settings: dict[str, Any], topic: str) -> None:
        super().__init__(name=f"worker {seed}")
        self._processed = processed
        self._chance = random.Random(seed)
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic])
        self._delays = settings["revoke_mode"] == "deferred"
        self.leaves = threading.Event()
        self.failure: BaseException | None = None

    def has_share(self) -> bool:
        return bool(self._consumer.assignment())

    def run(self) -> None:
        try:
            with ThreadPoolExecutor(_THREADS) as pool, self._consumer:
                while not self.leaves.is_set():
                    self._round(pool)
                assert self._consumer.in_flight(timeout=60) == {}
                self._consumer.commit()
        except BaseException as error:  # noqa: BLE001  # the test raises it
            self.failure = error

    def _round(self, pool: ThreadPoolExecutor) -> None:
        consumer = self._consumer
        records = consumer.poll(0.05)
        for record in records:
            pool.submit(self._work, record, self._chance.uniform(0, SLOWEST))
        busy = consumer.in_flight(records.to_be_revoked)
        consumer.commit()  # after in_flight(), so that it includes all work that is done
        if self._delays:
            consumer.delay_revoke(busy)
        if sum(consumer.in_flight().values()) > _MOST_IN_FLIGHT:
            consumer.pause(consumer.assignment())
        else:
            consumer.resume(consumer.paused())

    def _work(self, record: Record, seconds: float) -> None:
        time.sleep(seconds)  # simulated work
        self._processed.add(record)
        self._consumer.done(record)


def come_and_go(servers: str, admin: Admin, way: str, mode: str) -> ProcessedRecords:
    """Run two members, replace them one after the other for a while, and let the last two finish."""
    topic, processed = admin.create("handovers", PARTITIONS), ProcessedRecords()
    for partition in range(PARTITIONS):
        write(servers, topic, numbered(RECORDS, partition))
    group = unique("g")
    settings = {
        **with_session(servers, group, WAYS[way], seconds=30),
        "bootstrap_servers": servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "commit_mode": "done",
        "revoke_mode": mode,
        "max_poll_records": 16,
    }
    numbers = iter(range(1000))
    workers: list[Worker] = []

    def come() -> None:
        workers.append(Worker(processed, next(numbers), settings, topic))
        workers[-1].start()

    def go(worker: Worker) -> None:
        worker.leaves.set()
        worker.join(90)
        assert not worker.is_alive()
        if worker.failure is not None:
            raise worker.failure

    try:
        come()
        come()
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            enough = min(len(processed) + 100, PARTITIONS * RECORDS)
            wait_for("some work", lambda enough=enough: len(processed) >= enough)
            come()
            wait_for("its share", workers[-1].has_share)
            go(workers.pop(0))
        wait_for("the rest", lambda: len(processed) == PARTITIONS * RECORDS, timeout=60 + 2 * SECONDS)
    finally:
        for worker in workers:
            worker.leaves.set()
        for worker in workers:
            go(worker)
    return processed


@pytest.mark.parametrize("way", list(WAYS))
def test_with_delayed_revokes_no_record_is_lost_or_processed_twice(servers: str, admin: Admin, way: str) -> None:
    assert come_and_go(servers, admin, way, "deferred").twice() == []


def test_without_delayed_revokes_records_are_processed_twice(servers: str, admin: Admin) -> None:
    """Otherwise the test above would show nothing."""
    assert come_and_go(servers, admin, "cooperative", "immediate").twice()
