"""Evidence of a run that kept all promises, for tests of the judge, and ways to doctor it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from chaos.evidence import Evidence, Happened, TopicLog, log_of
from chaos.judge import judge
from chaos.ledger import Event, Life
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import CommitMark
from support.ledgers.commit_history import Commit

PLAIN = log_of([[0, 0, 10, "p.0", 0, 0, -1]])
TX = log_of([[0, 0, 2, "t.0", 0, 0, 0], [0, 3, 2, "t.0", 0, 2, 1]], [[0, 0, 2, "t.0", 0, 0, 0]])


def received(start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"runs": [[0, start, end - start, "p.0", 0, start, -1]], **more}


def life(client: str, kind: str, *events: tuple[float, str, dict[str, Any]], number: int = 0, **more: Any) -> Life:
    topic = more.pop("topic", "plain")
    started = Event(0, "started", {"kind": kind, "group": more.pop("group", kind), "topic": topic, **more})
    closed = Event(1000, "closed", {})
    return Life(client, number, [started, *(Event(*event) for event in events), closed], ended=1001, code=0)


def killed(found: Life, at: float) -> Life:
    events = [event for event in found.events if event.at < at]
    return dataclasses.replace(found, events=events, ended=at, was_killed=True, code=137)


def commit(at: int, offset: int, metadata: str = "") -> Commit:
    return Commit(at, ("plain", 0), offset, metadata)


PRODUCER = life(
    "p",
    "idempotent",
    (10, "sent", {"runs": [[0, 0, 10, -1]]}),
    (20, "acked", {"records": [[0, number, number] for number in range(10)]}),
)
TRANSACTIONS = life(
    "t",
    "transactional",
    (10, "sent", {"runs": [[0, 0, 2, 0]]}),
    (11, "committing", {"transaction": 0}),
    (12, "txn_committed", {"transaction": 0}),
    (13, "sent", {"runs": [[0, 2, 2, 1]]}),
    (14, "aborting", {"transaction": 1}),
    (15, "txn_aborted", {"transaction": 1}),
    topic="tx",
)
FIRST = life(
    "a",
    "eager",
    (5, "assigned", {"partitions": [0]}),
    (100, "received", received(0, 6)),
    (110, "committed", {"offsets": [[0, 6]]}),
    (120, "revoked", {"partitions": [0]}),
)
SECOND = life(
    "b",
    "eager",
    (130, "assigned", {"partitions": [0]}),
    (140, "received", received(6, 10)),
    (150, "committed", {"offsets": [[0, 10]]}),
)
COMMITS = [commit(105, 6), commit(145, 10)]
CUT = Happened("cut", "proxy-1", 103, 103)
DONE = life(
    "d",
    "done",
    (5, "assigned", {"partitions": [0]}),
    (100, "received", received(0, 10)),
    *((101 + n, "handled", received(n, n + 1)) for n in range(10)),
)
SHARER = life(
    "s",
    "share_explicit",
    (100, "received", received(0, 10, delivery=1)),
    (110, "accepted", {"ranges": [[0, 0, 10]]}),
)
LIVE_FROM_6 = CommitMark(8, OffsetSet(0).with_done(0, 4).with_done(6, 8), "token")
LANES = life(
    "l",
    "lanes",
    (5, "assigned", {"partitions": [0]}),
    (100, "received", received(6, 10, lane="live")),
    (101, "received", received(0, 6, lane="backlog")),
)
COPIED = {"runs": [[0, 0, 2, "t.0", 0, 0, 0]]}
COPIER = life(
    "x",
    "exactly_once",
    (20, "assigned", {"partitions": [0]}),
    (30, "received", COPIED),
    (31, "handled", COPIED),
    topic="tx",
    target="copies",
)
COPIES = {"copies": [((0, 0), "t.0:0:0:0"), ((0, 1), "t.0:0:1:0")]}
LOGS = {"plain": PLAIN, "tx": TX}
END = commit(900, 10)
ENDS = {kind: [END] for kind in ("eager", "done", "lanes")}
ENDS |= {kind: [Commit(900, ("tx", 0), 2)] for kind in ("assigned", "exactly_once")}


def evidence(*lives: Life, commits: dict[str, list[Commit]] | None = None, **more: Any) -> Evidence:
    found = ENDS | (commits or {})
    return Evidence([PRODUCER, TRANSACTIONS, *lives], LOGS, found, copies=COPIES, **more)


def rules(found: Evidence) -> set[str]:
    return {verdict.rule for verdict in judge(found)}


def with_events(found: Life, change: Callable[[list[Event]], list[Event]]) -> Life:
    return dataclasses.replace(found, events=change(list(found.events)))


def with_kind(found: Life, kind: str) -> Life:
    started = found.events[0]
    fields = {**started.fields, "kind": kind, "group": kind, "target": "copies"}
    return with_events(found, lambda events: [started._replace(fields=fields), *events[1:]])


def without(found: Life, name: str) -> Life:
    return with_events(found, lambda events: [event for event in events if event.name != name])


HONEST = evidence(FIRST, SECOND, DONE, SHARER, LANES, COPIER, commits={"eager": COMMITS, "done": [commit(120, 10)]})


def with_log(name: str, log: TopicLog, *lives: Life, **more: Any) -> Evidence:
    found = evidence(*lives, **more)
    return dataclasses.replace(found, logs={**LOGS, name: log})


def doctored(name: str, **fields: Any) -> Callable[[Life], Life]:
    """A life whose events of this name have other fields."""
    return lambda found: with_events(
        found, lambda events: [event._replace(fields=fields) if event.name == name else event for event in events]
    )
