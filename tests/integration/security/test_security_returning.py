"""Missing ACLs are raised at a limited rate, do not block other topics, and are noticed once granted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import RebalanceListener, ShareConsumer, TopicPartition
from headrace.errors import AuthorizationError
from support.brokers.admin import unique
from support.brokers.secured import SecuredBroker
from support.harness.consumers import AnyConsumer, MakeConsumer

SOON = 30.0  # seconds, well below the session timeout of 45 s of a classic member
PROTOCOLS = ["classic", "consumer"]


class Loop:
    """A program's loop that catches errors and polls again. Collects values and errors."""

    def __init__(self, consumer: AnyConsumer, *, wait: float = 0.2, rest: float = 0.0) -> None:
        self.consumer, self._wait, self._pause = consumer, wait, rest
        self.values: list[bytes] = []
        self.errors: list[AuthorizationError] = []
        self.polls = 0

    def until(self, what: str, is_done: Callable[[], bool], seconds: float = 60.0) -> float:
        began = time.monotonic()
        while not is_done():
            assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
            self.once()
        return time.monotonic() - began

    def during(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.once()

    def once(self) -> None:
        self.polls += 1
        try:
            records = self.consumer.poll(self._wait)
        except AuthorizationError as error:
            self.errors.append(error)
            time.sleep(self._pause)  # like a program that pauses after an error
        else:
            self.values += [record.value for record in records]


@pytest.fixture
def topic(secured: SecuredBroker) -> str:
    """A topic with 20 records that `reader` may read."""
    name = secured.create("open", 20)
    secured.allow("reader", "topic", name, "read", "describe")
    return name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_joins_once_its_group_is_authorized(
    make: MakeConsumer, secured: SecuredBroker, topic: str, protocol: str
) -> None:
    group = unique("later")
    settings: dict[str, Any] = {"group_id": group, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    consumer = make(secured.broker.config_of("reader"), **settings)
    consumer.subscribe([topic])
    loop = Loop(consumer)
    loop.until("the refusal", lambda: bool(loop.errors))
    loop.during(3.0)
    assert len(loop.errors) == 1, "raised once, and not again for a while"
    assert (loop.errors[0].name, group in str(loop.errors[0])) == ("GROUP_AUTHORIZATION_FAILED", True)
    secured.allow("reader", "group", group, "read")
    loop.until("records", lambda: len(loop.values) >= 20, SOON)
    assert len(loop.errors) <= 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_rejoins_once_its_group_is_authorized_again(
    make_sync: MakeConsumer, secured: SecuredBroker, topic: str, protocol: str
) -> None:
    group = unique("back")
    secured.allow("reader", "group", group, "read")
    lost: list[frozenset[TopicPartition]] = []

    class Listener(RebalanceListener):
        def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
            lost.append(partitions)

    settings: dict[str, Any] = {"group_id": group, "group_protocol": protocol, "enable_auto_commit": False}
    consumer = make_sync(secured.broker.config_of("reader"), auto_offset_reset="earliest", **settings)
    consumer.subscribe([topic], listener=Listener())
    loop = Loop(consumer)
    loop.until("records", lambda: len(loop.values) >= 20)
    secured.disallow("reader", "group", group)
    loop.until("the refusal", lambda: bool(loop.errors))
    assert lost == [{TopicPartition(topic, 0)}], "other members may get the partitions"
    secured.allow("reader", "group", group, "read")
    seconds = loop.until("the uncommitted records again", lambda: len(loop.values) >= 40, SOON)
    assert seconds < SOON


def test_a_denied_classic_member_can_resubscribe_before_its_session_expires(
    make_sync: MakeConsumer, secured: SecuredBroker, topic: str
) -> None:
    """It could not leave the group, so a new member would have to wait until the old session expires."""
    group = unique("again")
    secured.allow("reader", "group", group, "read")
    settings: dict[str, Any] = {"group_id": group, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    consumer = make_sync(secured.broker.config_of("reader"), **settings)
    consumer.subscribe([topic])
    loop = Loop(consumer)
    loop.until("records", lambda: len(loop.values) >= 20)
    secured.disallow("reader", "group", group)
    loop.until("the refusal", lambda: bool(loop.errors))
    consumer.unsubscribe()
    secured.allow("reader", "group", group, "read")
    consumer.subscribe([topic])
    assert loop.until("the records again", lambda: len(loop.values) >= 40, SOON) < 15


def test_a_share_member_joins_once_its_group_is_authorized(secured: SecuredBroker, topic: str) -> None:
    group = unique("shared")
    with ShareConsumer(secured.broker.config_of("reader"), group_id=group) as consumer:
        consumer.subscribe([topic])
        loop = Loop(consumer)
        loop.until("the refusal", lambda: bool(loop.errors))
        loop.during(3.0)
        assert len(loop.errors) == 1
        secured.allow("reader", "group", group, "read")
        loop.until("the membership", lambda: consumer.metrics()["group"]["state"] == "member", SOON)
        producer = secured.producer()  # a share group starts at the end of the log

        def is_read() -> bool:
            producer.produce(topic, b"new")
            producer.flush(60)
            return b"new" in loop.values

        loop.until("a record", is_read, SOON)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_denied_topics_do_not_starve_the_others(
    make: MakeConsumer, secured: SecuredBroker, topic: str, protocol: str
) -> None:
    """A program that pauses after each error still gets nearly all polls."""
    group, denied = unique("starving"), [secured.create("denied", 5), secured.create("denied", 5)]
    secured.allow("reader", "group", group, "read")
    consumer = make(
        secured.broker.config_of("reader"), group_id=group, group_protocol=protocol, auto_offset_reset="earliest"
    )
    consumer.subscribe([topic, *denied])
    loop = Loop(consumer, rest=0.3)
    loop.until("both", lambda: len(loop.values) >= 20 and bool(loop.errors))
    producer = secured.producer()
    for number in range(360):
        producer.produce(topic, b"more %d" % number)
    producer.flush(60)
    errors = len(loop.errors)
    loop.until("all records", lambda: len(loop.values) >= 380, 20.0)
    loop.during(5.0)
    assert len(loop.errors) - errors <= 2
    for name in denied:
        assert name in str(loop.errors[-1]), "one error names all topics"
    assert loop.errors[-1].topics == set(denied)
    secured.allow("reader", "topic", denied[0], "read", "describe")
    loop.until("the other topic", lambda: len(loop.values) >= 385, SOON + 30)


def test_denied_topics_do_not_starve_the_others_of_a_share_group(secured: SecuredBroker, topic: str) -> None:
    group, denied = unique("shared"), [secured.create("denied", 5), secured.create("denied", 5)]
    secured.allow("reader", "group", group, "read")
    with ShareConsumer(secured.broker.config_of("reader"), group_id=group) as consumer:
        consumer.subscribe([topic, *denied])
        loop = Loop(consumer, rest=0.3)
        loop.until("the refusal", lambda: bool(loop.errors))
        assert loop.errors[0].topics == set(denied)
        producer = secured.producer()

        def is_read() -> bool:
            producer.produce(topic, b"new")
            producer.flush(60)
            return b"new" in loop.values

        loop.until("a record of the allowed topic", is_read, SOON)
        loop.during(3.0)
        assert len(loop.errors) <= 4


def test_denied_partitions_are_read_once_they_are_authorized(
    make_sync: MakeConsumer, secured: SecuredBroker, topic: str
) -> None:
    """Metadata, position and fetch requests are rejected. Each error is raised at a limited rate."""
    described, hidden = secured.create("described", 5), secured.create("hidden", 5)
    secured.allow("reader", "topic", described, "describe")
    consumer = make_sync(secured.broker.config_of("reader"), auto_offset_reset="earliest")
    consumer.assign([(topic, 0), (described, 0), (hidden, 0)])
    loop = Loop(consumer, wait=0.0)
    loop.until("all records and errors", lambda: len(loop.values) >= 20 and {described, hidden} <= seen(loop))
    errors = len(loop.errors)
    loop.during(5.0)
    assert len(loop.errors) - errors <= 2
    for name in (described, hidden):
        secured.allow("reader", "topic", name, "read", "describe")
    loop.until("the others", lambda: len(loop.values) >= 30, SOON)


def seen(loop: Loop) -> set[str]:
    return set().union(*(error.topics for error in loop.errors))
