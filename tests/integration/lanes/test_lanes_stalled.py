"""KIP-333's own trigger: a consumer stalls for longer than max.poll.interval.ms, leaves its group, and rejoins it in
the same process. Its live lane starts at the end of the log, and its backlog lane has exactly the missed records."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace import Record, TopicPartition
from support.brokers.admin import Admin, unique
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until
from support.harness.groups import WAYS, RecordingListener, poll_all, stable, with_session
from support.harness.retries import patiently
from support.harness.two_lanes import both_logs, grow, offsets, two_lane_member
from support.harness.waiting import wait_for


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def stalling(servers: str, group: str, way: str, second: float) -> dict[str, Any]:
    """Settings of a member that must poll every `second` seconds."""
    return {**with_session(servers, group, WAYS[way], second), "max_poll_interval_ms": round(1000 * second)}


def has_left(consumer: AnyConsumer) -> bool:
    """Whether it has left in the background, before any poll."""
    figures = consumer.metrics()["group"]
    return figures["state"] == "beginning" and figures["generation"] < 0


@pytest.mark.parametrize("mode", ["returned", "done"])
def test_a_lone_member_that_stalled_rejoins_in_two_lanes(
    make_sync: MakeConsumer, servers: str, admin: Admin, way: str, mode: str
) -> None:
    def scenario(second: float) -> None:
        tp, group, listener = TopicPartition(admin.create("stalled"), 0), unique("g"), RecordingListener()
        grow(servers, tp, 80)
        settings = {**stalling(servers, group, way, second), "commit_mode": mode}
        consumer = two_lane_member(make_sync, servers, group, tp.topic, listener=listener, **settings)
        seen = poll_until(consumer, 80)
        assert offsets(seen) == list(range(80))
        if mode == "done":
            for record in seen[:70]:
                consumer.done(record)
            consumer.commit()
        else:
            consumer.commit({tp: 70})
        wait_for("the member to leave", lambda: has_left(consumer))
        grow(servers, tp, 120, 80)

        seen = poll_all([consumer], lambda: listener.kinds() == ["assigned", "lost", "assigned"])
        assert consumer.position(tp) == 120
        grow(servers, tp, 130, 120)
        seen += poll_until(consumer, 60 - len(seen))
        assert offsets(seen, "backlog") == list(range(70, 120))
        assert offsets(seen, "live") == list(range(120, 130))
        if mode == "done":
            for record in seen:
                consumer.done(record)
        consumer.commit()
        first, second_log = both_logs(servers, group, tp)
        assert first is not None
        assert (first.offset, first.token, second_log) == (130, "", None)
        consumer.close()

    patiently(scenario)


def test_a_member_that_stalled_rejoins_without_repeating_committed_records(
    make_sync: MakeConsumer, servers: str, admin: Admin, way: str
) -> None:
    """The other member takes over while the first is away, and later hands back one partition with its open ranges."""

    def scenario(second: float) -> None:
        topic, group = admin.create("stalled", 2), unique("g")
        places = [TopicPartition(topic, number) for number in range(2)]
        for tp in places:
            grow(servers, tp, 60)
        settings = stalling(servers, group, way, second)
        stuck = two_lane_member(make_sync, servers, group, topic, **settings)
        other = two_lane_member(make_sync, servers, group, topic, **{**settings, "max_poll_interval_ms": 60_000})
        both = Reader([stuck, other])
        both.until(stable([stuck, other], 2))
        both.until(lambda: all(each.position(tp) == 60 for each in both.members for tp in each.assignment()))
        (mine,) = stuck.assignment()
        stuck.commit({mine: 50})
        other.commit()

        with Polling(other) as reading:
            wait_for("the partition to move", lambda: has_left(stuck) and mine in other.assignment())
            for tp in places:
                grow(servers, tp, 90, 60)
            wait_for("the other member's reads", lambda: reading.has(mine, 50, 90))
        assert min(reading.offsets(mine)) == 50
        other.commit()
        for tp in places:
            grow(servers, tp, 100, 90)
        back = Reader([stuck, other])
        back.until(lambda: stable([stuck, other], 2)() and back.has_all(places, 90, 100))
        again = [each for each in back.seen if each.offset < 90]
        assert not again, "the other member committed them"
        for each in (stuck, other):
            each.close()

    patiently(scenario)


class Reader:
    """Members that poll in turn, and all their records."""

    def __init__(self, members: list[AnyConsumer]) -> None:
        self.members = members
        self.seen: list[Record] = []

    def until(self, is_over: Any) -> None:
        def poll() -> bool:
            for each in self.members:
                self.seen += each.poll(0.02)
            return bool(is_over())

        wait_for("all of it", poll)

    def has_all(self, places: list[TopicPartition], start: int, end: int) -> bool:
        return all(set(offsets(self.seen, partition=tp.partition)) >= set(range(start, end)) for tp in places)


class Polling:
    """One member that polls on its own thread."""

    def __init__(self, consumer: AnyConsumer) -> None:
        self._reader = Reader([consumer])
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._reader.until(self._over.is_set)
        except BaseException as error:  # noqa: BLE001  # the test raises it
            self._errors.append(error)

    def offsets(self, tp: TopicPartition) -> set[int]:
        return set(offsets(list(self._reader.seen), partition=tp.partition))

    def has(self, tp: TopicPartition, start: int, end: int) -> bool:
        return self.offsets(tp) >= set(range(start, end))

    def __enter__(self) -> Polling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._errors, self._errors
