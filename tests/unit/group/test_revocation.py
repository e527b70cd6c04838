"""KIP-983's three lists: the moves of the proposal as a table, and invariants by property tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace import TopicPartition
from headrace._machines.group.actions import Partitions
from headrace._machines.group.revocation import Revocations

A, B, C = (TopicPartition(name, 0) for name in "abc")
ALL = frozenset({A, B, C})


def some(*partitions: TopicPartition) -> Partitions:
    return frozenset(partitions)


def lists(it: Revocations) -> tuple[Partitions, Partitions, Partitions]:
    return it.next, it.thereafter, it.lost


def poll(it: Revocations) -> Partitions:
    """The revokes that a poll completes when it starts. The poll before has reported everything."""
    it.forget_lost(it.lost)
    due = it.next
    it.complete(due)
    it.poll_begins()
    return due


MOVES: list[tuple[str, list[Callable[[Revocations], object]], tuple[Partitions, Partitions, Partitions]]] = [
    ("requested", [lambda it: it.request(some(A), 9)], (some(A), some(), some())),
    ("completed by the next poll", [lambda it: it.request(some(A), 9), poll], (some(), some(), some())),
    ("delayed", [lambda it: it.request(some(A, B), 9), lambda it: it.delay([A], ALL)], (some(B), some(A), some())),
    (
        "a poll moves the delayed ones up",
        [lambda it: it.request(some(A, B), 9), lambda it: it.delay([A], ALL), poll],
        (some(A), some(), some()),
    ),
    (
        "and the next one completes them",
        [lambda it: it.request(some(A), 9), lambda it: it.delay([A], ALL), poll, poll],
        (some(), some(), some()),
    ),
    (
        "unless they are delayed again",
        [lambda it: it.request(some(A), 9), lambda it: it.delay([A], ALL), poll, lambda it: it.delay([A], ALL), poll],
        (some(A), some(), some()),
    ),
    (
        "lost from next",
        [lambda it: it.request(some(A, B), 9), lambda it: it.mark_lost(some(A))],
        (some(B), some(), some(A)),
    ),
    (
        "lost from thereafter",
        [lambda it: it.request(some(A), 9), lambda it: it.delay([A], ALL), lambda it: it.mark_lost(some(A))],
        (some(), some(), some(A)),
    ),
    ("lost without a request", [lambda it: it.mark_lost(some(C))], (some(), some(), some(C))),
    (
        "the poll after a report clears the lost list",
        [lambda it: it.mark_lost(some(C)), poll],
        (some(), some(), some()),
    ),
    (
        "a poll after one that raised does not",
        [lambda it: it.mark_lost(some(C)), lambda it: it.poll_begins()],
        (some(), some(), some(C)),
    ),
    (
        "nor does it forget what was lost since",
        [lambda it: it.mark_lost(some(A, C)), lambda it: it.forget_lost(some(C))],
        (some(), some(), some(A)),
    ),
    (
        "given back",
        [lambda it: it.request(some(A, B), 9), lambda it: it.delay([B], ALL), lambda it: it.cancel(some(A, B))],
        (some(), some(), some()),
    ),
    (
        "requested again while delayed",
        [lambda it: it.request(some(A), 9), lambda it: it.delay([A], ALL), lambda it: it.request(some(A), 99)],
        (some(), some(A), some()),
    ),
]


@pytest.mark.parametrize(("steps", "expected"), [pytest.param(s, e, id=name) for name, s, e in MOVES])
def test_partitions_move_between_the_revocation_lists_as_in_kip_983(
    steps: list[Callable[[Revocations], object]], expected: tuple[Partitions, ...]
) -> None:
    it = Revocations()
    for step in steps:
        step(it)
    assert lists(it) == expected


def test_delay_returns_whether_all_partitions_could_be_delayed() -> None:
    it = Revocations()
    it.request(some(A, B), 9)
    assert it.delay([A], owned=ALL)
    assert it.delay([A, C], owned=ALL), "C has no pending revoke: nothing to delay"
    assert not it.delay([A, B], owned=some(A, B) - some(A)), "A is not owned any more"
    assert lists(it) == (some(), some(A, B), some()), "B is delayed nevertheless"
    assert it.delay([], owned=some())


def test_only_delayed_revokes_are_lost_by_their_deadline() -> None:
    it = Revocations()
    assert it.request(some(A), 10) == some(A)
    assert it.request(some(A, B), 20) == some(B)
    assert (it.overdue(99), it.next_deadline) == (some(), math.inf), "only delayed revokes have a deadline"
    it.delay([A, B], ALL)
    assert (it.overdue(9.9), it.next_deadline) == (some(), 10)
    assert it.overdue(10) == some(A), "the first request sets the deadline, and a delay does not move it"
    it.poll_begins()
    assert it.overdue(10) == some(A), "it stays delayed"
    it.mark_lost(some(A))
    assert it.overdue(10) == some()
    assert it.overdue(20) == some(B)
    it.cancel(some(B))
    assert it.overdue(20) == some()
    it.request(some(B), 30)
    assert it.overdue(30) == some(), "an earlier request was delayed, not this one"


class Lists(RuleBasedStateMachine):
    """Random rebalances, delays and losses: only pending revokes are completed, lost or cancelled, and each ends."""

    partitions = st.sets(st.sampled_from([TopicPartition("t", n) for n in range(6)])).map(frozenset)

    def __init__(self) -> None:
        super().__init__()
        self.it = Revocations()
        self.asked: dict[TopicPartition, int] = {}
        self.delays: dict[TopicPartition, int] = {}

    @rule(partitions=partitions)
    def request(self, partitions: Partitions) -> None:
        partitions -= self.it.lost
        for tp in self.it.request(partitions, 100):
            self.asked[tp] = self.delays[tp] = 0

    @rule(partitions=partitions)
    def delay(self, partitions: Partitions) -> None:
        for tp in partitions & self.it.next:
            self.delays[tp] += 1
        assert self.it.delay(partitions, owned=partitions)

    @rule()
    def poll(self) -> None:
        due = self.it.next
        for tp in self.it.pending:
            self.asked[tp] += 1
        for tp in poll(self.it):
            assert self.asked.pop(tp) == self.delays.pop(tp) + 1, "one poll for the request and one for each delay"
        assert not due & self.it.pending
        assert self.it.lost == frozenset()

    @precondition(lambda self: self.it.pending)
    @rule(data=st.data())
    def end_otherwise(self, data: st.DataObject) -> None:
        chosen = frozenset({data.draw(st.sampled_from(sorted(self.it.pending)))})
        data.draw(st.sampled_from([self.it.mark_lost, self.it.cancel]))(chosen)
        for tp in chosen:
            del self.asked[tp], self.delays[tp]

    @invariant()
    def in_at_most_one_list(self) -> None:
        next_, thereafter, lost = lists(self.it)
        assert not next_ & thereafter
        assert not lost & (next_ | thereafter)
        assert self.it.pending == self.asked.keys()
        assert self.it.overdue(100) == {tp for tp in self.it.pending if self.delays[tp]}


TestLists = Lists.TestCase
TestLists.settings = settings(deadline=None, derandomize=True, max_examples=60, stateful_step_count=40)
