"""The ledger that group tests rely on: it finds unread records, repeated records and overlapping owners."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from support.ledgers.group_ledger import Ledger
from support.members.events import (
    Assigned,
    Closed,
    Committed,
    Ended,
    Event,
    Lost,
    Read,
    Revoked,
    Started,
    TopicAndPartition,
    parse,
)

ZERO, ONE = ("t", 0), ("t", 1)
BOTH = frozenset({ZERO, ONE})


def ledger(*events: tuple[str, Event], partitions: frozenset[TopicAndPartition] = BOTH) -> Ledger:
    made = Ledger(partitions)
    for member, event in events:
        made.take(member, event)
    return made


def one(tp: TopicAndPartition = ZERO) -> frozenset[TopicAndPartition]:
    return frozenset({tp})


def read(start: int, end: int, tp: TopicAndPartition = ZERO) -> Read:
    return Read(0, {tp: (start, end)})


def committed(offset: int, error: str | None = None) -> Committed:
    return Committed(0, {ZERO: offset}, error)


def handed_over(*before: Event, last: Event, then: Event) -> Ledger:
    """Partition 0 moves from member a to member b."""
    first = [("a", event) for event in (Started(0), Assigned(1, one()), *before, last)]
    return ledger(*first, ("b", Started(0)), ("b", Assigned(5, one())), ("b", then))


# -- records -------------------------------------------------------------------------------------------------------


def test_a_ledger_finds_records_that_nobody_read() -> None:
    book = ledger(
        ("a", Assigned(1, BOTH)),
        ("a", read(0, 10)),
        ("a", read(10, 12)),
        ("a", read(15, 20)),
        ("a", read(3, 5, ONE)),
    )
    assert book.unread({ZERO: 20, ONE: 5}) == [(ZERO, 12, 15), (ONE, 0, 3)]
    assert book.unread({ZERO: 22}) == [(ZERO, 12, 15), (ZERO, 20, 22)]
    assert book.unread({("t", 2): 1}) == [(("t", 2), 0, 1)]
    assert book.count() == 19


def test_a_ledger_accepts_a_gap_that_another_member_filled() -> None:
    book = handed_over(read(0, 5), read(10, 20), last=Revoked(4, one()), then=read(5, 10))
    assert book.unread({ZERO: 20}) == []
    assert book.repeats() == []


def test_a_ledger_finds_nothing_in_an_orderly_hand_over() -> None:
    book = handed_over(read(0, 10), committed(10), last=Revoked(4, one()), then=read(10, 30))
    assert (book.unread({ZERO: 30}), book.repeats(), book.overlaps(), book.strays) == ([], [], [], [])
    assert [(ownership.member, ownership.ending, ownership.uncommitted) for ownership in book.ownerships] == [
        ("a", "revoked", 0),
        ("b", None, 20),
    ]


def test_a_ledger_finds_committed_records_that_were_read_again() -> None:
    book = handed_over(read(0, 10), committed(10), last=Revoked(4, one()), then=read(8, 30))
    (repeat,) = book.broken()
    assert (repeat.tp, repeat.start, repeat.end) == (ZERO, 8, 10)
    assert (repeat.first.member, repeat.second.member) == ("a", "b")


@pytest.mark.parametrize("last", [Revoked(4, one()), Lost(4, one()), Ended(4)], ids=["revoked", "lost", "killed"])
def test_a_ledger_finds_repeats_of_uncommitted_records(last: Event) -> None:
    """At least once: repeated records start at the last commit."""
    book = handed_over(read(0, 10), committed(6), committed(10, "refused"), last=last, then=read(6, 30))
    (repeat,) = book.repeats()
    assert (repeat.start, repeat.end, repeat.first.uncommitted) == (6, 10, 4)
    assert book.broken() == []
    assert book.refused == [("a", "refused")]


def test_a_ledger_finds_the_range_of_partly_committed_records_read_again() -> None:
    book = handed_over(read(0, 10), committed(6), last=Ended(4), then=read(5, 30))
    assert [(repeat.start, repeat.end) for repeat in book.broken()] == [(5, 10)]


def test_a_ledger_finds_records_read_twice_by_one_member() -> None:
    book = ledger(("a", Assigned(1, one())), ("a", read(0, 10)), ("a", committed(10)), ("a", read(9, 12)))
    assert [(repeat.start, repeat.end) for repeat in book.stutters()] == [(9, 10)]
    assert book.broken() == []


def test_a_ledger_lets_the_next_owner_start_at_a_commit_that_went_back() -> None:
    """The next owner starts at the last commit, even if an earlier one was higher."""
    book = handed_over(read(0, 10), committed(10), committed(4), last=Revoked(4, one()), then=read(4, 30))
    assert book.ownerships[0].uncommitted == 6
    assert (len(book.repeats()), book.broken(), book.stutters()) == (1, [], [])


def test_a_ledger_finds_records_read_three_times() -> None:
    book = ledger(
        *(("a", event) for event in (Assigned(1, one()), read(0, 9), committed(9), Revoked(2, one()))),
        *(("b", event) for event in (Assigned(3, one()), read(2, 5), Revoked(4, one()))),
        *(("c", event) for event in (Assigned(5, one()), read(4, 12))),
    )
    found = [(r.start, r.end, r.first.member, r.second.member, r.broken) for r in book.repeats()]
    assert sorted(found) == [(2, 5, "a", "b", True), (4, 5, "b", "c", False), (4, 9, "a", "c", True)]


def test_a_ledger_does_not_count_commits_of_a_later_ownership() -> None:
    """a could not commit, so b repeats its records. Commits of a after it regains the partition do not count."""
    book = ledger(
        *(("a", event) for event in (Assigned(1, one()), read(0, 9), Revoked(2, one()))),
        *(("b", event) for event in (Assigned(3, one()), read(0, 9), committed(9), Revoked(4, one()))),
        *(("a", event) for event in (Assigned(5, one()), read(9, 12), committed(12))),
    )
    assert len(book.repeats()) == 1
    assert book.broken() == []


def test_a_ledger_counts_a_commit_reported_after_the_revocation() -> None:
    book = handed_over(read(0, 10), Revoked(4, one()), last=committed(10), then=read(9, 30))
    assert book.ownerships[0].uncommitted == 0
    assert len(book.broken()) == 1


def test_a_ledger_finds_records_read_without_owning() -> None:
    book = ledger(("a", Assigned(1, one())), ("a", read(0, 5, ONE)))
    assert book.strays == [("a", ONE, (0, 5))]
    assert book.unread({ONE: 5}) == [(ONE, 0, 5)]


# -- owners --------------------------------------------------------------------------------------------------------

Shares = Mapping[str, frozenset[TopicAndPartition]]
FOUR = frozenset(("t", number) for number in range(4))


def partitions(*numbers: int) -> frozenset[TopicAndPartition]:
    return frozenset(("t", number) for number in numbers)


@pytest.mark.parametrize(
    ("shares", "is_stable"),
    [
        ({"a": partitions(0, 1), "b": partitions(2, 3)}, True),
        ({"a": partitions(0, 1), "b": partitions(2), "c": partitions(3)}, True),
        ({"a": partitions(0, 1, 2, 3)}, True),
        ({"a": partitions(0, 1), "b": partitions(2)}, False),
        ({"a": partitions(0, 1), "b": partitions(1, 2, 3)}, False),
        ({"a": partitions(0, 1), "b": partitions(0, 1)}, False),
        ({"a": partitions(0, 1, 2, 3), "b": partitions()}, False),
        ({"a": partitions(0, 1, 2), "b": partitions(3)}, False),
        ({}, False),
    ],
    ids=["halves", "2 1 1", "alone", "unowned", "twice", "half", "newcomer", "uneven", "nobody"],
)
def test_a_ledger_is_stable_when_the_members_own_everything_evenly(shares: Shares, is_stable: bool) -> None:
    events = [(member, event) for member, share in shares.items() for event in (Started(0), Assigned(1, share))]
    book = ledger(*events, partitions=FOUR)
    assert book.is_stable(list(shares)) is is_stable
    assert not book.is_stable([*shares, "z"])
    assert not book.is_stable(list(shares)[1:])


@pytest.mark.parametrize("end", [Closed(9), Ended(9)])
def test_a_ledger_knows_that_an_ended_member_owns_nothing(end: Event) -> None:
    book = ledger(("a", Started(0)), ("a", Assigned(1, BOTH)), ("a", end), ("b", Started(9)), ("b", Assigned(10, BOTH)))
    assert book.owned("a") == frozenset()
    assert book.is_stable(["b"])
    assert book.overlaps() == []


def test_a_ledger_ignores_the_end_of_a_closed_member() -> None:
    book = ledger(("a", Started(0)), ("a", Assigned(1, one())), ("a", Closed(5)), ("a", Ended(9)))
    assert [(ownership.ending, ownership.over) for ownership in book.ownerships] == [("closed", 5)]


@pytest.mark.parametrize(("taken", "count"), [(5, 0), (4, 0), (3, 1)], ids=["later", "at once", "too early"])
def test_a_ledger_finds_partitions_owned_by_two_at_a_moment(taken: int, count: int) -> None:
    """Members write to separate pipes: the event of the new owner may arrive first."""
    book = ledger(("b", Assigned(taken, one())), ("a", Assigned(1, one())), ("a", Revoked(4, one())))
    assert len(book.overlaps()) == count


def test_a_ledger_finds_partitions_that_two_still_own() -> None:
    assert len(ledger(("b", Assigned(3, one())), ("a", Assigned(1, one()))).overlaps()) == 1


# -- events --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ('{"timestamp":1,"name":"startup_complete"}', Started(1)),
        ('{"timestamp":2,"name":"partitions_assigned","partitions":[{"topic":"t","partition":0}]}', Assigned(2, one())),
        ('{"timestamp":2,"name":"partitions_revoked","partitions":[{"topic":"t","partition":0}]}', Revoked(2, one())),
        ('{"timestamp":2,"name":"partitions_lost","partitions":[]}', Lost(2, frozenset())),
        (
            '{"timestamp":3,"name":"records_consumed","count":3,"partitions":'
            '[{"topic":"t","partition":1,"count":3,"minOffset":4,"maxOffset":6}]}',
            Read(3, {ONE: (4, 7)}),
        ),
        (
            '{"timestamp":4,"name":"offsets_committed","offsets":[{"topic":"t","partition":1,"offset":7}],"success":true}',
            Committed(4, {ONE: 7}),
        ),
        (
            '{"timestamp":4,"name":"offsets_committed","offsets":[],"error":"no","success":false}',
            Committed(4, {}, "no"),
        ),
        ('{"timestamp":5,"name":"shutdown_requested"}', None),
        ('{"timestamp":5,"name":"shutdown_complete"}', Closed(5)),
        ("[2026-01-01] WARN something (org.apache.kafka)", None),
    ],
)
def test_lines_of_members_are_parsed_as_events(line: str, event: Event | None) -> None:
    assert parse(line) == event


def test_parsing_a_consumed_range_with_gaps_fails() -> None:
    with pytest.raises(AssertionError, match="gaps"):
        parse(
            '{"timestamp":3,"name":"records_consumed","count":2,"partitions":'
            '[{"topic":"t","partition":1,"count":2,"minOffset":4,"maxOffset":6}]}'
        )
