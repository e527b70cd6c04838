"""The judge of the chaos runs: doctored ledgers of consumers with partitions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from chaos.evidence import Happened
from chaos.ledger import Event, Life
from headrace._machines.commit.offset_set import OffsetSet
from support.ledgers.commit_history import Commit
from support.ledgers.honest_run import (
    COMMITS,
    CUT,
    DONE,
    END,
    FIRST,
    SECOND,
    commit,
    doctored,
    evidence,
    killed,
    life,
    received,
    rules,
    with_events,
    with_kind,
    without,
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


LATER_CUT = Happened("cut", "proxy-1", 29_000, 29_000)
OPEN = dataclasses.replace(with_events(SECOND, lambda events: events[:-1]), ended=70_000)


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ([(29_001, 6), (29_002, 10), (29_003, 7), (29_004, 10)], set()),
        ([(29_001, 6), (29_002, 10), (29_003, 7), (29_004, 8), (29_005, 10)], set()),
        ([(29_001, 6), (29_002, 10), (29_003, 7)], {"not committed"}),
        ([(29_001, 6), (29_002, 10), (29_003, 7), (60_000, 8), (60_001, 10)], {"commit decreased"}),
        ([(29_001, 6), (29_002, 10), (60_000, 8), (60_001, 10)], {"commit decreased"}),
    ],
)
def test_the_next_commit_of_the_owner_corrects_a_late_one(commits: list[tuple[int, int]], expected: set[str]) -> None:
    history = [commit(105, 6), *(commit(*each) for each in commits)]
    found = evidence(FIRST, without(OPEN, "committed"), commits={"eager": history}, faults=[LATER_CUT])
    assert rules(found) - {"not closed"} == expected


def test_a_commit_that_forgets_finished_records_beyond_its_offset_is_found() -> None:
    beyond = OffsetSet(4).with_done(6, 8).to_text()
    for metadata, expected in (("", {"commit decreased"}), (beyond, set())):
        commits = [commit(120, 4, beyond), commit(121, 4, metadata), END]
        assert rules(evidence(DONE, commits={"done": commits})) == expected


def test_a_commit_is_in_the_log_before_it_is_confirmed() -> None:
    commits = [commit(115, 6), commit(145, 10)]
    assert "commit lost" in rules(evidence(FIRST, SECOND, commits={"eager": commits}))


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


@pytest.mark.parametrize("ending", ["revoked", "lost"])
@pytest.mark.parametrize(
    ("fault", "is_excused"),
    [
        (Happened("black_hole", "proxy-1", 90, 500), True),
        (Happened("kill_broker", "broker-1", 90, 500), True),
        (Happened("cut", "proxy-1", 90, 90), False),
        (Happened("jitter", "proxy-1", 90, 500), False),
        (Happened("renew_certificates", "proxy-all", 90, 90), False),
        (None, False),
    ],
)
def test_two_owners_are_allowed_only_if_a_fault_can_last_for_a_session(
    ending: str, fault: Happened | None, is_excused: bool
) -> None:
    late = with_events(
        without(FIRST, "revoked"), lambda events: [*events[:-1], Event(500, ending, {"partitions": [0]}), events[-1]]
    )
    found = evidence(late, SECOND, commits={"eager": COMMITS}, faults=[] if fault is None else [fault])
    assert ("two owners" not in rules(found)) == is_excused


def test_a_partition_that_is_assigned_twice_without_a_revoke_is_found() -> None:
    twice = with_events(FIRST, lambda events: [*events[:2], events[1], *events[2:]])
    assert "two owners" in rules(evidence(twice, SECOND, commits={"eager": COMMITS}))


def test_a_group_that_is_stuck_is_found() -> None:
    found = rules(evidence(FIRST, SECOND, commits={"eager": COMMITS}, patience=100.0))
    assert "stuck" in found


@pytest.mark.parametrize(
    ("events", "is_idle"),
    [
        ([], True),
        ([(100_000, "assigned", {"partitions": [1]})], False),
        ([(130_000, "assigned", {"partitions": [1]})], True),
        ([(10, "assigned", {"partitions": [1]}), (50, "lost", {"partitions": [1]})], True),
        ([(10, "assigned", {"partitions": []})], True),
        ([(10, "assigned", {"partitions": [1]}), (200_000, "revoked", {"partitions": [1]})], False),
    ],
)
def test_a_member_that_has_no_partition_for_too_long_is_found(
    events: list[tuple[float, str, dict[str, Any]]], is_idle: bool
) -> None:
    idle = dataclasses.replace(life("c", "eager", *events), ended=210_000)
    found = evidence(FIRST, SECOND, idle, commits={"eager": COMMITS})
    assert rules(found) == ({"idle"} if is_idle else set())


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


def test_a_handler_may_finish_after_its_partition_was_lost_and_assigned_again() -> None:
    """Its record belongs to the ownership in which it was received."""
    again = received(0, 1)
    worker = life(
        "d",
        "done",
        (5, "assigned", {"partitions": [0]}),
        *((100 + n, "received", received(n, n + 1)) for n in (0, 5)),
        (110, "lost", {"partitions": [0]}),
        (120, "assigned", {"partitions": [0]}),
        (130, "handled", again),
        (131, "handled", received(5, 6)),
        *((140 + n, "received", received(n, n + 1)) for n in range(10)),
        *((160 + n, "handled", received(n, n + 1)) for n in range(10)),
    )
    assert rules(evidence(worker)) == set()
    unread = with_events(worker, lambda events: [each for each in events if each.at != 100])
    assert "not the owner" in rules(evidence(unread)), "it was handled and never received"


def test_a_handler_that_starts_after_the_revoke_of_its_partition_is_found() -> None:
    late = with_events(
        DONE,
        lambda events: [events[0], events[1], Event(90, "revoked", {"partitions": [0]}), events[2], events[-1]],
    )
    assert "handled after the revoke" in rules(evidence(late))
