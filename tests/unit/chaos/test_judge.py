"""The judge of the chaos runs finds an honest ledger innocent, and one doctored in any way guilty."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from chaos.evidence import Evidence, TopicLog, load, log_of, save
from chaos.identity import (
    Identity,
    Seen,
    from_runs,
    identity_of,
    identity_of_record,
    key_of,
    parse_identity,
    to_runs,
    written_fields,
)
from chaos.judge import judge
from chaos.ledger import Event, LedgerWriter, Life
from chaos.rules.copies import parse_copy
from support.brokers.topic_contents import Row
from support.ledgers.commit_history import Commit
from support.ledgers.honest_run import (
    COMMITS,
    COPIER,
    COPIES,
    CUT,
    END,
    ENDS,
    FIRST,
    HONEST,
    LANES,
    LIVE_FROM_6,
    LOGS,
    PRODUCER,
    SECOND,
    TRANSACTIONS,
    commit,
    doctored,
    evidence,
    killed,
    life,
    received,
    rules,
    with_events,
    with_log,
    without,
)


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


def test_a_process_that_left_no_ledger_is_found(tmp_path: Path) -> None:
    (tmp_path / "ledgers").mkdir()
    silent, dead = Life("n", 0, ended=50, code=1), Life("m", 0, ended=50, was_killed=True, code=137)
    save(tmp_path, Evidence([silent, dead], {}))
    assert [(verdict.rule, verdict.who) for verdict in judge(load(tmp_path))] == [("not closed", "n.0")]


@pytest.mark.parametrize(
    ("kind", "code", "is_guilty"), [("eager", 139, True), ("eager", 137, True), ("java", 143, False)]
)
def test_a_process_that_fails_after_it_was_closed_is_found(kind: str, code: int, is_guilty: bool) -> None:
    first = dataclasses.replace(FIRST, code=code) if kind == "eager" else FIRST
    java = life("java", "java", (20, "acked", {"records": [[0, 10, 10]]}))
    found = [first, SECOND, *([] if kind == "eager" else [dataclasses.replace(java, code=code)])]
    assert ("not closed" in rules(evidence(*found, commits={"eager": COMMITS}))) == is_guilty


def test_runs_are_what_they_were_made_from() -> None:
    records = [Seen(0, 5 + n, Identity("p.0", 0, 7 + n)) for n in range(4)] + [Seen(0, 9, Identity("q.1", 0, 0, 3))]
    assert to_runs(records) == [[0, 5, 4, "p.0", 0, 7, -1], [0, 9, 1, "q.1", 0, 0, 3]]
    assert list(from_runs(to_runs(records))) == records
    assert parse_identity(str(records[-1].identity)) == records[-1].identity
    assert parse_identity("2.17") == Identity("java.2", -1, 17)


def test_a_record_with_a_key_that_its_producer_did_not_send_has_another_identity() -> None:
    value = b"p.0:0:7:-1"
    written = Identity("p.0", 0, 7)
    assert identity_of(value, b"p.0-2") == written
    for key in (b"p.0-3", b"", None):
        assert identity_of(value, key) != written
    assert identity_of(b"2.17", None) == Identity("java.2", -1, 17)
    forged = log_of([[0, 0, 9, "p.0", 0, 0, -1], to_runs([Seen(0, 9, identity_of(b"p.0:0:9:-1", None))])[0]])
    assert {"acknowledged and lost", "written by nobody"} <= rules(with_log("plain", forged))
    copies = [((0, 0), "t.0:0:0:0"), parse_copy(b"0/1/t.0:0:1:0", b"another")]
    assert rules(dataclasses.replace(evidence(COPIER), copies={"copies": copies})) == {"not what was written"}
    assert parse_copy(b"0/1/t.0:0:1:0", b"t.0-1") == COPIES["copies"][1]


@pytest.mark.parametrize(
    "change",
    [
        {"headers": ()},
        {"headers": (("written", None),)},
        {"headers": (("another", b"p.0:0:7:-1 1000"),)},
        {"headers": (("written", b"p.0:0:8:-1 1000"),)},
        {"headers": (("written", b"p.0:0:7:-1 1000"),) * 2},
        {"timestamp": 1001},
    ],
)
def test_a_record_with_other_headers_or_another_timestamp_has_another_identity(change: dict[str, Any]) -> None:
    written = Identity("p.0", 0, 7)
    fields = written_fields(written)
    honest = Row(
        "plain", 0, 3, fields["timestamp"], 0, key_of(written).encode(), b"p.0:0:7:-1", tuple(fields["headers"])
    )
    assert identity_of_record(honest) == written
    honest = honest._replace(timestamp=1000, headers=(("written", b"p.0:0:7:-1 1000"),))
    assert identity_of_record(honest) == written
    assert identity_of_record(honest._replace(**change)) != written


def test_brokers_replace_the_timestamps_of_a_topic_with_retention() -> None:
    written = Identity("retained-writer.1", 0, 7)
    value = b"retained-writer.1:0:7:-1"
    row = Row("retained", 0, 3, 1006, 1, key_of(written).encode(), value, (("written", value + b" 1000"),))
    assert identity_of_record(row) == written
    for headers in ((), (("written", None),), (("written", b"retained-writer.1:0:8:-1 1000"),)):
        assert identity_of_record(row._replace(headers=headers)) != written


def test_a_record_of_java_has_no_headers() -> None:
    row = Row("plain", 0, 3, 1000, 0, None, b"2.17", ())
    assert identity_of_record(row) == Identity("java.2", -1, 17)
    assert identity_of_record(row._replace(headers=(("written", b""),))) != Identity("java.2", -1, 17)


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


ACKED = [[0, number, number] for number in range(10)]


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([], "wrote nothing"),
        ([(20, "acked", {"records": ACKED})], "never sent"),
        ([(10, "sent", {"runs": [[0, 0, 11, -1]]}), (20, "acked", {"records": ACKED})], "never reported"),
        (
            [
                (10, "sent", {"runs": [[0, 0, 11, -1]]}),
                (20, "acked", {"records": ACKED}),
                (30, "failed", {"records": [[0, 10, "timed out"]]}),
            ],
            "failed early",
        ),
        ([(-130_000, "sent", {"runs": [[0, 0, 10, -1]]}), (20, "acked", {"records": ACKED})], "stuck"),
    ],
)
def test_a_producer_that_does_not_report_what_it_sent_is_found(
    events: list[tuple[float, str, dict[str, Any]]], rule: str
) -> None:
    others = [TRANSACTIONS, FIRST, SECOND]
    found = Evidence([life("p", "idempotent", *events), *others], LOGS, ENDS | {"eager": COMMITS}, copies=COPIES)
    assert rule in rules(found)


def test_a_send_that_raised_an_error_may_have_no_report() -> None:
    refused = [Event(30, "sent", {"runs": [[0, 10, 5, -1]]}), Event(31, "error", {"error": "RequestTimeoutError"})]
    found = with_events(PRODUCER, lambda events: [*events[:-1], *refused, events[-1]])
    assert judge(Evidence([found, TRANSACTIONS], LOGS)) == []
    dead = killed(with_events(PRODUCER, lambda events: [*events[:-1], refused[0], events[-1]]), 500)
    assert judge(Evidence([dead, TRANSACTIONS], LOGS)) == []


def test_a_delivery_may_fail_after_its_timeout() -> None:
    late = [Event(30, "sent", {"runs": [[0, 10, 1, -1]]}), Event(120_100, "failed", {"records": [[0, 10, "timeout"]]})]
    found = with_events(PRODUCER, lambda events: [*events[:-1], *late, events[-1]])
    assert judge(Evidence([found, TRANSACTIONS], LOGS)) == []


def test_a_transaction_that_takes_too_long_is_found() -> None:
    slow = with_events(
        TRANSACTIONS,
        lambda events: [each._replace(at=130_000) if each.name == "txn_committed" else each for each in events],
    )
    assert rules(Evidence([PRODUCER, slow], LOGS)) == {"stuck"}


def test_a_transaction_of_unknown_outcome_is_whole_or_absent() -> None:
    unknown = killed(without(TRANSACTIONS, "txn_committed"), 12.5)
    whole, half = log_of([[0, 0, 2, "t.0", 0, 0, 0]]), log_of([[0, 0, 1, "t.0", 0, 0, 0]])
    for log, expected in ((whole, set()), (log_of([]), set()), (half, {"half a transaction"})):
        assert rules(Evidence([unknown], {"tx": log})) == expected
    open_ = killed(TRANSACTIONS, 11)
    assert rules(Evidence([open_], {"tx": whole})) == {"aborted and visible"}, "its commit was never called"


# -- two lanes, exactly once ------------------------------------------------------------------------------------------


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


def test_the_logs_of_both_lanes_do_not_forget_finished_records() -> None:
    commits = [commit(150, 5), commit(160, 3), END]
    assert rules(evidence(LANES, commits={"lanes": commits})) == {"commit decreased"}
    assert rules(evidence(LANES, commits={"lanes": commits}, faults=[CUT])) == set()


def test_a_lane_that_delivers_what_both_logs_have_is_found() -> None:
    dead = killed(LANES, 200)
    marks = [commit(150, LIVE_FROM_6.offset, ""), END]
    heir = life("m", "lanes", (300, "assigned", {"partitions": [0]}), (310, "received", received(7, 10, lane="live")))
    assert rules(evidence(dead, heir, commits={"lanes": marks})) == {"lane commits"}


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


def test_the_copies_of_a_key_are_in_the_order_of_their_sources() -> None:
    log = log_of([[0, 0, 7, "t.0", 0, 0, 0]])
    for order, is_found in (
        ([0, 1, 2, 3, 4, 5, 6], False),
        ([1, 0, 2, 3, 4, 5, 6], False),
        ([5, 1, 2, 3, 4, 0, 6], True),
    ):
        copies = [((0, number), f"t.0:0:{number}:0") for number in order]
        found = dataclasses.replace(with_log("tx", log, COPIER), copies={"copies": copies})
        assert ("out of order" in rules(found)) == is_found
