"""Impossible arguments raise a one-line error at once, and the consumer works afterwards as before."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import AsyncConsumer, AsyncShareConsumer, Consumer, LocalBroker, ShareConsumer
from headrace.errors import StateError
from headrace.local import LocalBrokerError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.consumers import AnyConsumer, BlockingAsyncConsumer, MakeConsumer, poll_until
from support.harness.share_consumers import MakeShareConsumer, poll_some, put, share_group
from support.harness.wrong_arguments import (
    OF_CONSUMERS,
    OF_SHARE_CONSUMERS,
    TOPIC,
    TP,
    Method,
    async_handler,
    handler,
    names_of,
)

RECORDS = 20
CLOSES_WITHIN = 10.0


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (Consumer, OF_CONSUMERS),
        (AsyncConsumer, OF_CONSUMERS),
        (ShareConsumer, OF_SHARE_CONSUMERS),
        (AsyncShareConsumer, OF_SHARE_CONSUMERS),
    ],
)
def test_every_parameter_has_wrong_values_to_be_tried(kind: type[Any], table: dict[str, Method]) -> None:
    assert {name: set(method.wrong) for name, method in table.items()} == names_of(kind)


def raised_by(method: Callable[..., Any], *args: Any, **keywords: Any) -> Exception | None:
    try:
        method(*args, **keywords)
    except Exception as error:  # noqa: BLE001  # the caller checks it
        return error
    return None


def refuses(consumer: AnyConsumer, kind: type[Any], name: str, method: Method, works: Callable[[], None]) -> int:
    """Try all wrong values; return their number."""
    calls = method.calls(getattr(kind, name).__get__(object()))
    for parameter, value, args, keywords, expected in calls:
        if isinstance(consumer, BlockingAsyncConsumer):
            args = [async_handler if each is handler else each for each in args]
        what = f"{name}({parameter}={value!r:.80})"
        began = time.monotonic()
        error = raised_by(getattr(consumer, name), *args, **keywords)
        assert isinstance(error, expected), f"{what} raised {error!r}"
        assert isinstance(error, StateError) is (expected is StateError), f"{what} raised {error!r}"
        assert re.fullmatch(".{10,400}", str(error)), f"{what}: {error}"
        assert time.monotonic() - began < CLOSES_WITHIN, what
        try:
            works()
        except Exception as error:
            raise AssertionError(f"after {what} the consumer does not work: {error!r}") from error
    return len(calls)


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    admin.create("", name=TOPIC)
    write(servers, TOPIC, numbered(RECORDS))
    return TOPIC


@pytest.mark.parametrize(("kind", "protocol"), [("sync", "classic"), ("async", "consumer")])
def test_a_consumer_works_after_every_wrong_argument(
    kind: str, protocol: str, request: pytest.FixtureRequest, servers: str, topic: str
) -> None:
    make: MakeConsumer = request.getfixturevalue(f"make_{kind}")
    settings = {"commit_mode": "done", "auto_offset_reset": "earliest", "group_protocol": protocol}
    member = make(bootstrap_servers=servers, group_id=unique("g"), **settings)
    member.subscribe([topic])
    alone = make(bootstrap_servers=servers, group_id=unique("g"), **settings)
    alone.assign([TP])

    def works(consumer: AnyConsumer) -> None:
        """Check that the consumer reads and commits."""
        assert consumer.assignment() == {TP}
        assert consumer.paused() == set()
        consumer.seek(TP, 0)
        records = consumer.poll(30.0, max_records=2)
        assert [record.offset for record in records] == [0, 1]
        consumer.done(records)
        consumer.commit()
        assert consumer.committed([TP])[TP].offset == 2
        assert consumer.in_flight() == {}

    for consumer in (member, alone):
        assert poll_until(consumer, RECORDS)
        works(consumer)
    tried = 0
    for name, method in OF_CONSUMERS.items():
        consumer = alone if method.alone else member
        tried += refuses(consumer, Consumer, name, method, lambda consumer=consumer: works(consumer))  # type: ignore[misc]
    assert tried > 300
    for consumer in (member, alone):
        began = time.monotonic()
        consumer.close()
        assert time.monotonic() - began < CLOSES_WITHIN


def test_a_share_consumer_works_after_every_wrong_argument(
    make_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    put(servers, topic, numbered(2000))
    group = share_group(servers)
    consumer = make_share(
        bootstrap_servers=servers, group_id=group, topics=[topic], share_acknowledgement_mode="explicit"
    )

    def works() -> None:
        records = poll_some(consumer, max_records=1)
        assert len(records) == 1
        consumer.acknowledge(records)
        assert list(consumer.commit().values()) == [None]

    works()
    tried = sum(refuses(consumer, ShareConsumer, name, method, works) for name, method in OF_SHARE_CONSUMERS.items())
    assert tried > 100
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < CLOSES_WITHIN


def test_timeouts_may_be_negative_or_infinite(make: MakeConsumer, servers: str, topic: str) -> None:
    consumer = make(bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest", commit_mode="done")
    consumer.subscribe([topic])
    records = consumer.poll(math.inf)
    while not records:  # a poll also returns when the assignment changes
        records = consumer.poll(math.inf)
    consumer.done(records)
    consumer.commit(timeout=math.inf)
    assert consumer.committed([TP], timeout=math.inf)[TP].offset == len(records)
    assert consumer.position(TP, timeout=-1) == len(records)
    assert consumer.in_flight(timeout=-math.inf) == {}
    consumer.seek_to_end()
    for none in (-1, -math.inf, -0.0, 0):
        assert len(consumer.poll(none)) == 0
    consumer.close(timeout=30, drain=-1)


def test_seeking_to_the_largest_offset_resets_the_position(make: MakeConsumer, servers: str, topic: str) -> None:
    consumer = make(bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest")
    consumer.assign([TP])
    consumer.commit({TP: 2**63 - 1})
    assert consumer.committed([TP])[TP].offset == 2**63 - 1
    assert consumer.offsets_for_times({TP: 2**63 - 1}) == {TP: None}
    consumer.seek(TP, 2**63 - 1)
    offsets = [record.offset for record in poll_until(consumer, RECORDS)]
    assert offsets == list(range(len(offsets))), "the offset is out of range, so the position was reset"


def test_a_broker_that_is_named_twice_is_started_once(
    kafka_cluster: Callable[..., LocalBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = kafka_cluster(1, start_timeout=100.0)
    started: list[int] = []
    launch = LocalBroker._launch

    def noting(self: LocalBroker, broker_id: int, *args: Any) -> None:
        started.append(broker_id)
        launch(self, broker_id, *args)

    monkeypatch.setattr(LocalBroker, "_launch", noting)
    broker.restart(1, 1)
    assert started == [1]
    assert broker.live_brokers == (1,)


def test_a_local_broker_refuses_wrong_arguments(kafka_broker: LocalBroker) -> None:
    for method in ("address", "pid", "kill", "stop_broker", "restart", "pause", "resume"):
        for wrong in ("1", None, 1.0, True, [1]):
            with pytest.raises(TypeError, match="broker_id must be a whole number"):
                getattr(kafka_broker, method)(wrong)
        for wrong in (0, 2, -1, 2**70):
            with pytest.raises(LocalBrokerError, match=f"there is no broker {wrong}"):
                getattr(kafka_broker, method)(wrong)
    for args, keywords in (((5,), {}), (("a", 5), {}), (("a",), {"input": b"x"}), (("a",), {"timeout": "1"})):
        with pytest.raises(TypeError):
            kafka_broker.run_tool(*args, **keywords)  # type: ignore[arg-type]
    with pytest.raises(LocalBrokerError, match="not secured"):
        kafka_broker.config_of("admin")
    assert kafka_broker.live_brokers == (1,)
