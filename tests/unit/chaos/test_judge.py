"""The judge of the chaos runs finds an honest ledger innocent, and one doctored in any way guilty."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.evidence import Evidence, Happened, TopicLog, load, log_of, save
from chaos.identity import Identity, Seen, from_runs, parse_identity, to_runs
from chaos.judge import judge
from chaos.ledger import Event, LedgerWriter, Life
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import CommitMark
from support.ledgers.commit_history import Commit
from support.ledgers.share_history import ShareState, parse_state

# `plain` has ten records of p.0 in partition 0. `tx` has a committed transaction at 0 and 1, an aborted one at 3 and 4.
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


def test_an_honest_run_is_innocent(tmp_path: Path) -> None:
    assert judge(HONEST) == []
    (tmp_path / "ledgers").mkdir()
    for each in HONEST.lives:
        writer = LedgerWriter(tmp_path / "ledgers" / f"{each.name}.jsonl")
        for event in each.events:
            writer.write(event.name, **event.fields)
        writer.close()
    save(tmp_path, HONEST)
    read = load(tmp_path)
    assert [[event.name for event in each.events] for each in read.lives] == [
        [event.name for event in each.events] for each in sorted(HONEST.lives, key=lambda each: each.client)
    ]
    assert (read.logs, read.commits, read.copies) == (HONEST.logs, HONEST.commits, HONEST.copies)


def test_runs_are_what_they_were_made_from() -> None:
    records = [Seen(0, 5 + n, Identity("p.0", 0, 7 + n)) for n in range(4)] + [Seen(0, 9, Identity("q.1", 0, 0, 3))]
    assert to_runs(records) == [[0, 5, 4, "p.0", 0, 7, -1], [0, 9, 1, "q.1", 0, 0, 3]]
    assert list(from_runs(to_runs(records))) == records
    assert parse_identity(str(records[-1].identity)) == records[-1].identity
    assert parse_identity("2.17") == Identity("java.2", -1, 17)


def with_log(name: str, log: TopicLog, *lives: Life, **more: Any) -> Evidence:
    found = evidence(*lives, **more)
    return dataclasses.replace(found, logs={**LOGS, name: log})


# -- producers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "log", "rule"),
    [
        ("plain", log_of([[0, 0, 9, "p.0", 0, 0, -1]]), "acknowledged and lost"),
        ("plain", log_of([[0, 0, 10, "p.0", 0, 0, -1], [0, 10, 1, "p.0", 0, 9, -1]]), "written twice"),
        ("plain", log_of([[0, 0, 10, "p.0", 0, 0, -1], [0, 10, 1, "p.0", 0, 10, -1]]), "never sent"),
        ("plain", log_of([[0, 0, 10, "p.0", 0, 0, -1], [0, 10, 1, "q.0", 0, 0, -1]]), "written by nobody"),
        ("plain", log_of([[0, 0, 10, "p.0", 1, 0, -1]]), "wrong partition"),
        ("plain", log_of([[0, 0, 1, "p.0", 0, 1, -1], [0, 1, 1, "p.0", 0, 0, -1]]), "out of order"),
        ("tx", log_of([[0, 0, 1, "t.0", 0, 0, 0]]), "committed and lost"),
        ("tx", log_of([[0, 0, 2, "t.0", 0, 0, 0], [0, 3, 2, "t.0", 0, 2, 1]]), "aborted and visible"),
    ],
)
def test_a_log_that_breaks_a_promise_of_producers_is_found(topic: str, log: TopicLog, rule: str) -> None:
    assert rule in rules(with_log(topic, log))


def test_a_record_that_was_acknowledged_without_an_offset_is_in_the_log() -> None:
    unknown = doctored("acked", records=[[0, number, -1] for number in range(10)])(PRODUCER)
    others = [TRANSACTIONS, FIRST, SECOND]
    commits = ENDS | {"eager": COMMITS}
    assert judge(Evidence([unknown, *others], LOGS, commits, copies=COPIES)) == []
    lost = {**LOGS, "plain": log_of([[0, 0, 9, "p.0", 0, 0, -1]])}
    found = judge(Evidence([unknown, *others], lost, commits, copies=COPIES))
    assert "acknowledged and lost" in {verdict.rule for verdict in found}


def test_a_transaction_of_unknown_outcome_is_whole_or_absent() -> None:
    unknown = killed(without(TRANSACTIONS, "txn_committed"), 12.5)
    whole, half = log_of([[0, 0, 2, "t.0", 0, 0, 0]]), log_of([[0, 0, 1, "t.0", 0, 0, 0]])
    for log, expected in ((whole, set()), (log_of([]), set()), (half, {"half a transaction"})):
        assert rules(Evidence([unknown], {"tx": log})) == expected
    open_ = killed(TRANSACTIONS, 11)
    assert rules(Evidence([open_], {"tx": whole})) == {"aborted and visible"}, "its commit was never called"


# -- consumers with partitions ----------------------------------------------------------------------------------------


def doctored(name: str, **fields: Any) -> Callable[[Life], Life]:
    """A life whose events of this name have other fields."""
    return lambda found: with_events(
        found, lambda events: [event._replace(fields=fields) if event.name == name else event for event in events]
    )


@pytest.mark.parametrize(
    ("first", "second", "commits", "rule"),
    [
        (FIRST, doctored("received", **received(7, 10))(SECOND), COMMITS, "never delivered"),
        (FIRST, doctored("received", **received(5, 10))(SECOND), COMMITS, "delivered again"),
        (FIRST, SECOND, [commit(105, 7), commit(145, 10)], "committed too much"),
        (FIRST, SECOND, [*COMMITS, commit(200, 4)], "commit decreased"),
        (FIRST, SECOND, COMMITS[:1], "commit lost"),
        (without(FIRST, "committed"), without(SECOND, "committed"), COMMITS[:1], "not committed"),
        (FIRST, without(SECOND, "assigned"), COMMITS, "not the owner"),
        (doctored("received", runs=[[0, 0, 6, "q.0", 0, 0, -1]])(FIRST), SECOND, COMMITS, "not what was written"),
        (
            doctored("received", runs=[[0, 3, 3, "p.0", 0, 3, -1], [0, 0, 3, "p.0", 0, 0, -1]])(FIRST),
            SECOND,
            COMMITS,
            "out of order",
        ),
        (
            doctored("received", runs=[[0, 0, 2, "p.0", 0, 0, -1], [0, 4, 2, "p.0", 0, 4, -1]])(FIRST),
            SECOND,
            COMMITS,
            "skipped",
        ),
        (without(FIRST, "closed"), SECOND, COMMITS, "not closed"),
        (without(FIRST, "revoked"), SECOND, COMMITS, "two owners"),
    ],
)
def test_a_ledger_that_breaks_a_promise_of_groups_is_found(
    first: Life, second: Life, commits: list[Commit], rule: str
) -> None:
    assert rule in rules(evidence(first, second, commits={"eager": commits}))


def test_records_that_were_not_committed_may_be_delivered_again() -> None:
    dead = killed(FIRST, 105)
    again = doctored("received", **received(0, 10))(SECOND)
    assert rules(evidence(dead, again, commits={"eager": COMMITS[1:]})) == set()


@pytest.mark.parametrize(
    ("kind", "commits", "faults", "is_late"),
    [
        ("eager", [commit(104, 4), commit(106, 6), commit(108, 5), commit(145, 10)], [CUT], True),
        ("eager", [commit(104, 4), commit(106, 6), commit(108, 5), commit(145, 10)], [], False),
        ("eager", [commit(106, 6), commit(145, 10), commit(150, 5)], [CUT], False),  # of the former owner
        ("exactly_once", [commit(104, 4), commit(106, 6), commit(108, 5), commit(145, 10)], [CUT], False),
    ],
)
def test_a_commit_may_be_late_if_its_connection_broke(
    kind: str, commits: list[Commit], faults: list[Happened], is_late: bool
) -> None:
    first, second = (with_kind(each, kind) for each in (FIRST, SECOND))
    found = rules(evidence(first, second, commits={kind: commits}, faults=faults))
    assert ("commit decreased" not in found) == is_late


def test_the_next_owner_resumes_at_a_late_commit() -> None:
    commits = [commit(104, 4), commit(106, 6), commit(108, 4), commit(135, 5), commit(145, 10)]
    again = doctored("received", **received(4, 10))(SECOND)
    confirmed = without(FIRST, "committed")
    assert rules(evidence(confirmed, again, commits={"eager": commits}, faults=[CUT])) == set()


def test_a_late_commit_does_not_undo_what_was_committed_long_before() -> None:
    commits = [commit(105, 6), commit(30_000, 10), commit(30_001, 4)]
    longer = dataclasses.replace(with_events(SECOND, lambda events: events[:-1]), ended=40_000)
    found = evidence(FIRST, longer, commits={"eager": commits}, faults=[Happened("cut", "proxy-1", 29_000, 29_000)])
    assert "commit decreased" in rules(found)


def test_two_owners_are_allowed_while_one_of_them_is_stopped() -> None:
    stopped = [Happened("pause", "a", 90, 500)]
    late = with_events(without(FIRST, "revoked"), lambda events: events)
    assert "two owners" not in rules(evidence(late, SECOND, commits={"eager": COMMITS}, faults=stopped))
    jumped = [Happened("jump_clock", "a", 90, 500)]
    assert "two owners" in rules(evidence(late, SECOND, commits={"eager": COMMITS}, faults=jumped))


def test_a_group_that_is_stuck_is_found() -> None:
    found = rules(evidence(FIRST, SECOND, commits={"eager": COMMITS}, patience=100.0))
    assert "stuck" in found


def test_a_record_of_an_aborted_transaction_is_found() -> None:
    runs = [[0, 0, 2, "t.0", 0, 0, 0], [0, 3, 1, "t.0", 0, 2, 1]]
    reader = life("r", "assigned", (5, "assigned", {"partitions": [0]}), (9, "received", {"runs": runs}), topic="tx")
    assert rules(evidence(reader)) == {"of an aborted transaction"}


@pytest.mark.parametrize(
    ("order", "commits", "rule"),
    [
        ([0, 5, 1, 2, 3, 4, 6, 7, 8, 9], [], None),  # other keys
        ([5, 0, 1, 2, 3, 4, 6, 7, 8, 9], [], "out of order"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], [], "never delivered"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [commit(105, 9)], "committed too much"),
    ],
)
def test_handlers_run_in_the_order_of_keys_before_commits(
    order: list[int], commits: list[Commit], rule: str | None
) -> None:
    handled = [(101 + place, "handled", received(n, n + 1)) for place, n in enumerate(order)]
    worker = life("d", "done", (5, "assigned", {"partitions": [0]}), (100, "received", received(0, 10)), *handled)
    found = rules(evidence(worker, commits={"done": [*commits, END]}))
    assert rule in found if rule else not found


def test_a_handler_that_outlives_the_revoke_of_its_partition_is_found() -> None:
    revoked = with_events(DONE, lambda events: [*events[:-1], Event(105, "revoked", {"partitions": [0]}), events[-1]])
    ordered = with_events(revoked, lambda events: sorted(events, key=lambda event: event.at))
    assert rules(evidence(ordered)) == {"handled after the revoke"}
    lost = with_events(
        ordered, lambda events: [event._replace(name=event.name.replace("revoked", "lost")) for event in events]
    )
    assert rules(evidence(lost)) == set()


# -- two lanes, share groups, exactly once ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "commits", "rule"),
    [
        ([received(0, 7, lane="backlog"), received(6, 10, lane="live")], [], "lanes overlap"),
        ([received(5, 6, lane="backlog"), received(0, 5, lane="backlog")], [], "out of order"),
        ([received(0, 9, lane="live")], [], "never delivered"),
        ([received(0, 10, lane="live")], [commit(50, 3)], "lane commits"),
        ([received(0, 10, lane="live")], [commit(150, 3)], "not committed"),
    ],
)
def test_a_ledger_that_breaks_a_promise_of_two_lanes_is_found(
    events: list[dict[str, Any]], commits: list[Commit], rule: str
) -> None:
    read = [(100 + place, "received", fields) for place, fields in enumerate(events)]
    member = life("l", "lanes", (5, "assigned", {"partitions": [0]}), *read)
    assert rule in rules(evidence(member, commits={"lanes": commits}))


def test_a_lane_that_delivers_what_both_logs_have_is_found() -> None:
    dead = killed(LANES, 200)
    marks = [commit(150, LIVE_FROM_6.offset, ""), END]
    heir = life("m", "lanes", (300, "assigned", {"partitions": [0]}), (310, "received", received(7, 10, lane="live")))
    assert rules(evidence(dead, heir, commits={"lanes": marks})) == {"lane commits"}


def test_a_record_may_have_the_same_delivery_count_after_its_acknowledgement_was_rejected() -> None:
    """The broker forgot the count, because the connection of the group's only member broke."""

    def broken(events: list[Event]) -> list[Event]:
        rejected = Event(events[1].at, "rejected", {"ranges": [[0, 0, 10]], "error": "NetworkError"})
        return [*events[:2], rejected, *events[1:]]

    assert rules(evidence(with_events(SHARER, broken))) == set()


AGAIN = life("o", "share_explicit", (200, "received", received(0, 10)))


@pytest.mark.parametrize(
    ("lives", "rule"),
    [
        ([doctored("received", **received(0, 9))(SHARER)], "never delivered"),
        ([doctored("accepted", ranges=[[0, 0, 9]])(SHARER)], "never accepted"),
        (
            [SHARER, with_events(AGAIN, lambda events: [*events, Event(201, "accepted", {"ranges": [[0, 3, 4]]})])],
            "accepted twice",
        ),
        ([SHARER, AGAIN], "delivered again"),
        ([with_events(SHARER, lambda events: [*events[:2], *events[1:]])], "returned twice"),
        (
            [SHARER, life("o", "share_explicit", (105, "accepted", {"ranges": [[0, 1, 2]]}))],
            "accepted without delivery",
        ),
    ],
)
def test_a_ledger_that_breaks_a_promise_of_share_groups_is_found(lives: list[Life], rule: str) -> None:
    assert rule in rules(evidence(*lives))


TWICE = with_events(AGAIN, lambda events: [*events[:-1], Event(201, "accepted", {"ranges": [[0, 3, 4]]}), events[-1]])


@pytest.mark.parametrize(
    ("starts", "is_forgotten"), [([0, 10, 3], True), ([0, 3, 3], False), ([0, 10, 10], False), ([3, 3, 10], False)]
)
def test_a_record_may_be_accepted_again_after_the_coordinator_moved_its_start_offset_back(
    starts: list[int], is_forgotten: bool
) -> None:
    states = [ShareState(at, 0, start) for at, start in zip((100, 110, 150), starts, strict=True)]
    down = [Happened("pause_broker", "broker-1", 90, 300)]
    found = rules(evidence(SHARER, TWICE, share_states={"share_explicit": states}, faults=down))
    assert ("accepted twice" not in found) == is_forgotten


def test_a_record_may_be_accepted_again_after_the_coordinator_saved_it_as_available() -> None:
    down = [Happened("pause_broker", "broker-1", 90, 300)]
    for last, is_forgotten in ((0, True), (2, False)):
        states = [ShareState(110, 0, 0, ((3, 3, 2),)), ShareState(150, 0, 0, ((0, 9, last),))]
        found = rules(evidence(SHARER, TWICE, share_states={"share_explicit": states}, faults=down))
        assert ("accepted twice" not in found) == is_forgotten


def test_a_state_of_a_share_group_is_parsed() -> None:
    key = struct.pack(">hh1s16si", 1, 1, b"g", bytes(16), 3)
    batch = struct.pack(">qqbhb", 44, 45, 2, 1, 0)
    value = struct.pack(">hiiqb", 0, 7, 8, 42, 3) + batch + batch
    assert parse_state("g", 5, key, value) == ShareState(5, 3, 42, ((44, 45, 2), (44, 45, 2)))
    assert parse_state("h", 5, key, value) is None
    snapshot = struct.pack(">hiiiqqqb", 0, 7, 8, 9, 43, 0, 0, 2) + batch
    assert parse_state("g", 5, key[:1] + bytes(1) + key[2:], snapshot) == ShareState(5, 3, 43, ((44, 45, 2),))


@pytest.mark.parametrize(
    ("copies", "rule"),
    [
        ([((0, 0), "t.0:0:0:0")], "never copied"),
        ([*COPIES["copies"], ((0, 0), "t.0:0:0:0")], "copied twice"),
        ([*COPIES["copies"], ((0, 3), "t.0:0:2:1")], "of an aborted transaction"),
        ([((0, 0), "t.0:0:9:0"), ((0, 1), "t.0:0:1:0")], "not what was written"),
    ],
)
def test_a_target_that_is_not_an_exact_copy_is_found(copies: list[tuple[tuple[int, int], str]], rule: str) -> None:
    found = dataclasses.replace(evidence(COPIER), copies={"copies": copies})
    assert rules(found) == {rule}
