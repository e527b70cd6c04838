"""Carries out a plan: starts clients, makes the faults happen, waits until all is consumed, and gathers evidence."""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from headrace import LocalBroker
from headrace._machines.lanes.commit_metadata import BACKLOG_SUFFIX

from .certificates import Certificates
from .clocks import library
from .cluster import SHARES, Cluster
from .disks import Disks
from .evidence import Evidence, Happened, TopicLog, save
from .ledger import milliseconds
from .plan import MOVING, PLAIN, RENEWAL, Client, Fault, Plan
from .processes import Processes
from .rules.copies import SINKS
from .rules.queries import DRIVER_PATIENCE

log = logging.getLogger("chaos")

PATIENCE = 100.0
"""Seconds: a broker's session (4) and restart (15), a member's session (10), its poll interval (30), requests (8), and
faults that follow each other (14 each)."""
_DELAY = 0.4
_JUMP = 3_600
"""Seconds by which a clock jumps, forward or backward. Records would be deleted if it were as long as the retention."""
_CLOSE_WITHIN = 75.0
_LOOK_EVERY = 3.0


def run_plan(plan: Plan, brokers: LocalBroker, directory: Path, disks: Disks | None = None) -> Evidence:
    """Run the plan and save the evidence below `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "plan.json").write_text(plan.to_json())
    kinds = {fault.kind for fault in plan.faults}
    certificates = Certificates(directory / "certificates") if RENEWAL in kinds else None
    cluster = Cluster(brokers, plan.clients, disks, certificates)
    processes = Processes(cluster, directory, "jump_clock" in kinds)
    try:
        return _Run(plan, cluster, processes, directory).run()
    finally:
        processes.close()
        cluster.close()


class _Run:
    def __init__(self, plan: Plan, cluster: Cluster, processes: Processes, directory: Path) -> None:
        self._plan = plan
        self._cluster = cluster
        self._processes = processes
        self._directory = directory
        self._clients = {client.name: client for client in plan.clients}
        self._happened: list[Happened] = []
        self._not_consumed: dict[str, str] = {}
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> Evidence:
        for client in self._plan.clients:
            self._processes.start(client)
        self._play()
        log.info("the faults are over: %d happened", len(self._happened))
        producers = [client for client in self._plan.clients if client.is_producer]
        consumers = [client for client in self._plan.clients if not client.is_producer]
        self._processes.stop(producers, _CLOSE_WITHIN)
        self._cluster.freeze()
        logs = {name: self._cluster.log(name) for name in self._cluster.written}
        log.info("written: %s", {name: len(found.records) for name, found in logs.items()})
        self._wait_consumed(consumers, logs)
        self._processes.stop(consumers, _CLOSE_WITHIN)
        return self._gather(logs)

    # -- faults --------------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        """Begin and heal each fault at its time. Those of brokers have a thread of their own, since restarts block."""
        start = time.monotonic()
        for fault in self._plan.faults:
            self._at(fault.at, lambda fault=fault: self._begin(fault))  # type: ignore[misc]
        self._at(self._plan.seconds, lambda: None)
        with ThreadPoolExecutor(1, thread_name_prefix="broker faults") as self._broker_faults:
            results: list[Future[None]] = []
            self._results = results
            while self._due:
                at, _, action = heapq.heappop(self._due)
                time.sleep(max(0.0, start + at - time.monotonic()))
                self._now = time.monotonic() - start
                action()
            for result in results:
                result.result()

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (seconds, next(self._numbers), action))

    def _begin(self, fault: Fault) -> None:
        log.info("%.1f s: %s %s for %g s", self._now, fault.kind, fault.target, fault.lasts)
        begun = milliseconds()
        heal: Callable[[], None] | None = None
        if fault.kind == "kill_worker":
            if not self._processes.kill_worker(fault.target):
                log.warning("%s has no worker", fault.target)
                return
        elif fault.kind == "kill_driver" and not self._processes.is_query_running(fault.target):
            # On a busy machine a driver may start for longer than the plan expects. Killed each time, it never runs.
            log.warning("%s has not started its query yet", fault.target)
            return
        elif fault.kind in ("kill_client", "kill_driver", "pause_client"):
            heal = self._begin_client(fault)
        elif fault.kind == "jump_clock":
            if library() is None:
                log.warning("%s needs a C compiler, and Linux", fault.kind)
                return
            heal = self._begin_jump(fault)
        elif fault.kind == RENEWAL:
            self._cluster.renew_certificates()
        elif fault.target.startswith("proxy-"):
            heal = self._begin_proxy(fault)
        else:
            self._results.append(self._broker_faults.submit(self._apply, fault))
            return
        if heal is None:
            self._happened.append(Happened(fault.kind, fault.target, begun, milliseconds()))
            return

        def healed() -> None:
            heal()
            self._happened.append(Happened(fault.kind, fault.target, begun, milliseconds()))

        self._at(self._now + fault.lasts, healed)

    def _begin_client(self, fault: Fault) -> Callable[[], None] | None:
        name = fault.target
        if fault.kind == "pause_client":
            self._processes.pause(name)
            return lambda: self._processes.resume(name)
        if not self._processes.kill(name):
            log.warning("%s has ended by itself", name)
            return None
        return lambda: self._processes.start(self._clients[name])

    def _begin_jump(self, fault: Fault) -> Callable[[], None]:
        forward = int(fault.at * 10) % 2
        self._processes.jump_clock(fault.target, _JUMP if forward else -_JUMP)
        return lambda: self._processes.jump_clock(fault.target, 0)

    def _begin_proxy(self, fault: Fault) -> Callable[[], None] | None:
        proxy = self._cluster.proxies[int(fault.target.rpartition("-")[2])]
        match fault.kind:
            case "cut":
                proxy.cut()
            case "halve":
                proxy.halve()
            case "delay":
                proxy.set_delay(_DELAY)
                return lambda: proxy.set_delay(0.0)
            case "jitter":
                proxy.set_jitter(_DELAY)
                return lambda: proxy.set_jitter(0.0)
            case "flood":
                proxy.flood()
            case "black_hole":
                proxy.set_black_hole(True)
                return lambda: proxy.set_black_hole(False)
        return None

    def _apply(self, fault: Fault) -> None:
        begun = milliseconds()
        if not self._cluster.apply(fault.kind, fault.target, fault.lasts):
            log.warning("%s is not possible here", fault.kind)
            return
        target = fault.target if fault.target.startswith("broker-") else f"topic {fault.target}"
        self._happened.append(Happened(fault.kind, target, begun, milliseconds()))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _wait_consumed(self, consumers: list[Client], logs: dict[str, TopicLog]) -> None:
        """Wait until all groups have committed or accepted everything. The judge finds what is missing."""
        waiting = {client.kind: client for client in consumers}
        has_spark = any(client.is_spark for client in consumers)
        deadline = time.monotonic() + PATIENCE + (DRIVER_PATIENCE / 1000 if has_spark else 0.0)
        while waiting and time.monotonic() < deadline:
            for kind, client in list(waiting.items()):
                if not self._left(client, logs[client.topic]):
                    del waiting[kind]
            if waiting:
                time.sleep(_LOOK_EVERY)  # polling, since a coordinator gives no event
        for client in waiting.values():
            left = str(self._left(client, logs[client.topic]))
            self._not_consumed[self._cluster.groups[client.kind]] = left
            log.warning("%s has not consumed everything: %s", client.kind, left)
        if dead := self._processes.dead():
            log.warning("ended by themselves: %s", dead)

    def _left(self, client: Client, found: TopicLog) -> object:
        group, topic = self._cluster.groups[client.kind], self._cluster.topics[client.topic]
        if client.kind in MOVING:
            missing = set(found.records.values()) - self._processes.received(client.name)
            return f"{len(missing)} records" if missing else ""
        if client.kind in SINKS:
            return self._cluster.uncopied(client.kind, found)
        return (self._cluster.unaccepted if client.kind in SHARES else self._cluster.uncommitted)(group, topic, found)

    def _gather(self, logs: dict[str, TopicLog]) -> Evidence:
        groups = [group for kind, group in self._cluster.groups.items() if kind not in (*SHARES, *SINKS)]
        if "lanes" in self._cluster.groups:
            groups.append(self._cluster.groups["lanes"] + BACKLOG_SUFFIX)
        evidence = Evidence(
            self._processes.lives(self._cluster.topics[PLAIN]),
            {self._cluster.topics[name]: found for name, found in logs.items()},
            {group: self._cluster.commits(group) for group in groups},
            self._happened,
            {topic: self._cluster.copies(kind) for kind, topic in self._cluster.targets.items()},
            self._not_consumed,
            PATIENCE * 1000,
            {
                group: self._cluster.share_states(group)
                for kind, group in self._cluster.groups.items()
                if kind in SHARES
            },
        )
        save(self._directory, evidence)
        return evidence
