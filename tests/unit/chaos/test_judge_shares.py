"""The judge of the chaos runs: doctored ledgers of share groups."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from chaos.evidence import Evidence, Happened
from chaos.ledger import Event, Life
from chaos.rules.shares import LOCK
from support.ledgers.honest_run import (
    LOGS,
    PRODUCER,
    SHARER,
    doctored,
    evidence,
    life,
    received,
    rules,
    with_events,
)
from support.ledgers.share_history import ShareState, first_open, parse_state


def test_a_record_may_have_the_same_delivery_count_after_its_acknowledgement_was_rejected() -> None:
    """The broker forgot the count, because the connection of the group's only member broke."""

    def broken(events: list[Event]) -> list[Event]:
        rejected = Event(events[1].at, "rejected", {"ranges": [[0, 0, 10]], "error": "NetworkError"})
        return [*events[:2], rejected, *events[1:]]

    assert rules(evidence(with_events(SHARER, broken), faults=[Happened("cut", "proxy-1", 99, 99)])) == set()
    assert rules(evidence(with_events(SHARER, broken))) == {"returned twice"}, "no connection broke"


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
    for lives in ((SHARER, TWICE), (TWICE, SHARER)):
        found = rules(evidence(*lives, share_states={"share_explicit": states}, faults=down))
        assert ("accepted twice" not in found) == is_forgotten


def test_a_record_may_be_accepted_again_after_the_coordinator_saved_it_as_available() -> None:
    down = [Happened("pause_broker", "broker-1", 90, 300)]
    for last, is_forgotten in ((0, True), (2, False)):
        states = [ShareState(110, 0, 0, ((3, 3, 2),)), ShareState(150, 0, 0, ((0, 9, last),))]
        found = rules(evidence(SHARER, TWICE, share_states={"share_explicit": states}, faults=down))
        assert ("accepted twice" not in found) == is_forgotten


def test_a_coordinator_that_forgets_a_record_without_a_fault_is_found() -> None:
    states = [ShareState(at, 0, start) for at, start in ((100, 0), (110, 10), (150, 3))]
    assert "accepted twice" in rules(evidence(SHARER, TWICE, share_states={"share_explicit": states}))


def test_records_of_a_share_group_that_are_left_at_the_end_are_found() -> None:
    paused = [Happened("pause_client", "s", 90, 300)]
    short = doctored("accepted", ranges=[[0, 0, 9]])(SHARER)
    assert rules(evidence(short, faults=paused)) == set(), "the acceptance of the last one may have been lost"
    assert rules(evidence(short, faults=paused, left={"share_explicit": "9 of 10"})) == {"never accepted"}


def test_a_record_that_is_accepted_before_its_delivery_is_found() -> None:
    early = with_events(SHARER, lambda events: [events[0], events[2]._replace(at=90), events[1], events[3]])
    assert "accepted without delivery" in rules(evidence(early))


@pytest.mark.parametrize(
    ("at", "starts", "is_found"),
    [(50_000, [10, 10], False), (70_000, [10, 10], True), (70_000, [10, 3], False), (70_000, [], True)],
)
def test_a_record_that_is_delivered_long_after_it_was_accepted_is_found_in_spite_of_faults(
    at: int, starts: list[int], is_found: bool
) -> None:
    """Up to four locks, it may have been on its way since before it was accepted."""
    again = life("o", "share_explicit", (at, "received", received(3, 4, delivery=2)))
    states = [ShareState(110 + place, 0, start) for place, start in enumerate(starts)]
    faults = [Happened("pause_broker", "broker-1", 90, 80_000)]
    found = rules(evidence(SHARER, again, share_states={"share_explicit": states}, faults=faults))
    assert ("delivered again" in found) == is_found


@pytest.mark.parametrize(
    ("delivered", "waited", "is_late"), [(105, LOCK, True), (115, LOCK, False), (105, LOCK - 1, False)]
)
def test_an_expired_acknowledgement_may_come_after_another_member_has_accepted_the_record(
    delivered: float, waited: float, is_late: bool
) -> None:
    """The other one, at 110, has accepted a later delivery. Brokers do not reject what is below the start offset."""
    got = (delivered, "received", received(3, 4, delivery=1))
    late = life("o", "share_explicit", got, (delivered + waited, "accepted", {"ranges": [[0, 3, 4]]}))
    paused = [Happened("pause_client", "o", 90, 20_000)]
    assert ("accepted twice" not in rules(evidence(SHARER, late, faults=paused))) == is_late
    assert "accepted twice" in rules(evidence(SHARER, late)), "nothing kept it from accepting the record in time"


@pytest.mark.parametrize(
    ("batches", "start", "expected"),
    [
        ([], 0, 0),
        ([], 2, 2),
        ([(0, 4, 2), (5, 9, 4)], 0, None),
        ([(3, 9, 2), (0, 2, 2)], 0, None),  # a late write is the last one
        ([(0, 9, 2), (4, 4, 0)], 0, 4),
        ([(4, 4, 0), (0, 9, 2)], 0, None),
        ([(0, 7, 2)], 0, 9),  # there is no record at 8
    ],
)
def test_the_first_open_record_of_a_share_partition(
    batches: list[tuple[int, int, int]], start: int, expected: int | None
) -> None:
    history = [ShareState(0, 0, start), *(ShareState(1, 0, 0, (batch,)) for batch in batches), ShareState(2, 1, 10)]
    assert first_open(history, 0, [0, 1, 2, 3, 4, 5, 6, 7, 9]) == expected


def test_a_state_of_a_share_group_is_parsed() -> None:
    key = struct.pack(">hh1s16si", 1, 1, b"g", bytes(16), 3)
    batch = struct.pack(">qqbhb", 44, 45, 2, 1, 0)
    value = struct.pack(">hiiqb", 0, 7, 8, 42, 3) + batch + batch
    assert parse_state("g", 5, key, value) == ShareState(5, 3, 42, ((44, 45, 2), (44, 45, 2)))
    assert parse_state("h", 5, key, value) is None
    snapshot = struct.pack(">hiiiqqqb", 0, 7, 8, 9, 43, 0, 0, 2) + batch
    assert parse_state("g", 5, key[:1] + bytes(1) + key[2:], snapshot) == ShareState(5, 3, 43, ((44, 45, 2),))


def test_a_member_of_a_share_group_that_gets_no_records_for_too_long_is_found() -> None:
    idle = dataclasses.replace(life("o", "share_explicit"), ended=250_000)
    for last, is_found in ((110_000, False), (150_000, True)):
        writer = with_events(
            PRODUCER,
            lambda events, last=last: [  # type: ignore[misc]
                each._replace(at=at) for each, at in zip(events, (0, last - 10, last, 260_000), strict=True)
            ],
        )
        assert ("idle" in rules(Evidence([writer, SHARER, idle], LOGS))) == is_found
