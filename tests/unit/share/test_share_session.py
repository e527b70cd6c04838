"""ShareSession: the session machine by example."""

from __future__ import annotations

import pytest

from headrace._machines.cluster import TopicIdPartition
from headrace._machines.share.session import SessionFetch, ShareSession
from support.harness.share_broker_model import tip

A, B, C = (tip(number) for number in range(3))


def opened(*partitions: TopicIdPartition) -> ShareSession:
    session = ShareSession()
    session.fetch(partitions)
    session.answered(0)
    return session


def test_the_first_fetch_of_a_share_session_has_all_partitions() -> None:
    session = ShareSession()
    assert not session.is_open
    assert session.fetch([A, B]) == SessionFetch(0, frozenset({A, B}), frozenset())
    assert session.close_request() is None


def test_fetches_and_acknowledgements_of_a_share_session_share_its_epochs() -> None:
    session = opened(A, B)
    assert session.fetch([A, C]) == SessionFetch(1, frozenset({C}), frozenset({B}))
    session.answered(0)
    assert session.acknowledge() == 2
    session.answered(0)
    assert session.fetch([A, C]) == SessionFetch(3, frozenset(), frozenset())
    assert session.close_request() == -1


def test_the_share_session_epoch_wraps_to_one() -> None:
    session = opened(A)
    session._epoch = 2**31 - 1
    session.answered(0)
    assert session.acknowledge() == 1


@pytest.mark.parametrize("code", [122, 123, 133, 42])
def test_a_share_session_error_makes_the_next_fetch_full(code: int) -> None:
    session = opened(A, B)
    session.fetch([A])
    session.answered(code)
    assert session.fetch([A]) == SessionFetch(0, frozenset({A}), frozenset())


@pytest.mark.parametrize("code", [-1, 30, 7])
def test_other_errors_keep_a_share_session_open(code: int) -> None:
    session = opened(A)
    session.answered(code)
    assert session.acknowledge() == 2


def test_a_share_session_is_closed_after_a_lost_response() -> None:
    session = opened(A)
    session.broken()
    assert not session.is_open
    assert session.close_request() is None
