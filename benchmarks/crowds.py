"""Many consumers in one process, all in one group: the time until the group is stable, and the cost of doing nothing.

Each consumer has a thread that polls all the time. Nothing is written to the topic, so after the rebalance the process
only waits: for records, and for the next heartbeat. All settings have their defaults.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from .readers import Job
from .rebalancing import Client, Ledger, Member, confluent_clients, headrace_clients

PARTITIONS = 128
SIZES = (1, 10, 50, 64)
CLIENTS = ("headrace", "confluent")
_SETTLING = 8.0  # new members of a KIP-848 group send more heartbeats at first
_IDLE = 10.0


def headrace(job: Job) -> dict[str, float]:
    settings = {"group_id": f"crowd-{uuid.uuid4()}", "group_protocol": job.protocol}
    return figures_of(job, headrace_clients(job.servers, settings))


def confluent(job: Job) -> dict[str, float]:
    settings = {"group.id": f"crowd-{uuid.uuid4()}", "group.protocol": job.protocol}
    return figures_of(job, confluent_clients(job.servers, settings))


def figures_of(job: Job, make: Callable[[], Client]) -> dict[str, float]:
    """Seconds, percent of a core, and megabytes."""
    ledger = Ledger(job.partitions)
    started = time.perf_counter()
    members = [Member(make, job.topic, ledger) for _ in range(job.members)]
    stable = ledger.wait(job.members) - started
    time.sleep(_SETTLING)
    before, cpu = time.perf_counter(), time.process_time()
    time.sleep(_IDLE)
    idle = (time.process_time() - cpu) / (time.perf_counter() - before)
    resident = _resident_bytes()
    for member in members:
        member.leave()
    closing = time.perf_counter()
    for member in members:
        member.join()
    return {
        "stable": stable,
        "idle": idle * 100,
        "memory": resident / 1e6,
        "close": time.perf_counter() - closing,
    }


def shown(figures: Mapping[str, float]) -> str:
    return (
        f"stable after {figures['stable']:.2f} s, idle {figures['idle']:.1f} % of a core, {figures['memory']:.0f} MB, "
        f"closed in {figures['close']:.2f} s"
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
