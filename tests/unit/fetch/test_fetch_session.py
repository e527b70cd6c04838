"""Fetch sessions (KIP-227): the session machine by table, and against a model of the broker."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.cluster import TopicIdPartition
from headrace._machines.fetch.session import FetchSession, PartitionRequest, SessionRequest

T = uuid.UUID(int=1)
A, B, C = (TopicIdPartition(T, number) for number in range(3))
AT_0 = PartitionRequest(0, 5, 1000)
ALL = (A, B, C)

ID_NOT_FOUND, INVALID_EPOCH, TOPIC_ID_ERROR = 70, 71, 106


def opened(*slots: TopicIdPartition) -> FetchSession:
    session = FetchSession()
    session.request(dict.fromkeys(slots, AT_0), ALL)
    session.answered(0, 77)
    return session


def test_the_first_fetch_request_is_full_and_opens_a_session() -> None:
    session = FetchSession()
    assert not session.is_incremental
    assert session.request({A: AT_0, B: AT_0}, ALL) == SessionRequest(0, 0, {A: AT_0, B: AT_0}, ())


def test_later_requests_of_a_fetch_session_have_only_changes() -> None:
    session = opened(A, B)
    assert session.is_incremental
    moved = AT_0._replace(offset=10)
    assert session.request({A: moved, C: AT_0}, ALL) == SessionRequest(77, 1, {A: moved, C: AT_0}, (B,))
    session.answered(0, 77)
    assert session.request({A: moved, C: AT_0}, ALL) == SessionRequest(77, 2, {}, ())


def test_a_fetch_session_looks_only_at_partitions_that_may_have_changed() -> None:
    session = opened(A, B)
    moved = AT_0._replace(offset=10)
    assert session.request({A: moved, B: AT_0}, [A]) == SessionRequest(77, 1, {A: moved}, ())
    session.answered(0, 77)
    assert session.request({A: moved, B: AT_0}, []) == SessionRequest(77, 2, {}, ())
    session.answered(0, 77)
    assert session.request({A: moved, B: AT_0}, [A, B]) == SessionRequest(77, 3, {}, ()), "these may have changed"
    session.broken()
    assert session.request({A: moved, C: AT_0}, []) == SessionRequest(77, 0, {A: moved, C: AT_0}, ())


@pytest.mark.parametrize("change", [{"offset": 1}, {"leader_epoch": 6}, {"max_bytes": 1001}])
def test_a_fetch_session_sends_partitions_whose_request_changed(change: dict[str, int]) -> None:
    session = opened(A)
    changed = AT_0._replace(**change)
    assert session.request({A: changed}, ALL).send == {A: changed}


def test_a_fetch_session_replaces_a_recreated_topic() -> None:
    session = opened(A)
    again = TopicIdPartition(uuid.UUID(int=2), 0)
    assert session.request({again: AT_0}, (A, again)) == SessionRequest(77, 1, {again: AT_0}, (A,))


@pytest.mark.parametrize(
    ("code", "session_id", "next_id"),
    [
        pytest.param(0, 0, 0, id="no room for a session"),
        pytest.param(ID_NOT_FOUND, 0, 0, id="the broker has forgotten it"),
        pytest.param(INVALID_EPOCH, 0, 77, id="out of step: close it, open another"),
        pytest.param(TOPIC_ID_ERROR, 0, 77, id="a topic id that changed: close it, open another"),
    ],
)
def test_a_fetch_session_error_makes_the_next_request_full(code: int, session_id: int, next_id: int) -> None:
    session = opened(A, B)
    session.request({A: AT_0, B: AT_0}, ALL)
    session.answered(code, session_id)
    assert session.request({A: AT_0, B: AT_0}, ALL) == SessionRequest(next_id, 0, {A: AT_0, B: AT_0}, ())


def test_a_fetch_session_is_reopened_after_a_lost_response() -> None:
    session = opened(A)
    session.request({A: AT_0._replace(offset=9)}, ALL)
    session.broken()
    assert session.request({A: AT_0}, ALL) == SessionRequest(77, 0, {A: AT_0}, ())
    session.answered(0, 78)
    assert session.request({A: AT_0}, ALL) == SessionRequest(78, 1, {}, ())


def test_the_fetch_session_epoch_wraps_to_one() -> None:
    session = opened(A)
    session._epoch = 2**31 - 1
    assert session.request({A: AT_0}, ALL).epoch == 2**31 - 1
    session.answered(0, 77)
    assert session.request({A: AT_0}, ALL).epoch == 1


def test_only_an_open_fetch_session_has_a_close_request() -> None:
    assert FetchSession().close_request() is None
    assert opened(A).close_request() == SessionRequest(77, -1, {}, ())
    without = opened(A)
    without.answered(0, 0)
    assert without.close_request() is None


class BrokerSide:
    """A broker's side of a session: `believed` are the partitions it thinks the client wants."""

    def __init__(self) -> None:
        self.sessions: dict[int, dict[TopicIdPartition, PartitionRequest]] = {}
        self.epochs: dict[int, int] = {}
        self.last_id = 0
        self.believed: dict[TopicIdPartition, PartitionRequest] = {}

    def take(self, request: SessionRequest, room: bool) -> tuple[int, int]:
        if request.epoch == 0:
            self.sessions.pop(request.session_id, None)
            self.believed = dict(request.send)
            if not room:
                return 0, 0
            self.last_id += 1
            self.sessions[self.last_id] = self.believed
            self.epochs[self.last_id] = 1
            return 0, self.last_id
        if request.session_id not in self.sessions:
            return ID_NOT_FOUND, 0
        if request.epoch != self.epochs[request.session_id]:
            return INVALID_EPOCH, 0
        self.believed = self.sessions[request.session_id]
        self.believed.update(request.send)
        for tip in request.forget:
            del self.believed[tip]  # KeyError if the session never had it
        self.epochs[request.session_id] += 1
        if not self.believed:
            del self.sessions[request.session_id]
            return 0, 0
        return 0, request.session_id


SLOTS = st.builds(TopicIdPartition, st.sampled_from([uuid.UUID(int=1), uuid.UUID(int=2)]), st.integers(0, 3))
WANTS = st.dictionaries(
    SLOTS, st.builds(PartitionRequest, st.integers(0, 3), st.integers(0, 1), st.just(1000)), max_size=6
)
FATE = st.sampled_from(["answered"] * 6 + ["no room", "request lost", "answer lost", "evicted"])


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.tuples(WANTS, FATE), max_size=20))
def test_the_broker_s_fetch_session_always_matches_the_requested_partitions(
    steps: list[tuple[dict[TopicIdPartition, PartitionRequest], str]],
) -> None:
    session, broker = FetchSession(), BrokerSide()
    last: dict[TopicIdPartition, PartitionRequest] = {}
    for wanted, fate in steps:
        changed = [tip for tip in {**last, **wanted} if last.get(tip) != wanted.get(tip)]
        request, last = session.request(wanted, changed), wanted
        if fate == "request lost":
            session.broken()
            continue
        if fate == "evicted":
            broker.sessions.clear()
        code, session_id = broker.take(request, room=fate != "no room")
        if code == 0:
            assert broker.believed == wanted
        else:
            assert fate == "evicted"
        if fate == "answer lost":
            session.broken()
        else:
            session.answered(code, session_id)
