"""KIP-62: heartbeats go on while the user works, and a member that does not poll for too long leaves its group."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.errors import CommitFailedError
from support.admin import Admin, unique
from support.consumers import AnyConsumer, MakeConsumer
from support.groups import WAYS, Diary, at_rest, member, poll_all, shared_out
from support.produce import numbered, write

PARTITIONS = 4


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("interval", PARTITIONS)
    for partition in range(PARTITIONS):
        write(servers, topic, numbered(10, partition))
    return topic


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """With a session timeout of 1 s, or for KIP-848 the 1.5 s of the tests' broker."""
    way = WAYS[request.param]
    return way if way is WAYS["consumer"] else {**way, "session_timeout_ms": 1000}


def work(seconds: float) -> None:
    """What a user does instead of polling. Time is all that matters about it."""
    time.sleep(seconds)


@contextmanager
def polling(*members: AnyConsumer) -> Iterator[None]:
    """Others poll on a thread of their own."""
    over = threading.Event()
    errors: list[BaseException] = []

    def poll() -> None:
        try:
            while not over.is_set():
                for each in members:
                    each.poll(0.02)
        except BaseException as error:  # noqa: BLE001  # raised where the test is
            errors.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(20)
    assert not errors, errors


def wait_until(what: Any, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_work_longer_than_the_session_keeps_the_partitions(
    make_sync: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    group, diary = unique("g"), Diary()
    slow = member(make_sync, servers, group, [topic], listener=diary, **way)
    other = member(make_sync, servers, group, [topic], **way)
    poll_all([slow, other], at_rest([slow, other], PARTITIONS))
    before, mine = slow.group_metadata(), slow.assignment()
    del diary.events[:]
    with polling(other):
        work(2.0)
        slow.commit()
        slow.poll(0.1)
    assert slow.group_metadata() == before
    assert slow.assignment() == mine
    assert diary.events == []


def test_too_long_without_a_poll_leaves_the_group(
    make_sync: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    group, diary = unique("g"), Diary()
    stuck = member(make_sync, servers, group, [topic], listener=diary, max_poll_interval_ms=1000, **way)
    other = member(make_sync, servers, group, [topic], **way)
    poll_all([stuck, other], at_rest([stuck, other], PARTITIONS))
    mine = stuck.assignment()
    del diary.events[:]
    with polling(other):
        # While still in user code: 1 s without a poll, and a rebalance. By its heartbeats alone it would have stayed
        # for good; by their end, for another session timeout.
        wait_until(lambda: len(other.assignment()) == PARTITIONS, 1.9)
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms=1000.*max\.poll\.records"):
            stuck.commit()
        assert diary.events == [], "listeners run in poll() only"
        stuck.poll(0.0)
        assert diary.events[0] == ("lost", frozenset(mine))
        wait_until(lambda: stuck.poll(0.05) is not None and shared_out([stuck, other], PARTITIONS)(), 10)
    stuck.commit()
    if "group_protocol" not in way:
        assert stuck.group_metadata().generation_id == other.group_metadata().generation_id


def test_a_long_poll_is_no_absence(make_sync: MakeConsumer, servers: str, topic: str, way: dict[str, Any]) -> None:
    diary = Diary()
    consumer = member(
        make_sync, servers, unique("g"), [topic], listener=diary, max_poll_interval_ms=1000,
        auto_offset_reset="latest", **way,
    )  # fmt: skip
    poll_all([consumer], shared_out([consumer], PARTITIONS))
    assert len(consumer.poll(1.5)) == 0
    assert len(consumer.poll(0.1)) == 0
    assert diary.kinds() == ["assigned"]


def test_the_longest_interval_of_all_members_is_the_group_s(make_sync: MakeConsumer, servers: str, topic: str) -> None:
    """A member that is slow to rejoin is waited for, as long as the most patient member would."""
    group, diary = unique("g"), Diary()
    way = {**WAYS["eager"], "session_timeout_ms": 1000}
    slow = member(make_sync, servers, group, [topic], listener=diary, max_poll_interval_ms=20_000, **way)
    quick = member(make_sync, servers, group, [topic], max_poll_interval_ms=1000, **way)
    poll_all([slow, quick], at_rest([slow, quick], PARTITIONS))
    before = slow.group_metadata()
    newcomer = member(make_sync, servers, group, [topic], max_poll_interval_ms=1000, **way)
    with polling(quick, newcomer):
        work(2.0)  # longer than the others' rebalance timeout and than every session timeout
        assert newcomer.assignment() == set(), "the rebalance waits"
        wait_until(lambda: slow.poll(0.05) is not None and shared_out([slow, quick, newcomer], PARTITIONS)(), 10)
    after = slow.group_metadata()
    assert after.member_id == before.member_id, "it was never out"
    assert "lost" not in diary.kinds()


def test_one_that_is_too_slow_to_rejoin_is_left_behind(make_sync: MakeConsumer, servers: str, topic: str) -> None:
    """Its own patience is above that of the group only by its session timeout: the coordinator gives it up first."""
    group, diary = unique("g"), Diary()
    way = {**WAYS["eager"], "session_timeout_ms": 5000, "max_poll_interval_ms": 500}
    slow = member(make_sync, servers, group, [topic], listener=diary, **way)
    poll_all([slow], at_rest([slow], PARTITIONS))
    newcomer = member(make_sync, servers, group, [topic], **way)
    with polling(newcomer):
        wait_until(lambda: len(newcomer.assignment()) == PARTITIONS, 4)  # its session is still open
        with pytest.raises(CommitFailedError, match=r"UNKNOWN_MEMBER_ID.*raise max\.poll\.interval\.ms"):
            slow.commit()
        slow.poll(0.0)
        assert diary.kinds()[-1] == "lost"
        wait_until(lambda: slow.poll(0.05) is not None and shared_out([slow, newcomer], PARTITIONS)(), 10)
