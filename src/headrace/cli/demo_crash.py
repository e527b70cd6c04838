"""The demo of KIP-333: two consumers are killed and restart with a backlog; one of them reads the newest records first.

    reading     both follow a topic that is written at a steady rate
    killed      both are killed (SIGKILL); a backlog is written; their sessions expire
    restarted   both are restarted, and run until they have read their backlog

Each has its own group. Both spend the same time on each record, so that the backlog takes a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Mapping

from .. import Producer
from .._aio.admin import AsyncAdmin
from ..errors import HeadraceError
from .demo_consumer import ConsumerProcess, command, now

LABELS = {"plain": "one lane", "lanes": "two lanes (KIP-333)"}
PARTITIONS = 6
RATE = 1000  # records written per second
PACE = 15_000  # the maximum rate of a consumer, in records per second
BACKLOG = 200_000
_READ_FOR = 4.0
_SESSION = 6.0
_DEAD_FOR = 7.0  # at least, so that the sessions expire
_AFTER = 2.0
_DEADLINE = 120.0
_LOOK_EVERY = 0.1

Watch = Callable[[str, Mapping[str, float | None]], None]
"""Called ten times per second with the current step, and the delay of each consumer in seconds (None: not running)."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """The recovery of a consumer: seconds from its assignment to its first new record and to the end of its backlog;
    and its delay over the whole demo."""

    first_live: float
    backlog_done: float
    series: list[tuple[float, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class CrashResult:
    backlog: int
    killed: float
    restarted: float
    readers: dict[str, RecoveryTimes]


class _BacklogWriter:
    """Writes at the steady rate in a thread. `write()` writes the backlog."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer(bootstrap_servers=servers)
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._lock = threading.Lock()
        self._number = 0
        # The first write of a producer is slow: make it before the steady rate starts.
        self.write(PARTITIONS)
        self._producer.flush(timeout=30)
        self._thread.start()

    def write(self, count: int) -> None:
        for _ in range(count):
            with self._lock:
                number = self._number
                self._number += 1
            self._producer.send(self._topic, b"%0100d" % number, partition=number % PARTITIONS)

    def _run(self) -> None:
        begun, written = time.monotonic(), 0
        while not self._over.wait(0.005):
            due = int((time.monotonic() - begun) * RATE)
            self.write(due - written)
            written = due

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        with contextlib.suppress(HeadraceError):
            self._producer.close(timeout=10)


def new_topic() -> str:
    return f"crash-{time.time_ns()}"


def groups_of(topic: str) -> dict[str, str]:
    """The groups of the consumers, by their names in LABELS."""
    return {name: f"{topic}-{name}" for name in LABELS}


def run_crash(servers: str, watch: Watch, backlog: int = BACKLOG, topic: str | None = None) -> CrashResult:
    """Run the demo. Raises TimeoutError if a step takes too long."""
    topic = topic or new_topic()
    asyncio.run(_create(servers, topic))
    writer = _BacklogWriter(servers, topic)
    readers: dict[str, ConsumerProcess] = {}
    begun = now()
    past: dict[str, list[tuple[float, float]]] = {name: [] for name in LABELS}
    try:
        readers = {name: _start(servers, topic, name) for name in LABELS}
        for reader in readers.values():
            reader.wait(functools.partial(_has_samples, reader), _DEADLINE)
        _watch_until(lambda: False, _READ_FOR, readers, watch, "both consumers read new records")
        for name, reader in readers.items():
            past[name] += _series(reader, begun)
            reader.kill()
        killed = now()
        waiting = threading.Thread(target=writer.write, args=(backlog,), daemon=True)
        waiting.start()
        text = f"both consumers are killed; a backlog of {backlog:,} records is written"
        _watch_until(lambda: not waiting.is_alive() and now() > killed + _DEAD_FOR * 1000, _DEADLINE, {}, watch, text)
        restarted = now()
        readers = {name: _start(servers, topic, name) for name in LABELS}
        # The backlog also contains the records of the steady rate.
        missed = backlog + RATE * (restarted - killed) / 1000 * 0.9
        _watch_until(
            lambda: all(_is_back(reader, missed) for reader in readers.values()),
            _DEADLINE,
            readers,
            watch,
            "both consumers are restarted and read their backlog",
        )
        _watch_until(lambda: False, _AFTER, readers, watch, "both consumers have caught up")
    finally:
        for reader in readers.values():
            reader.kill()
        writer.close()
    found = {name: _recovery(reader, missed, past[name] + _series(reader, begun)) for name, reader in readers.items()}
    return CrashResult(backlog, (killed - begun) / 1000, (restarted - begun) / 1000, found)


async def _create(servers: str, topic: str) -> None:
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        await admin.create_topic(topic, PARTITIONS, 1)


def _start(servers: str, topic: str, name: str) -> ConsumerProcess:
    config = {
        "bootstrap.servers": servers,
        "group.id": groups_of(topic)[name],
        "enable.parallel.rebalance": name == "lanes",
        "auto.offset.reset": "latest",
        "auto.commit.interval.ms": 500,
        "session.timeout.ms": round(_SESSION * 1000),
        "heartbeat.interval.ms": 500,
    }
    return ConsumerProcess(command(config, topic, PACE))


def _watch_until(
    look: Callable[[], bool], timeout: float, readers: Mapping[str, ConsumerProcess], watch: Watch, text: str
) -> None:
    """Wait until the condition is met or the timeout expires. Raises TimeoutError if the timeout is `_DEADLINE`."""
    deadline = time.monotonic() + timeout
    while not look():
        if time.monotonic() > deadline:
            if timeout == _DEADLINE:
                raise TimeoutError(f"this step took more than {timeout:.0f} s: {text}")
            return
        watch(text, {name: _behind(readers.get(name)) for name in LABELS})
        time.sleep(_LOOK_EVERY)


def _behind(reader: ConsumerProcess | None) -> float | None:
    if reader is None or not reader.samples:
        return None
    return max(0.0, (now() - reader.samples[-1][1]) / 1000)


def _series(reader: ConsumerProcess, begun: float) -> list[tuple[float, float]]:
    return [((at - begun) / 1000, max(at - newest, 1.0) / 1000) for at, newest, _ in reader.samples]


def _is_back(reader: ConsumerProcess, missed: float) -> bool:
    """Whether the consumer has read its backlog, and a record that is newer than its assignment."""
    samples = reader.samples
    return bool(samples) and samples[-1][2] >= missed and any(newest >= reader.assigned_at for _, newest, _ in samples)


def _recovery(reader: ConsumerProcess, missed: float, series: list[tuple[float, float]]) -> RecoveryTimes:
    first_live = next(at for at, newest, _ in reader.samples if newest >= reader.assigned_at)
    done = next(at for at, _, old in reader.samples if old >= missed)
    return RecoveryTimes((first_live - reader.assigned_at) / 1000, (done - reader.assigned_at) / 1000, series)


def _has_samples(reader: ConsumerProcess) -> bool:
    return bool(reader.samples)
