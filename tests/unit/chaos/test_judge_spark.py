"""The judge of the chaos runs finds doctored ledgers of Spark's queries guilty."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chaos.evidence import Evidence, Happened, log_of
from chaos.judge import judge
from chaos.ledger import Event, Life
from chaos.spark_files import file_events
from support.ledgers.commit_history import Commit

LOG = log_of([[0, 0, 10, "p.0", 0, 0, -1]])
END = [Commit(900, ("plain", 0), 10)]
PRODUCER = Life(
    "p",
    0,
    [
        Event(0, "started", {"kind": "idempotent", "group": "", "topic": "plain"}),
        Event(10, "sent", {"runs": [[0, 0, 10, -1]]}),
        Event(20, "acked", {"records": [[0, number, number] for number in range(10)]}),
        Event(1000, "closed", {}),
    ],
)


def batch(number: int, *ranges: tuple[int, int], lane: str | None = None) -> dict[str, Any]:
    runs = [[0, start, end - start, "p.0", 0, start, -1] for start, end in ranges]
    return {"batch": number, "runs": runs, "lane": lane}


def driver(kind: str, *events: tuple[float, str, dict[str, Any]], number: int = 0, is_killed: bool = False) -> Life:
    started = Event(50, "started", {"kind": kind, "group": kind, "topic": "plain", "target": "copies"})
    closed = [] if is_killed else [Event(1000, "closed", {})]
    found = [started, Event(60, "running", {}), *(Event(*event) for event in events), *closed]
    return Life("s", number, found, was_killed=is_killed)


def reading(kind: str, *batches: dict[str, Any]) -> Life:
    return driver(kind, *((100.0 + 10 * place, "received", each) for place, each in enumerate(batches)))


def evidence(*lives: Life, commits: Sequence[Commit] = END, **more: Any) -> Evidence:
    kind = lives[0].started["kind"]
    return Evidence([PRODUCER, *lives], {"plain": LOG}, {kind: commits}, **more)


def rules(found: Evidence) -> set[str]:
    return {verdict.rule for verdict in judge(found)}


KILLED = [Happened("kill_driver", "s", 115, 120)]
FIRST, SECOND = batch(0, (0, 6)), batch(1, (6, 10))


@pytest.mark.parametrize("kind", ["spark_plain", "spark_typed", "spark_lanes"])
def test_a_query_that_delivers_everything_in_its_batches_is_innocent(kind: str) -> None:
    assert judge(evidence(reading(kind, FIRST, SECOND))) == []


def test_a_batch_that_is_run_again_by_the_next_driver_replaces_the_first_attempt() -> None:
    dead = driver("spark_typed", (100, "received", FIRST), (110, "received", SECOND), is_killed=True)
    heir = driver("spark_typed", (200, "received", SECOND), number=1)
    assert judge(evidence(dead, heir, faults=KILLED)) == []


@pytest.mark.parametrize(
    ("batches", "rule"),
    [
        ([FIRST, batch(1, (6, 9))], "never delivered"),
        ([FIRST, batch(1, (5, 10))], "in the sink twice"),
        ([FIRST, batch(2, (6, 10))], "batch skipped"),
        ([batch(0, (6, 10)), batch(1, (0, 6))], "out of order"),
        ([FIRST, SECOND, batch(0, (0, 6))], "batch skipped"),
        ([FIRST, {**SECOND, "runs": [[0, 6, 4, "p.0", 0, 5, -1]]}], "not what was written"),
    ],
)
def test_a_ledger_that_breaks_a_promise_of_queries_is_found(batches: list[dict[str, Any]], rule: str) -> None:
    assert rule in rules(evidence(reading("spark_typed", *batches)))


@pytest.mark.parametrize("again", [batch(1, (6, 9)), batch(1, (6, 10), (0, 1)), batch(1)])
def test_a_batch_that_has_other_records_when_it_is_run_again_is_found(again: dict[str, Any]) -> None:
    dead = driver("spark_typed", (100, "received", FIRST), (110, "received", SECOND), is_killed=True)
    heir = driver("spark_typed", (200, "received", again), number=1)
    assert "repeated batch differs" in rules(evidence(dead, heir, faults=KILLED))


@pytest.mark.parametrize(
    ("commits", "rule"),
    [
        ([Commit(105, ("plain", 0), 7), *END], "committed too much"),
        ([Commit(115, ("plain", 0), 10), Commit(116, ("plain", 0), 6)], "commit decreased"),
        ([Commit(115, ("plain", 0), 6)], "not committed"),
    ],
)
def test_commits_of_a_query_that_break_a_promise_are_found(commits: list[Commit], rule: str) -> None:
    assert rule in rules(evidence(reading("spark_typed", FIRST, SECOND), commits=commits))


def test_two_lanes_of_a_query_are_disjoint_and_the_live_one_is_in_order() -> None:
    live, backlog = batch(0, (6, 8), lane="live"), batch(0, (0, 6), lane="backlog")
    later = batch(1, (8, 10), lane="live")
    assert judge(evidence(reading("spark_lanes", backlog, live, later))) == []
    overlapping = batch(0, (0, 7), lane="backlog")
    assert "in the sink twice" in rules(evidence(reading("spark_lanes", overlapping, live, later)))
    back = batch(1, (0, 6), lane="live")
    other = [batch(0, (6, 8), lane="live"), back, batch(2, (8, 10), lane="live")]
    assert "out of order" in rules(evidence(reading("spark_lanes", *other)))


def test_a_query_that_is_stuck_is_found() -> None:
    late = driver("spark_typed", (500_000, "received", batch(0, (0, 10))))
    assert "stuck" in rules(evidence(late, commits=[Commit(600_000, ("plain", 0), 10)]))


def test_a_query_that_fails_without_a_fault_is_found() -> None:
    failing = driver(
        "spark_typed",
        (100, "received", FIRST),
        (105, "query_failed", {"error": "no leader"}),
        (106, "running", {}),
        (110, "received", SECOND),
    )
    assert rules(evidence(failing)) == {"query failed"}
    assert rules(evidence(failing, faults=[Happened("kill_worker", "s", 101, 101)])) == set()


def test_a_query_that_fails_long_after_a_fault_is_found() -> None:
    late = (50_000, "query_failed", {"error": "no leader"})
    failing = driver("spark_typed", (100, "received", FIRST), (110, "received", SECOND), late)
    for at, expected in ((19_000, {"query failed"}), (21_000, set())):
        assert rules(evidence(failing, faults=[Happened("kill_worker", "s", at, at)])) == expected


# -- members of groups ------------------------------------------------------------------------------------------------


def peer(*events: tuple[float, str, dict[str, Any]]) -> Life:
    started = Event(50, "started", {"kind": "spark_peer", "group": "spark_member", "topic": "plain"})
    return Life("peer", 0, [started, *(Event(*event) for event in events), Event(1000, "closed", {})])


PEER = peer((100, "assigned", {"partitions": [0]}), (110, "received", {**SECOND, "batch": None}))
MEMBER = driver("spark_member", (70, "received", batch(0)), (80, "received", batch(1, (0, 6))))
HANDOVER = [Commit(90, ("plain", 0), 6), *END]


def test_a_query_and_a_consumer_share_a_group() -> None:
    assert judge(evidence(MEMBER, PEER, commits=HANDOVER)) == []


def test_a_record_that_no_member_of_the_query_s_group_delivers_is_found() -> None:
    short = driver("spark_member", (70, "received", batch(0)), (80, "received", batch(1, (0, 5))))
    assert "never delivered" in rules(evidence(short, PEER, commits=HANDOVER))


def test_a_member_that_delivers_what_the_query_committed_is_found() -> None:
    greedy = peer((100, "assigned", {"partitions": [0]}), (110, "received", {**batch(0, (5, 10)), "batch": None}))
    assert "delivered again" in rules(evidence(MEMBER, greedy, commits=HANDOVER))


def test_a_query_that_plans_what_was_committed_is_found() -> None:
    late = driver("spark_member", (70, "received", batch(0)), (50_000, "received", batch(1)))
    late.events.insert(-1, Event(50_100, "received", batch(2, (0, 10))))
    commits = [Commit(30_000, ("plain", 0), 6), Commit(60_000, ("plain", 0), 10)]
    early = peer((80, "assigned", {"partitions": [0]}), (90, "received", {**FIRST, "batch": None}))
    assert "delivered again" in rules(evidence(late, early, commits=commits))
    paused = [Happened("pause_client", "s", 45_000, 49_000)]
    assert "delivered again" not in rules(evidence(late, early, commits=commits, faults=paused))
    brief = [Happened("cut", "proxy-1", 45_000, 45_000)]
    assert "delivered again" in rules(evidence(late, early, commits=commits, faults=brief))


# -- share groups, sinks and files ------------------------------------------------------------------------------------


def test_a_query_of_a_share_group_delivers_at_least_once() -> None:
    assert judge(evidence(reading("spark_share", FIRST, SECOND))) == []
    dead = driver("spark_share", (100, "received", FIRST), is_killed=True)
    heir = driver("spark_share", (200, "received", batch(0)), (210, "received", batch(1, (0, 10))), number=1)
    assert judge(evidence(dead, heir, faults=KILLED)) == []


@pytest.mark.parametrize(
    ("batches", "rule"),
    [
        ([FIRST], "never delivered"),
        ([FIRST, batch(1, (3, 10))], "delivered again"),
        ([FIRST, batch(2, (6, 10))], "batch skipped"),
    ],
)
def test_a_ledger_that_breaks_a_promise_of_share_queries_is_found(batches: list[dict[str, Any]], rule: str) -> None:
    assert rule in rules(evidence(reading("spark_share", *batches)))


def test_a_batch_of_a_share_group_has_no_records_when_it_is_run_again() -> None:
    dead = driver("spark_share", (100, "received", FIRST), is_killed=True)
    heir = driver("spark_share", (200, "received", FIRST), (210, "received", SECOND), number=1)
    assert rules(evidence(dead, heir, faults=KILLED)) == {"repeated batch differs"}


def test_records_of_a_share_group_that_are_not_accepted_at_the_end_are_found() -> None:
    found = evidence(reading("spark_share", FIRST, SECOND), left={"spark_share": "6 of 10"})
    assert rules(found) == {"never accepted"}


COPIES = [((0, number), f"p.0:0:{number}:-1") for number in range(10)]


@pytest.mark.parametrize(
    ("kind", "copies", "faults", "expected"),
    [
        ("spark_sink_once", COPIES, [], set()),
        ("spark_sink_once", COPIES[1:], [], {"never copied"}),
        ("spark_sink_once", [*COPIES, COPIES[3]], KILLED, {"copied twice"}),
        ("spark_sink", [*COPIES, COPIES[3]], KILLED, set()),
        ("spark_sink", [*COPIES, COPIES[3]], [], {"copied twice"}),
        ("spark_sink", COPIES[:-1], KILLED, {"never copied"}),
        ("spark_sink", [*COPIES[:-1], ((0, 9), "p.0:0:8:-1")], KILLED, {"not what was written"}),
        ("spark_sink", [*COPIES, ((0, 11), "p.0:0:11:-1")], KILLED, {"of an aborted transaction"}),
    ],
)
def test_a_sink_that_breaks_its_promise_is_found(
    kind: str, copies: list[tuple[tuple[int, int], str]], faults: list[Happened], expected: set[str]
) -> None:
    found = evidence(driver(kind), faults=faults)
    assert rules(dataclasses.replace(found, copies={"copies": copies})) == expected


def test_only_files_that_the_log_of_the_file_sink_names_count(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()

    def add(name: str, offset: int) -> str:
        row = {"partition": 0, "offset": offset, "value": f"p.0:0:{offset}:-1"}
        (tmp_path / name).write_text(json.dumps(row) + "\n")
        return json.dumps({"path": f"file://{tmp_path}/{name.replace(' ', '%20')}"})

    zero, one, two = add("a.json", 0), add("b b.json", 1), add("c.json", 2)
    add("of a killed attempt.json", 1)
    (log / "0").write_text(f"v1\n{zero}\n")
    (log / "1.compact").write_text(f"v1\n{zero}\n{one}\n")
    (log / "2").write_text(f"v1\n{two}\n")
    (log / ".2.crc").write_text("")
    found = {(event.fields["batch"], run[1]) for event in file_events(tmp_path) for run in event.fields["runs"]}
    assert found == {(0, 0), (1, 1), (2, 2)}
