"""Ledgers: what a process did, as lines of JSON in a file that survives SIGKILL.

A client writes a line before it acts on what the line says, and after the cluster has confirmed it. Each process has a
file of its own, `<client>.<life>.jsonl`. Times are milliseconds of the clock that all processes of a machine share.

    started     kind, group, topic
    sent        runs of numbers [partition, first, count, transaction] that send() will get
    acked       [partition, number, offset] of deliveries; librdkafka does not know some offsets (-1)
    failed      [partition, number] of deliveries, with the error: they may have been written or not
    begun, committing, aborting                 a transaction, before the call
    txn_committed, txn_aborted                  the same, confirmed
    assigned, revoked, lost                     partitions
    lost_range                                  partition, start, end: deleted by retention before they were read
    received    runs of records that poll() returned, with their lane or delivery count
    handled     the same: a handler of run() has finished with them
    committed   offsets by partition, confirmed
    refused     the error of a commit
    accepted, rejected                          [partition, start, end] of a share group's acknowledgements, confirmed
    closed      the client was closed in an orderly way

Spark's drivers write `received` with the number of the `batch`, and also

    running         the query has started
    query_failed    its error; the driver starts it again
    progress        the number of a batch, and its rows
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .clocks import IS_SHIFTED, true_milliseconds

UNKNOWN_OFFSET = -1


def milliseconds() -> float:
    return true_milliseconds() if IS_SHIFTED else time.time_ns() / 1_000_000


class Event(NamedTuple):
    at: float
    name: str
    fields: dict[str, Any]


class LedgerWriter:
    """Any thread may write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()

    def write(self, name: str, at: float | None = None, **fields: Any) -> None:
        with self._lock:  # times ascend within a file
            at = round(milliseconds(), 3) if at is None else at
            line = json.dumps([at, name, fields], separators=(",", ":")) + "\n"
            data = line.encode()
            while data:
                data = data[os.write(self._file, data) :]

    def close(self) -> None:
        os.close(self._file)


class LedgerReader:
    """Reads a ledger while it is written: each call returns the complete new lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> Iterator[Event]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                for line in file:
                    if not line.endswith(b"\n"):
                        return  # half a line: the process is writing, or was killed
                    self._position += len(line)
                    yield Event(*json.loads(line))
        except FileNotFoundError:
            return


@dataclass(slots=True)
class Life:
    """One process of a client."""

    client: str
    number: int
    events: list[Event] = field(default_factory=list)
    ended: float | None = None
    """When the runner saw its end."""
    was_killed: bool = False
    """By a fault."""
    code: int | None = None

    @property
    def name(self) -> str:
        return f"{self.client}.{self.number}"

    @property
    def started(self) -> dict[str, Any]:
        """The fields of its first event; empty if it was killed before."""
        return next((event.fields for event in self.events if event.name == "started"), {})

    @property
    def is_closed(self) -> bool:
        return any(event.name == "closed" for event in self.events)


def read_lives(directory: Path, started: Iterable[str] = ()) -> list[Life]:
    """The lives in a directory of ledgers, by client and number, and those of other processes that were started: they
    have no events."""
    lives = []
    for name in {path.stem for path in directory.glob("*.jsonl")} | set(started):
        client, _, number = name.rpartition(".")
        lives.append(Life(client, int(number), list(LedgerReader(directory / f"{name}.jsonl").read())))
    return sorted(lives, key=lambda life: (life.client, life.number))
