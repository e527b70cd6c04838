"""`--pin`: the broker on cores of its own, everything else on the others.

Without it, the scheduler moves client and broker between cores, which widens the spread of the figures. The two sides
never share a physical core if there are at least two. The broker's JVM is pinned after it has started, so that it still
sizes its thread pools and its garbage collector for the whole machine.

The cores are a setting of the process: `use()` is called once, before anything is measured. Child processes inherit the
cores of this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from headrace.local import LocalBroker

_MOST_OF_BROKER = 4
_SYSTEM = Path("/sys/devices/system/cpu")


class CannotPin(Exception):
    """This machine or system has no cores to choose from."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cores:
    broker: frozenset[int]
    clients: frozenset[int]

    def __str__(self) -> str:
        return f"broker on {listed(self.broker)}, clients on {listed(self.clients)}"


_chosen: Cores | None = None


def use() -> Cores:
    """Pin this process, and from now on the brokers of `broker()`. Raises CannotPin."""
    global _chosen
    if not hasattr(os, "sched_setaffinity"):
        raise CannotPin("--pin needs Linux: this system has no sched_setaffinity()")
    cpus = os.sched_getaffinity(0)
    _chosen = split(cpus, {cpu: siblings(cpu) for cpu in cpus})
    os.sched_setaffinity(0, _chosen.clients)
    return _chosen


def chosen() -> Cores | None:
    return _chosen


def split(cpus: Collection[int], together: Mapping[int, frozenset[int]]) -> Cores:
    """The broker gets the last quarter of the physical cores: at least one, at most four. `together` has the CPUs that
    share a physical core with a CPU. Raises CannotPin with one CPU."""
    usable = frozenset(cpus)
    if len(usable) < 2:
        raise CannotPin(f"--pin needs two processors: there is {len(usable)}")
    physical = sorted({together.get(cpu, frozenset([cpu])) & usable | {cpu} for cpu in usable}, key=min)
    if len(physical) == 1:
        physical = [frozenset([cpu]) for cpu in sorted(usable)]
    first = len(physical) - min(_MOST_OF_BROKER, max(1, len(physical) // 4))
    return Cores(frozenset().union(*physical[first:]), frozenset().union(*physical[:first]))


def siblings(cpu: int) -> frozenset[int]:
    """The CPUs of the same physical core, with itself."""
    try:
        return parse_list((_SYSTEM / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text())
    except (OSError, ValueError):
        return frozenset([cpu])


def parse_list(text: str) -> frozenset[int]:
    """The kernel's lists of CPUs: `0-3,8`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def listed(cpus: Collection[int]) -> str:
    return ("CPU " if len(cpus) == 1 else "CPUs ") + ", ".join(map(str, sorted(cpus)))


@contextlib.contextmanager
def broker(made: LocalBroker) -> Iterator[LocalBroker]:
    """Starts the broker; after `use()`, on its own cores."""
    if _chosen is None:
        with made as started:
            yield started
        return
    os.sched_setaffinity(0, _chosen.broker | _chosen.clients)  # what the JVM sees when it starts
    try:
        made.start()
    finally:
        os.sched_setaffinity(0, _chosen.clients)
    try:
        for broker_id in made.live_brokers:
            pin(made.pid(broker_id), _chosen.broker)
        yield made
    finally:
        made.stop()


def pin(pid: int, cpus: Collection[int]) -> None:
    """Pin all threads of a process. Threads that it starts later inherit the cores of the thread that starts them."""
    done: set[int] = set()
    while more := {int(task.name) for task in Path("/proc", str(pid), "task").iterdir()} - done:
        for thread in more:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, cpus)
        done |= more
