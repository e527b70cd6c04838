"""Events that a program hears of while it is stuck: failing heartbeats, a membership at risk, handlers that hang."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Record, TopicPartition
from headrace.events import (
    Event,
    HandlerReturned,
    HandlerStuck,
    HeartbeatsFailing,
    HeartbeatsRecovered,
    MembershipAtRisk,
    MembershipLost,
    MembershipSafe,
)
from support.brokers.admin import Admin, unique
from support.brokers.faulty_proxy import FaultyProxy, redirecting
from support.brokers.produce import numbered_topic
from support.harness.consumers import KINDS, MakeConsumer
from support.harness.groups import polling, with_session
from support.harness.retries import patiently
from support.harness.run_kinds import DEADLINE, Kind, until
from support.harness.share_consumers import SHARE_KINDS, share_group
from support.harness.waiting import wait_for

SOON = 30.0


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("events", 1), 1, 10)


class Heard:
    """A function for on_event, which waits for events."""

    def __init__(self) -> None:
        self._events: queue.Queue[tuple[Event, str]] = queue.Queue()

    def __call__(self, event: Event) -> None:
        self._events.put((event, threading.current_thread().name))

    def next(self, kind: type[Any], timeout: float = SOON) -> Any:
        """The next event, which must be of this kind."""
        event, thread = self._get(timeout)
        assert isinstance(event, kind), event
        assert thread == "headrace-callbacks"
        return event

    def first(self, kind: type[Any]) -> Any:
        """The next event of this kind."""
        while not isinstance(event := self._get(SOON)[0], kind):
            pass
        return event

    def _get(self, timeout: float) -> tuple[Event, str]:
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no event in {timeout:g} s") from None  # which `patiently` retries


CLASSIC: dict[str, Any] = {"heartbeat_interval_ms": 100}
MEMBERS: list[Any] = [
    pytest.param(KINDS["sync"], CLASSIC, id="classic, sync"),
    pytest.param(KINDS["async"], {"group_protocol": "consumer"}, id="KIP-848, async"),
    pytest.param(SHARE_KINDS["sync"], None, id="share, sync"),
    pytest.param(SHARE_KINDS["async"], None, id="share, async"),
]


@pytest.mark.parametrize(("make", "way"), MEMBERS)
def test_a_stuck_program_hears_that_its_membership_is_at_risk_and_then_lost(
    servers: str, topic: str, make: MakeConsumer, way: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(second: float) -> None:
        caplog.clear()
        group, heard = share_group(servers) if way is None else unique("g"), Heard()
        settings = {} if way is None else {"auto_offset_reset": "earliest", **with_session(servers, group, way, second)}
        limit = {"max_poll_interval_ms": round(1000 * second), "on_event": heard}
        consumer = make(bootstrap_servers=servers, group_id=group, **settings, **limit)
        try:
            consumer.subscribe([topic])
            wait_for("records", lambda: len(consumer.poll(0.05)))
            risk = heard.next(MembershipAtRisk)
            assert (risk.group_id, risk.cause) == (group, "poll")
            assert 0 < risk.seconds_left <= second / 4
            assert heard.next(MembershipLost) == MembershipLost(group, "poll", None)
            logged = [each for each in caplog.records if each.name == "headrace.events"]
            assert [(each.levelname, each.getMessage()) for each in logged] == [
                ("WARNING", str(risk)),
                ("WARNING", f"group {group}: left, because poll() was not called for max.poll.interval.ms"),
            ]
        finally:
            consumer.close()

    patiently(scenario)


@pytest.mark.parametrize(("make", "way"), MEMBERS)
def test_a_member_that_leaves_and_comes_back_has_lost_nothing(
    servers: str, topic: str, make: MakeConsumer, way: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    group = share_group(servers) if way is None else unique("g")
    consumer = make(bootstrap_servers=servers, group_id=group, **(way or {}))
    try:
        for _ in range(2):
            consumer.subscribe([topic])
            wait_for("partitions", lambda: consumer.poll(0.05) is not None and consumer.metrics()["partitions"])
            consumer.unsubscribe()
    finally:
        consumer.close()
    assert [each.getMessage() for each in caplog.records if each.name == "headrace.events"] == []


def test_a_poll_in_time_ends_the_warning(servers: str, topic: str) -> None:
    def scenario(second: float) -> None:
        heard = Heard()
        settings = {**CLASSIC, "session_timeout_ms": 1000 * second, "max_poll_interval_ms": 2000 * second}
        whole = {name: round(value) for name, value in settings.items()}
        with KINDS["sync"](bootstrap_servers=servers, group_id=unique("g"), on_event=heard, **whole) as consumer:
            consumer.subscribe([topic])
            wait_for("partitions", lambda: consumer.poll(0.05) is not None and consumer.assignment())
            heard.next(MembershipAtRisk)
            consumer.poll(0.0)
            assert heard.next(MembershipSafe).cause == "poll"

    patiently(scenario)


def test_failing_heartbeats_are_heard_of_until_the_coordinator_accepts_them_again(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scenario(second: float) -> None:
        heard, group = Heard(), unique("g")
        port = int(servers.rsplit(":", 1)[1])
        with (
            FaultyProxy(servers, 1, cut=0.0, swallow=1.0, delay=0.0) as proxy,
            redirecting({port: proxy.port}, monkeypatch),
        ):
            proxy.is_calm = True
            settings = {**CLASSIC, "session_timeout_ms": 4000 * second, "request_timeout_ms": 400 * second}
            whole = {name: round(value) for name, value in settings.items()}
            with KINDS["sync"](bootstrap_servers=servers, group_id=group, on_event=heard, **whole) as consumer:
                consumer.subscribe([topic])
                wait_for("partitions", lambda: consumer.poll(0.05) is not None and consumer.assignment())
                wait_for("heartbeats", lambda: consumer.poll(0.05) is not None and consumer.metrics()["heartbeats"] > 1)
                assert consumer.metrics()["heartbeat_failures"] == 0
                with polling(consumer):
                    proxy.is_calm = False
                    failing = heard.next(HeartbeatsFailing)
                    assert failing.group_id == group
                    assert second <= failing.seconds < 2 * second
                    risk = heard.next(MembershipAtRisk)
                    assert risk.cause == "heartbeats"
                    assert 0 < risk.seconds_left <= second
                    assert consumer.metrics()["heartbeat_failures"] > 0
                    proxy.is_calm = True
                    assert heard.next(HeartbeatsRecovered).seconds > failing.seconds
                    assert heard.next(MembershipSafe).cause == "heartbeats"
                assert consumer.metrics()["seconds_since_heartbeat"] < 2 * second

    patiently(scenario)


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    kind = Kind(request.param)
    yield kind
    kind.close()


def test_a_slow_handler_is_heard_of_before_its_partition_is_given_up(kind: Kind, servers: str, topic: str) -> None:
    def scenario(scale: float) -> None:
        heard, limit = Heard(), 2 * scale
        times = {"max_poll_interval_ms": round(1000 * limit), "session_timeout_ms": round(500 * limit)}
        consumer = kind.member(servers, unique("g"), topic, on_event=heard, **times)

        def work(record: Record) -> float:
            return 0.85 * limit if record.offset == 3 else 0.0

        progress = consumer.run(kind.handler(work), order="partition", **until(consumer, lambda it: it.handled >= 10))
        consumer.close()
        assert progress.handled == 10
        stuck = heard.next(HandlerStuck)
        assert (stuck.partition, stuck.offset, stuck.state) == (TopicPartition(topic, 0), 3, "running")
        assert 0.75 * limit <= stuck.seconds < 0.85 * limit
        assert "simulated work" in stuck.stack
        back = heard.next(HandlerReturned)
        assert (back.offset, back.counts) == (3, True)

    patiently(scenario)


def test_an_overdue_handler_is_heard_of(kind: Kind, servers: str, topic: str) -> None:
    """A thread is abandoned, and reported again when it returns. A coroutine is cancelled."""

    def scenario(scale: float) -> None:
        heard, timeout = Heard(), 0.3 * scale
        consumer = kind.member(servers, unique("g"), topic, on_event=heard)
        calls: list[int] = []

        def work(record: Record) -> float:
            calls.append(record.offset)
            return 2.7 * timeout if calls.count(3) == 1 and record.offset == 3 else 0.0

        progress = consumer.run(
            kind.handler(work), timeout=timeout, retries=None, retry_backoff=0.01,
            **until(consumer, lambda it: it.handled == 10),
        )  # fmt: skip
        consumer.close()
        assert progress.handled == 10
        stuck = heard.next(HandlerStuck)
        assert (stuck.offset, stuck.state) == (3, "abandoned" if kind.name == "sync" else "cancelled")
        assert "simulated work" in stuck.stack
        if kind.name == "sync":
            back = heard.first(HandlerReturned)
            assert (back.offset, back.counts) == (3, False)

    patiently(scenario)


@pytest.mark.parametrize("name", list(SHARE_KINDS))
def test_an_overdue_handler_of_a_share_group_is_heard_of(name: str, servers: str, topic: str) -> None:
    heard, may_go = Heard(), threading.Event()
    group = share_group(servers)
    consumer = SHARE_KINDS[name](bootstrap_servers=servers, group_id=group, on_event=heard)
    try:
        consumer.subscribe([topic])

        def plain(record: Record) -> None:
            if record.offset == 3 and record.delivery_count == 1:
                may_go.wait(DEADLINE)

        async def coroutine(record: Record) -> None:
            if record.offset == 3 and record.delivery_count == 1:
                await asyncio.sleep(DEADLINE)  # until it is cancelled

        consumer.run(
            plain if name == "sync" else coroutine, timeout=0.3, retry_backoff=0.01,
            **until(consumer, lambda it: it.accepted == 10),
        )  # fmt: skip
        stuck = heard.next(HandlerStuck)
        assert (stuck.offset, stuck.state) == (3, "abandoned" if name == "sync" else "cancelled")
    finally:
        may_go.set()
        consumer.close()


def test_events_cost_a_log_entry_even_without_a_function(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    with KINDS["sync"](
        bootstrap_servers=servers, group_id=unique("g"), max_poll_interval_ms=1000, session_timeout_ms=1000, **CLASSIC
    ) as consumer:
        consumer.subscribe([topic])
        wait_for("partitions", lambda: consumer.poll(0.05) is not None and consumer.assignment())
        wait_for("the log", lambda: "left, because poll() was not called" in caplog.text)
        assert not [each for each in threading.enumerate() if each.name == "headrace-callbacks"]
