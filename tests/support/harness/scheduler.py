"""RecordScheduler instances for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from headrace._machines.backoff import Backoff
from headrace._machines.run.scheduler import Job, RecordScheduler, SchedulerSettings
from headrace.types import TopicPartition

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclasses.dataclass(frozen=True)
class Thing:
    """The attributes of a record that the scheduler uses."""

    key: bytes | None
    tp: TopicPartition = P
    offset: int = 0


def terms(**changes: Any) -> SchedulerSettings:
    usual = {"order": "key", "concurrency": 4, "max_in_flight": 100, "retries": 2, "has_dead_letters": False}
    return SchedulerSettings(**({"backoff": Backoff(100, 1000)} | usual | changes))


def scheduler(
    keys: str, ownerships: dict[TopicPartition, object] | None = None, **changes: Any
) -> RecordScheduler[Thing]:
    """A scheduler with one record in P per character of `keys`: its key, or a dot for no key."""
    work: RecordScheduler[Thing] = RecordScheduler(terms(**changes))
    work.keep(ownerships or {P: "once"})
    add(work, keys)
    return work


def add(work: RecordScheduler[Thing], keys: str, tp: TopicPartition = P) -> None:
    work.add(tp, [Thing(None if key == "." else key.encode(), tp, number) for number, key in enumerate(keys)])


def start_all(work: RecordScheduler[Thing], now: float = 0.0) -> list[Job[Thing]]:
    found = []
    while (job := work.start(now)) is not None:
        found.append(job)
    return found


def offsets(jobs: list[Job[Thing]]) -> list[int]:
    return [job.record.offset for job in jobs]
