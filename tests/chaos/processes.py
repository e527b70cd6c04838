"""The client processes of a run: started, killed, paused, and stopped in an orderly way."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.local.process import GuardedProcess

from .clients.java import java_command, java_events
from .clients.process import spec_of
from .cluster import Cluster
from .ledger import LedgerWriter, Life, milliseconds, read_lives
from .plan import COPIES, Client

_TESTS = Path(__file__).parents[1]
_MODULES = {
    "idempotent": "producer",
    "transactional": "transactions",
    "librdkafka": "librdkafka",
    "done": "runner",
    "exactly_once": "runner",
    "share_implicit": "share",
    "share_explicit": "share",
}
_KILLED_BY_US = 128 + signal.SIGKILL


@dataclass(slots=True)
class Running:
    client: Client
    life: int
    process: GuardedProcess
    ended: float | None = None
    was_killed: bool = False
    code: int | None = None

    @property
    def name(self) -> str:
        return f"{self.client.name}.{self.life}"


class Processes:
    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._ledgers = directory / "ledgers"
        self._logs = directory / "logs"
        for each in (self._ledgers, self._logs):
            each.mkdir(parents=True)
        self._all: list[Running] = []
        self._current: dict[str, Running] = {}

    def start(self, client: Client) -> None:
        life = sum(each.client.name == client.name for each in self._all)
        is_java = client.kind == "java"
        output = (self._ledgers / f"java.{life}.out") if is_java else self._logs / f"{client.name}.{life}.log"
        command = self._java(client, life) if is_java else self._python(client, life)
        with output.open("wb") as file:
            running = Running(client, life, GuardedProcess(command, output=file, cwd=_TESTS))
        self._all.append(running)
        self._current[client.name] = running

    def _java(self, client: Client, life: int) -> list[str]:
        return java_command(self._cluster.servers, self._cluster.topics[client.topic], life, self._logs)

    def _python(self, client: Client, life: int) -> list[str]:
        spec = spec_of(
            name=client.name,
            life=life,
            kind=client.kind,
            group=self._cluster.groups.get(client.kind, ""),
            topic=self._cluster.topics[client.topic],
            target=self._cluster.topics[COPIES],
            ledger=self._ledgers / f"{client.name}.{life}.jsonl",
            servers=self._cluster.servers,
            ports=self._cluster.ports,
        )
        return [sys.executable, "-m", f"chaos.clients.{_MODULES.get(client.kind, 'member')}", spec]

    # -- faults ------------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> bool:
        """False if the process has ended by itself."""
        running = self._current[name]
        if not running.process.is_alive():
            return False
        running.was_killed = True
        self._end(running)
        return True

    def pause(self, name: str) -> None:
        self._current[name].process.send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._current[name].process.send_signal(signal.SIGCONT)

    # -- ends --------------------------------------------------------------------------------------------------------

    def stop(self, clients: Iterable[Client], within: float) -> None:
        """Ask them to close and wait for it. Those that do not end in time are killed, and the judge learns of it."""
        found = [self._current[client.name] for client in clients]
        deadline = time.monotonic() + within
        for running in found:
            while not self._is_ready(running) and running.process.is_alive() and time.monotonic() < deadline:
                time.sleep(0.05)  # a file gives no event
            running.process.send_signal(signal.SIGTERM)
        for running in found:
            running.process.wait(max(0.0, deadline - time.monotonic()))
            self._end(running)

    def _is_ready(self, running: Running) -> bool:
        """Whether it handles SIGTERM: since it has written its first line, or with run() since its first assignment."""
        suffix, lines = ("out", 1) if running.client.kind == "java" else ("jsonl", 1)
        if running.client.kind in ("done", "exactly_once"):
            lines = 2
        try:
            return (self._ledgers / f"{running.name}.{suffix}").read_bytes().count(b"\n") >= lines
        except FileNotFoundError:
            return False

    def close(self) -> None:
        for running in self._all:
            self._end(running)

    def _end(self, running: Running) -> None:
        if running.ended is None:
            running.code = running.process.close()
            running.ended = milliseconds()

    def dead(self) -> list[str]:
        """Clients that ended by themselves."""
        return [each.name for each in self._current.values() if each.ended is None and not each.process.is_alive()]

    def lives(self, java_topic: str) -> list[Life]:
        for path in self._ledgers.glob("java.*.out"):
            ledger = LedgerWriter(path.with_suffix(".jsonl.draft"))
            for event in java_events(path, java_topic):
                ledger.write(event.name, at=event.at, **event.fields)
            ledger.close()
            os.replace(path.with_suffix(".jsonl.draft"), path.with_suffix(".jsonl"))
        lives = read_lives(self._ledgers)
        ends = {each.name: each for each in self._all}
        for life in lives:
            running = ends[life.name]
            life.ended, life.was_killed, life.code = running.ended, running.was_killed, running.code
        return lives
