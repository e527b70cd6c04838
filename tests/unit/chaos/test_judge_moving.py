"""The judge of the chaos runs: topics that lose records by retention, by compaction, or because they are recreated."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from chaos.evidence import Evidence, Happened, TopicLog, log_of
from chaos.judge import judge
from chaos.ledger import Event, Life
from support.ledgers.commit_history import Commit

WRITER = Life(
    "w",
    0,
    [
        Event(0, "started", {"kind": "moving_writer", "group": "", "topic": "t"}),
        Event(10, "sent", {"runs": [[0, 0, 10, -1]]}),
        Event(20, "acked", {"records": [[0, number, number] for number in range(10)]}),
        Event(90_000, "closed", {}),
    ],
)
ALL = log_of([[0, 0, 10, "w.0", 0, 0, -1]])
LAST_FOUR = log_of([[0, 6, 4, "w.0", 0, 6, -1]])
LAST_FIVE = log_of([[0, 5, 5, "w.0", 0, 5, -1]])
"""Five keys, so all of the others are replaced."""


def received(start: int, end: int) -> dict[str, Any]:
    return {"runs": [[0, start, end - start, "w.0", 0, start, -1]]}


def member(kind: str, *events: tuple[float, str, dict[str, Any]]) -> Life:
    started = Event(0, "started", {"kind": kind, "group": kind, "topic": "t"})
    assigned = Event(5, "assigned", {"partitions": [0]})
    return Life("m", 0, [started, assigned, *(Event(*event) for event in events), Event(90_000, "closed", {})])


def rules(kind: str, log: TopicLog, *events: tuple[float, str, dict[str, Any]], **more: Any) -> set[str]:
    commits = {kind: [Commit(4, ("t", 0), 0)]}
    found = Evidence([WRITER, member(kind, *events)], {"t": log}, commits, **more)
    return {verdict.rule for verdict in judge(found)}


REPORT = (30_000.0, "lost_range", {"partition": 0, "start": 2, "end": 6})
RECREATED = [Happened("recreate_topic", "topic recreated", 1_000, 2_000)]


@pytest.mark.parametrize("kind", ["retained", "compacted", "recreated", "unclean"])
def test_a_topic_that_lost_nothing_is_delivered_completely(kind: str) -> None:
    assert rules(kind, ALL, (100, "received", received(0, 10))) == set()
    assert "never delivered" in rules(kind, ALL, (100, "received", received(0, 9)))
    swapped = rules(kind, ALL, (100, "received", received(5, 10)), (101, "received", received(0, 5)))
    assert "out of order" in swapped
    forged = {"runs": [[0, 0, 10, "w.0", 0, 1, -1]]}
    assert "not what was written" in rules(kind, ALL, (100, "received", forged))


def test_records_that_retention_deleted_may_be_missed_if_the_consumer_reports_it() -> None:
    read = [(100.0, "received", received(0, 2)), REPORT, (30_001.0, "received", received(6, 10))]
    assert rules("retained", LAST_FOUR, *read) == set()
    assert rules("retained", LAST_FOUR, read[0], read[2]) == {"never delivered"}
    early = (3_000.0, "lost_range", REPORT[2])
    assert rules("retained", LAST_FOUR, read[0], early, read[2]) == {"never delivered"}, "they were too young"


def test_a_member_without_a_commit_starts_at_the_first_record_that_is_left() -> None:
    late = member("retained", (30_001, "received", received(6, 10)))
    late.events[1] = Event(30_000, "assigned", {"partitions": [0]})
    found = Evidence([WRITER, late], {"t": LAST_FOUR}, {"retained": [Commit(30_002, ("t", 0), 10)]})
    assert judge(found) == []


def test_retention_deletes_from_the_beginning() -> None:
    hole = log_of([[0, 0, 3, "w.0", 0, 0, -1], [0, 6, 4, "w.0", 0, 6, -1]])
    assert rules("retained", hole, (100, "received", received(0, 10))) == {"acknowledged and lost"}


def test_compaction_loses_only_records_that_a_later_one_replaces() -> None:
    assert rules("compacted", LAST_FIVE, (100, "received", received(5, 10))) == set()
    without_a_key = rules("compacted", LAST_FOUR, (100, "received", received(6, 10)))
    assert without_a_key == {"acknowledged and lost", "never delivered"}


def test_records_of_a_topic_before_it_was_recreated_may_be_lost() -> None:
    read = (100.0, "received", received(0, 4))
    assert rules("recreated", log_of([]), read, faults=RECREATED) == set()
    assert rules("recreated", log_of([]), read) == {"acknowledged and lost", "never delivered"}
    long_ago = [Happened("recreate_topic", "topic recreated", 80_000, 81_000)]
    assert rules("recreated", log_of([]), read, faults=long_ago, patience=1_000.0) == {"never delivered"}


def test_an_unclean_election_loses_only_records_of_its_time() -> None:
    read = (100.0, "received", received(0, 10))
    election = [Happened("unclean_election", "broker-pair", 15, 9_000)]
    earlier = [Happened("unclean_election", "broker-pair", 21, 9_000)]
    short = log_of([[0, 0, 4, "w.0", 0, 0, -1]])
    assert rules("unclean", short, read, faults=election) == set()
    assert rules("unclean", short, read, faults=earlier) == {"acknowledged and lost"}
    assert rules("unclean", short, (100.0, "received", received(0, 4)), faults=election) == set()
    assert rules("unclean", ALL, (100.0, "received", received(0, 4))) == {"never delivered"}


def test_faults_of_two_brokers_that_follow_each_other_may_cause_an_unclean_election() -> None:
    read = (100.0, "received", received(0, 10))
    short = log_of([[0, 0, 4, "w.0", 0, 0, -1]])
    first = Happened("pause_broker", "broker-2", 15, 30)
    for second, is_allowed in (
        (Happened("pause_broker", "broker-1", 40, 50), True),
        (Happened("pause_broker", "broker-2", 40, 50), False),
        (Happened("pause_broker", "broker-1", 30_040, 30_050), False),
    ):
        assert (rules("unclean", short, read, faults=[first, second]) == set()) == is_allowed


def test_a_record_may_be_written_twice_only_while_its_topic_is_recreated() -> None:
    moved = {"runs": [[0, 0, 10, "w.0", 0, 0, -1], [0, 10, 1, "w.0", 0, 3, -1]]}
    read = (100.0, "received", moved)
    assert rules("recreated", ALL, read, faults=RECREATED) == set()
    assert rules("recreated", ALL, read) == {"not what was written", "out of order"}


def test_records_that_are_in_the_recreated_topic_are_delivered() -> None:
    assert rules("recreated", ALL, faults=RECREATED) == {"never delivered"}


def test_a_record_that_was_never_sent_is_found() -> None:
    more = log_of([[0, 0, 11, "w.0", 0, 0, -1]])
    assert "never sent" in rules("retained", more, (100, "received", received(0, 11)))


@pytest.mark.parametrize("kind", ["recreated", "unclean"])
def test_the_order_is_kept_while_a_log_is_not_replaced(kind: str) -> None:
    swapped = log_of([[0, 0, 5, "w.0", 0, 5, -1], [0, 5, 5, "w.0", 0, 0, -1]])
    back = [(100.0, "received", received(5, 10)), (101.0, "received", received(0, 5))]
    disturbed = [
        Happened("recreate_topic", "topic recreated", 30, 90),
        Happened("unclean_election", "broker-pair", 15, 90),
    ]
    for faults in ([], disturbed):
        is_kept = not faults
        assert ("out of order" in rules(kind, ALL, *back, faults=faults)) == is_kept
        assert ("out of order" in rules(kind, swapped, faults=faults)) == is_kept
    long_ago = [Happened(each.kind, each.target, 30_000, 31_000) for each in disturbed]
    assert "out of order" in rules(kind, ALL, *back, faults=long_ago)


def test_a_record_in_the_wrong_partition_is_found() -> None:
    elsewhere = log_of([[1, 0, 10, "w.0", 0, 0, -1]])
    assert "wrong partition" in rules("recreated", elsewhere, faults=RECREATED)


def test_an_unclean_election_needs_faults_of_both_replicas() -> None:
    """Partition 0 has replicas on brokers 1 and 2."""
    read = (100.0, "received", received(0, 10))
    short = log_of([[0, 0, 4, "w.0", 0, 0, -1]])
    for brokers, is_allowed in (((1, 2), True), ((2, 1), True), ((2, 3), False), ((1, 3), False)):
        faults = [
            Happened("kill_broker", f"broker-{broker}", at, at + 5)
            for broker, at in zip(brokers, (15, 25), strict=True)
        ]
        assert (rules("unclean", short, read, faults=faults) == set()) == is_allowed


def test_a_record_that_was_not_acknowledged_is_the_one_in_the_log() -> None:
    unknown = Life("w", 0, [event for event in WRITER.events if event.name != "acked"])
    forged = {"runs": [[0, 0, 9, "w.0", 0, 1, -1]]}
    found = Evidence([unknown, member("retained", (100, "received", forged))], {"t": ALL})
    assert "not what was written" in {verdict.rule for verdict in judge(found)}


def test_a_consumer_that_was_well_delivers_the_records_of_a_topic_before_it_is_recreated() -> None:
    later = [Happened("recreate_topic", "topic recreated", 50_000, 51_000)]
    read = (100.0, "received", received(0, 4))
    assert rules("recreated", log_of([]), read, faults=later) == {"never delivered"}
    paused = Happened("pause_client", "m", 10_000, 12_000)
    assert rules("recreated", log_of([]), read, faults=[paused, *later]) == set()


@pytest.mark.parametrize("kind", ["recreated", "unclean"])
def test_a_record_that_is_skipped_while_a_log_is_not_replaced_is_found(kind: str) -> None:
    """The topic loses everything much later."""
    later = [
        Happened("recreate_topic", "topic recreated", 60_000, 61_000),
        Happened("unclean_election", "broker-pair", 15, 16),
    ]
    read = [(50_000.0, "received", received(0, 4)), (50_001.0, "received", received(5, 10))]
    paused = Happened("pause_client", "m", 10_000, 12_000)
    late = WRITER.events[1]._replace(at=30_000), WRITER.events[2]._replace(at=30_001)
    writer = Life("w", 0, [WRITER.events[0], *late, WRITER.events[3]])
    for at, expected in ((60_000, False), (90_000, True)):
        faults = [paused, dataclasses.replace(later[0], begun=at, ended=at), later[1]]
        found = Evidence([writer, member(kind, *read)], {"t": log_of([])}, {kind: [Commit(4, ("t", 0), 0)]}, faults)
        is_found = "skipped" in {verdict.rule for verdict in judge(found)}
        assert is_found == (expected or kind == "unclean")
