"""Helpers for tests of run(): both kinds of consumers with matching handlers, and stop conditions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headrace import Record
from headrace._machines.commit.offset_set import OffsetSet
from support.harness.consumers import KINDS, AnyConsumer

DEADLINE = 60.0


class Kind:
    """Consumers of one kind, with matching handlers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: list[AnyConsumer] = []

    def member(self, servers: str, group: str, topic: str, **settings: Any) -> AnyConsumer:
        usual = {"auto_offset_reset": "earliest", "commit_mode": "done", "heartbeat_interval_ms": 100}
        if "group_protocol" in settings:
            del usual["heartbeat_interval_ms"]
        listener = settings.pop("listener", None)
        consumer = KINDS[self.name](bootstrap_servers=servers, group_id=group, **(usual | settings))
        self.made.append(consumer)
        consumer.subscribe([topic], listener=listener)
        return consumer

    def plain(self, consumer: AnyConsumer) -> AnyConsumer:
        """The consumer itself, for calls without I/O during run()."""
        return consumer if self.name == "sync" else consumer._consumer

    def handler(self, begin: Callable[[Record], float | None], end: Callable[[Record], None] = lambda _: None) -> Any:
        """A handler that calls `begin`, sleeps for the seconds it returns, and calls `end`."""

        def plain(record: Record) -> None:
            seconds = begin(record)
            if seconds:
                time.sleep(seconds)  # simulated work
            end(record)

        async def coroutine(record: Record) -> None:
            seconds = begin(record)
            if seconds is not None:
                await asyncio.sleep(seconds)  # simulated work
            end(record)

        return plain if self.name == "sync" else coroutine

    def close(self) -> None:
        for consumer in self.made:
            consumer.close()


def until(consumer: AnyConsumer, is_enough: Callable[[Any], bool], seen: list[Any] | None = None) -> dict[str, Any]:
    """Arguments that stop run() as soon as `is_enough` is true for its progress."""
    deadline = time.monotonic() + DEADLINE

    def look(progress: Any) -> None:
        if seen is not None:
            seen.append(progress)
        if is_enough(progress) or time.monotonic() > deadline:
            consumer.wakeup()

    return {"on_progress": look, "progress_interval": 0.05}


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    result = pool.submit(function)
    pool.shutdown(wait=False)
    return result


def committed(consumer: AnyConsumer, topic: str, partitions: int) -> dict[int, OffsetSet]:
    """The done offsets of each partition, according to its commit."""
    found = consumer.committed([(topic, number) for number in range(partitions)])
    return {tp.partition: OffsetSet.from_text(at.metadata, at.offset) for tp, at in found.items() if at is not None}


def committed_offsets(consumer: AnyConsumer, topic: str, partitions: int, count: int) -> set[tuple[int, int]]:
    """The done offsets as pairs (partition, offset), in logs of `count` records each."""
    done = committed(consumer, topic, partitions)
    return {(number, offset) for number, found in done.items() for offset in range(count) if offset in found}
