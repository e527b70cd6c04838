"""group.membership=true: a query without a trigger for max.poll.interval.ms. No Spark session runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Consumer
from headrace.spark.group.member import QueryMember
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.waiting import wait_for
from support.spark.readers import Run
from support.spark.streams import grid

pytestmark = pytest.mark.timeout(300)

INTERVAL = 1.5
"""Seconds, far below the default session.timeout.ms of 45 s, which does not apply to a KIP-848 group."""
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"kafka.session.timeout.ms": 1000, "kafka.heartbeat.interval.ms": 100},
    "consumer": {"kafka.group.protocol": "consumer"},
}


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("absent", 2)
    write(servers, topic, [*numbered(100, 0), *numbered(100, 1)])
    return topic


@pytest.fixture(params=list(PROTOCOLS))
def query(request: pytest.FixtureRequest, servers: str, topic: str) -> Iterator[Run]:
    own = {"kafka.group.id": unique("absent"), "kafka.max.poll.interval.ms": round(1000 * INTERVAL)}
    run = Run(servers, {"subscribe": topic, "group.membership": "true", **own, **PROTOCOLS[request.param]})
    yield run
    run.stop()


def read_all(query: Run, count: int) -> list[tuple[int, int]]:
    """Trigger until `count` records were read."""
    found: list[tuple[int, int]] = []

    def trigger() -> bool:
        found.extend(query.trigger() or [])
        return len(found) >= count

    wait_for("records", trigger, every=0.05)
    return sorted(found)


def member_of(query: Run) -> QueryMember:
    member = query.reader._group._member
    assert member is not None
    return member


def test_a_query_past_max_poll_interval_resumes_behind_the_member_that_took_over(
    query: Run, servers: str, topic: str
) -> None:
    query.begin()
    assert read_all(query, 200) == grid(2, 100)  # the query has not committed them yet
    group = query.reader._group_options.settings["group.id"]
    theirs: list[tuple[int, int]] = []
    with Consumer(bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest") as other:
        other.subscribe([topic])

        def read() -> int:
            theirs.extend((record.partition, record.offset) for record in other.poll(0.1))
            return len(theirs)

        wait_for("all records, since nothing is committed", lambda: read() == 200, 30)
        write(servers, topic, [*numbered(5, 0), *numbered(5, 1)])
        wait_for("new records", lambda: read() == 210, 30)
    write(servers, topic, numbered(5, 0))
    assert read_all(query, 5) == [(0, offset) for offset in range(105, 110)], "the query resumes after the other member"
    shown = query.reader.reportLatestOffset()
    assert shown is not None
    assert shown["headrace:metrics"]["partitionsLost"] == 2
    assert shown["headrace:metrics"]["readOfLost"] == 200


def test_a_trigger_while_a_query_leaves_its_group_makes_it_rejoin(query: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next trigger must rejoin, since there may be no other one for hours."""
    query.begin()
    read_all(query, 200)
    query.trigger()
    member = member_of(query)
    left: list[float] = []
    unsubscribe = member._consumer.unsubscribe

    def unsubscribe_slowly() -> None:
        snapshot = member.take_snapshot()
        left.append(time.monotonic())
        assert not snapshot.has_joined, "a leaving member has nothing to plan"
        assert not snapshot.assigned
        unsubscribe()

    monkeypatch.setattr(member._consumer, "unsubscribe", unsubscribe_slowly)
    wait_for("it leaves", lambda: left, 30)

    def is_back() -> bool:
        with member._changed:  # without a call of the member, which would be another trigger
            return len(member._assigned) == 2

    wait_for("the member to rejoin", is_back, 30)


def test_a_query_can_end_after_it_has_left_its_group(query: Run, caplog: pytest.LogCaptureFixture) -> None:
    query.begin()
    read_all(query, 200)
    wait_for("it leaves", lambda: "The query leaves its group" in caplog.text, 30)
    member = member_of(query)
    query.stop()
    assert not member._thread.is_alive()
    assert member._failure is None
    assert "The membership in the group ended" not in caplog.text
