"""Share sessions: the table of the machine."""

from __future__ import annotations

import pytest

from headrace.machines.share_session import SessionFetch, ShareSession
from support.share_model import slot

A, B, C = (slot(number) for number in range(3))


def opened(*slots: object) -> ShareSession:
    session = ShareSession()
    session.fetch(slots)  # type: ignore[arg-type]  # they are slots
    session.answered(0)
    return session


def test_the_first_fetch_opens_it_and_names_everything() -> None:
    session = ShareSession()
    assert not session.is_open
    assert session.fetch([A, B]) == SessionFetch(0, frozenset({A, B}), frozenset())
    assert session.farewell() is None


def test_then_only_changes_are_told_and_both_requests_count() -> None:
    session = opened(A, B)
    assert session.fetch([A, C]) == SessionFetch(1, frozenset({C}), frozenset({B}))
    session.answered(0)
    assert session.acknowledge() == 2
    session.answered(0)
    assert session.fetch([A, C]) == SessionFetch(3, frozenset(), frozenset())
    assert session.farewell() == -1


def test_after_the_last_epoch_comes_the_first() -> None:
    session = opened(A)
    session._epoch = 2**31 - 1
    session.answered(0)
    assert session.acknowledge() == 1


@pytest.mark.parametrize("code", [122, 123, 133, 42])
def test_a_refusal_opens_it_again(code: int) -> None:
    session = opened(A, B)
    session.fetch([A])
    session.answered(code)
    assert session.fetch([A]) == SessionFetch(0, frozenset({A}), frozenset())


@pytest.mark.parametrize("code", [-1, 30, 7])
def test_other_errors_are_counted(code: int) -> None:
    session = opened(A)
    session.answered(code)
    assert session.acknowledge() == 2


def test_no_answer() -> None:
    session = opened(A)
    session.broken()
    assert not session.is_open
    assert session.farewell() is None
