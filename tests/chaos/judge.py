"""The judge: ledgers in, verdicts out. `python -m chaos.judge DIRECTORY` judges a kept run again."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .evidence import Evidence, Verdict, load
from .plan import MOVING
from .rules import groups, lanes
from .rules.copies import check_copies
from .rules.groups import check_groups
from .rules.lanes import check_lanes
from .rules.moving import check_moving
from .rules.ownerships import check_idle
from .rules.queries import check_queries, check_query_failures, check_spark_members, check_spark_shares
from .rules.shares import check_shares
from .rules.writes import check_writes

_JAVA_ENDS = 128 + signal.SIGTERM
"""The exit code of a JVM that SIGTERM has ended in an orderly way."""


def check_processes(evidence: Evidence) -> Iterator[Verdict]:
    """No process ends by itself, and each that is asked to close does so."""
    for life in evidence.lives:
        if life.was_killed:
            continue
        if not life.is_closed:
            what = "is still running" if life.code is None else f"ended with code {life.code} and was not closed"
            yield Verdict("not closed", life.name, what)
        elif life.code not in (None, 0, _JAVA_ENDS if life.started.get("kind") == "java" else 0):
            yield Verdict("not closed", life.name, f"ended with code {life.code} after it was closed")


def check_members(evidence: Evidence) -> Iterator[Verdict]:
    """No member of a group is without partitions for long."""
    for lives in evidence.of_kind(*groups.KINDS, *lanes.KINDS, *MOVING, "spark_peer").values():
        yield from check_idle(evidence, lives)


RULES: Mapping[str, Callable[[Evidence], Iterator[Verdict]]] = {
    "processes": check_processes,
    "members": check_members,
    "writes": check_writes,
    "groups": check_groups,
    "lanes": check_lanes,
    "moving logs": check_moving,
    "share groups": check_shares,
    "copies": check_copies,
    "queries": check_queries,
    "queries in groups": check_spark_members,
    "queries of share groups": check_spark_shares,
    "failures of queries": check_query_failures,
}


def judge(evidence: Evidence) -> list[Verdict]:
    """All broken promises; none if all were kept."""
    return [verdict for check in RULES.values() for verdict in check(evidence)]


def main() -> None:
    verdicts = judge(load(Path(sys.argv[1])))
    for verdict in verdicts:
        print(verdict)
    sys.exit(bool(verdicts))


if __name__ == "__main__":
    main()
