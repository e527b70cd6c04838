"""KIP-333, shown: two consumers are killed, come back to a backlog, and one of them reads the newest records first.

    reading     both follow a topic that is written to at a steady rate
    killed      both are killed (SIGKILL); a backlog is written; their sessions end
    returned    both are started again, until both have read all that they missed

Each has a group of its own and the same work to do on each record, which is what makes the backlog take its time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .._aio.admin import AsyncAdmin
from .demo_consumer import ReaderProcess, command, now

LABELS = {"plain": "one lane", "lanes": "two lanes (KIP-333)"}
PARTITIONS = 6
RATE = 1000  # records a second
PACE = 15_000  # that a reader can work on in a second
BACKLOG = 200_000
_READ_FOR = 4.0
_SESSION = 6.0
_DEAD_FOR = 7.0  # at least: until the coordinator has seen it
_AFTER = 2.0
_DEADLINE = 120.0
_LOOK_EVERY = 0.1

Watch = Callable[[str, Mapping[str, float | None]], None]
"""Called ten times a second: what is going on, and how many seconds behind each reader is (None: it is not there)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Return:
    """Seconds since it was back in its group, and how fresh its records were over the whole story."""

    first_live: float
    backlog_done: float
    series: list[tuple[float, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Story:
    backlog: int
    killed: float
    returned: float
    readers: dict[str, Return]


class _Writer:
    """Writes at the steady rate from a thread, and the backlog when it is told."""

    def __init__(self, servers: str, topic: str) -> None:
        from confluent_kafka import Producer

        self._producer: Any = Producer({"bootstrap.servers": servers, "linger.ms": 5})
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._lock = threading.Lock()
        self._number = 0
        # The first write of a producer takes a while, in which it would fall behind.
        self.write(PARTITIONS)
        self._producer.flush(30)
        self._thread.start()

    def write(self, count: int) -> None:
        for _ in range(count):
            with self._lock:
                number = self._number
                self._number += 1
            while True:
                try:
                    self._producer.produce(self._topic, b"%0100d" % number, partition=number % PARTITIONS)
                except BufferError:
                    self._producer.poll(0.05)
                    continue
                break
            if number % 1000 == 0:
                self._producer.poll(0)

    def _run(self) -> None:
        begun, written = time.monotonic(), 0
        while not self._over.wait(0.005):
            due = int((time.monotonic() - begun) * RATE)
            self.write(due - written)
            written = due
            self._producer.poll(0)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._producer.flush(10)


def tell(servers: str, watch: Watch, backlog: int = BACKLOG) -> Story:
    """The whole story. Raises TimeoutError if it does not come to its end."""
    topic = f"crash-{time.time_ns()}"
    asyncio.run(_create(servers, topic))
    writer = _Writer(servers, topic)
    readers: dict[str, ReaderProcess] = {}
    begun = now()
    past: dict[str, list[tuple[float, float]]] = {name: [] for name in LABELS}
    try:
        readers = {name: _start(servers, topic, name) for name in LABELS}
        for reader in readers.values():
            reader.wait(functools.partial(_has_told, reader), _DEADLINE)
        _watch_until(lambda: False, _READ_FOR, readers, watch, "both read, a little behind the writer")
        for name, reader in readers.items():
            past[name] += _series(reader, begun)
            reader.kill()
        killed = now()
        waiting = threading.Thread(target=writer.write, args=(backlog,), daemon=True)
        waiting.start()
        text = f"both are killed; {backlog:,} records are written meanwhile"
        _watch_until(lambda: not waiting.is_alive() and now() > killed + _DEAD_FOR * 1000, _DEADLINE, {}, watch, text)
        returned = now()
        readers = {name: _start(servers, topic, name) for name in LABELS}
        # The steady rate went on as well.
        missed = backlog + RATE * (returned - killed) / 1000 * 0.9
        _watch_until(
            lambda: all(_is_back(reader, missed) for reader in readers.values()),
            _DEADLINE,
            readers,
            watch,
            "both are back, and have a backlog",
        )
        _watch_until(lambda: False, _AFTER, readers, watch, "both are where they were before")
    finally:
        for reader in readers.values():
            reader.kill()
        writer.close()
    found = {name: _return(reader, missed, past[name] + _series(reader, begun)) for name, reader in readers.items()}
    return Story(backlog, (killed - begun) / 1000, (returned - begun) / 1000, found)


async def _create(servers: str, topic: str) -> None:
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        await admin.create_topic(topic, PARTITIONS, 1)


def _start(servers: str, topic: str, name: str) -> ReaderProcess:
    config = {
        "bootstrap.servers": servers,
        "group.id": f"{topic}-{name}",
        "enable.parallel.rebalance": name == "lanes",
        "auto.offset.reset": "latest",
        "auto.commit.interval.ms": 500,
        "session.timeout.ms": round(_SESSION * 1000),
        "heartbeat.interval.ms": 500,
    }
    return ReaderProcess(command(config, topic, PACE))


def _watch_until(
    look: Callable[[], bool], timeout: float, readers: Mapping[str, ReaderProcess], watch: Watch, text: str
) -> None:
    """Until it is so, or for so long: `_DEADLINE` is too long."""
    deadline = time.monotonic() + timeout
    while not look():
        if time.monotonic() > deadline:
            if timeout == _DEADLINE:
                raise TimeoutError(f"after {timeout:.0f} s still: {text}")
            return
        watch(text, {name: _behind(readers.get(name)) for name in LABELS})
        time.sleep(_LOOK_EVERY)


def _behind(reader: ReaderProcess | None) -> float | None:
    if reader is None or not reader.told:
        return None
    return max(0.0, (now() - reader.told[-1][1]) / 1000)


def _series(reader: ReaderProcess, begun: float) -> list[tuple[float, float]]:
    return [((at - begun) / 1000, max(at - newest, 1.0) / 1000) for at, newest, _ in reader.told]


def _is_back(reader: ReaderProcess, missed: float) -> bool:
    """Whether it has read all that it missed, and something newer than its return."""
    told = reader.told
    return bool(told) and told[-1][2] >= missed and any(newest >= reader.back for _, newest, _ in told)


def _return(reader: ReaderProcess, missed: float, series: list[tuple[float, float]]) -> Return:
    first_live = next(at for at, newest, _ in reader.told if newest >= reader.back)
    done = next(at for at, _, old in reader.told if old >= missed)
    return Return((first_live - reader.back) / 1000, (done - reader.back) / 1000, series)


def _has_told(reader: ReaderProcess) -> bool:
    return bool(reader.told)
