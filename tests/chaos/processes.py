"""The client processes of a run: started, killed, paused, and stopped in an orderly way."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.local.process import GuardedProcess

from .clients.java import java_command, java_events
from .clients.process import spec_of
from .clocks import set_clock, with_clock
from .cluster import Cluster
from .identity import Identity, from_runs
from .ledger import LedgerReader, LedgerWriter, Life, milliseconds, read_lives
from .plan import TYPED, Client
from .process_tree import descendants, is_python
from .rules.copies import FILES
from .spark_files import file_events

_TESTS = Path(__file__).parents[1]
_MODULES = {
    "idempotent": "producer",
    "moving_writer": "producer",
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

    def send_signal(self, number: int) -> None:
        """To the process; of a driver also to its JVM, but not to the workers that run tasks."""
        if self.client.is_spark and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)


class Processes:
    def __init__(self, cluster: Cluster, directory: Path, has_clocks: bool = False) -> None:
        self._has_clocks = has_clocks
        self._cluster = cluster
        self._ledgers = directory / "ledgers"
        self._logs = directory / "logs"
        self._files = directory / "files"
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
            target=self._cluster.targets.get(client.kind, ""),
            directory=self._files / client.name,
            is_typed=client.topic == TYPED,
            ledger=self._ledgers / f"{client.name}.{life}.jsonl",
            servers=self._cluster.servers,
            ports=self._cluster.ports,
            security=self._cluster.client_settings,
        )
        module = "spark" if client.is_spark else _MODULES.get(client.kind, "member")
        command = [sys.executable, "-m", f"chaos.clients.{module}", spec]
        return with_clock(command, self._clock(client.name)) if self._has_clocks and not client.is_spark else command

    # -- faults ------------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> bool:
        """False if the process has ended by itself."""
        running = self._current[name]
        if not running.process.is_alive():
            return False
        running.was_killed = True
        running.send_signal(signal.SIGKILL)
        self._end(running)
        return True

    def is_query_running(self, name: str) -> bool:
        """Whether a driver has started its query. That may take minutes on a busy machine."""
        ledger = LedgerReader(self._ledgers / f"{self._current[name].name}.jsonl")
        return any(event.name == "running" for event in ledger.read())

    def kill_worker(self, name: str) -> bool:
        """Kill one of the Python processes that Spark's JVM started. False if there is none, or if the query has not
        started: Spark does not find the source again if the worker that looks for it dies."""
        workers = [pid for pid in descendants(self._current[name].process.pid) if is_python(pid)]
        if not workers or not self.is_query_running(name):
            return False
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(random.choice(workers), signal.SIGKILL)
        return True

    def jump_clock(self, name: str, seconds: int) -> None:
        set_clock(self._clock(name), seconds)

    def _clock(self, name: str) -> Path:
        return self._files / "clocks" / name

    def pause(self, name: str) -> None:
        self._current[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._current[name].send_signal(signal.SIGCONT)

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

    def received(self, name: str) -> set[Identity]:
        """The records that a client and its predecessors have received so far."""
        paths = self._ledgers.glob(f"{name}.*.jsonl")
        runs = [
            run
            for path in paths
            for event in LedgerReader(path).read()
            if event.name == "received"
            for run in event.fields["runs"]
        ]
        return {seen.identity for seen in from_runs(runs)}

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
        self._write_file_ledgers()
        ends = {each.name: each for each in self._all}
        lives = read_lives(self._ledgers, ends)
        for life in lives:
            if (running := ends.get(life.name)) is not None:
                life.ended, life.was_killed, life.code = running.ended, running.was_killed, running.code
        return lives

    def _write_file_ledgers(self) -> None:
        """Files of Spark's file sink become a ledger, too: they survive the driver."""
        for client in {each.client for each in self._all if each.client.kind in FILES}:
            group, topic = self._cluster.groups[client.kind], self._cluster.topics[client.topic]
            ledger = LedgerWriter(self._ledgers / f"{client.name}-files.0.jsonl")
            ledger.write("started", kind=client.kind, group=group, topic=topic, target="")
            for event in file_events(self._files / client.name / "out"):
                ledger.write(event.name, at=event.at, **event.fields)
            ledger.write("closed")
            ledger.close()
