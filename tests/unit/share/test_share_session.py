"""Share sessions: the table of the machine."""

from __future__ import annotations

import pytest

from headrace._machines.share.session import SessionFetch, ShareSession
from support.harness.share_broker_model import tip

A, B, C = (tip(number) for number in range(3))


def opened(*slots: object) -> ShareSession:
    session = ShareSession()
    session.fetch(slots)  # type: ignore[arg-type]  # they are slots
    session.answered(0)
    return session


def test_the_first_fetch_opens_a_share_session_and_names_everything() -> None:
    session = ShareSession()
    assert not session.is_open
    assert session.fetch([A, B]) == SessionFetch(0, frozenset({A, B}), frozenset())
    assert session.close_request() is None


def test_later_requests_of_a_share_session_have_only_changes_and_both_kinds_count() -> None:
    session = opened(A, B)
    assert session.fetch([A, C]) == SessionFetch(1, frozenset({C}), frozenset({B}))
    session.answered(0)
    assert session.acknowledge() == 2
    session.answered(0)
    assert session.fetch([A, C]) == SessionFetch(3, frozenset(), frozenset())
    assert session.close_request() == -1


def test_after_the_last_epoch_of_a_share_session_comes_the_first() -> None:
    session = opened(A)
    session._epoch = 2**31 - 1
    session.answered(0)
    assert session.acknowledge() == 1


@pytest.mark.parametrize("code", [122, 123, 133, 42])
def test_a_refusal_opens_a_share_session_again(code: int) -> None:
    session = opened(A, B)
    session.fetch([A])
    session.answered(code)
    assert session.fetch([A]) == SessionFetch(0, frozenset({A}), frozenset())


@pytest.mark.parametrize("code", [-1, 30, 7])
def test_other_errors_count_as_answers_of_a_share_session(code: int) -> None:
    session = opened(A)
    session.answered(code)
    assert session.acknowledge() == 2


def test_a_share_session_without_an_answer_is_closed() -> None:
    session = opened(A)
    session.broken()
    assert not session.is_open
    assert session.close_request() is None
