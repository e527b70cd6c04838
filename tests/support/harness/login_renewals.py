"""A consumer that keeps consuming while its logins are renewed on the same connections.

A test has the fixture `secured` and the settings of a login that lasts for SESSION.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.brokers.admin import unique
from support.brokers.secured import SESSION, SecuredBroker
from support.harness.consumers import AnyConsumer, MakeConsumer
from support.harness.retries import patiently

_LONGER_THAN_TWO_LOGINS = 2.2 * SESSION
_LONGEST_GAP = 1.0


@pytest.fixture
def steady(secured: SecuredBroker) -> Iterator[tuple[str, list[int]]]:
    """A topic that gets a record every few milliseconds, and the number of its records."""
    topic = secured.create("steady")
    written = [0]
    ending = threading.Event()
    producer = secured.producer()

    def write() -> None:
        while not ending.wait(0.01):
            producer.produce(topic, b"%d" % written[0])
            written[0] += 1
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield topic, written
    ending.set()
    thread.join(15)


def read_for(consumer: AnyConsumer, seconds: float) -> tuple[list[int], float]:
    """The received values, and the longest gap after the first record."""
    found: list[int] = []
    longest, last = 0.0, None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        records = consumer.poll(0.2)
        now = time.monotonic()
        if records:
            longest, last = max(longest, now - (last or now)), now
        found += [int(record.value) for record in records]
    return found, max(longest, time.monotonic() - (last or 0.0))


def renewals(caplog: pytest.LogCaptureFixture) -> int:
    return sum("re-authenticated with" in message for message in caplog.messages)


def reads_on(
    make: MakeConsumer,
    config: dict[str, Any],
    steady: tuple[str, list[int]],
    caplog: pytest.LogCaptureFixture,
    begin: Callable[[], object] = lambda: None,
) -> None:
    """Check that logins are renewed in time. The scenario is retried if the machine was busy for longer than a login
    lasts. No record may be lost in any case."""
    caplog.set_level(logging.DEBUG, "headrace")
    topic, written = steady

    def scenario(_: float) -> None:
        caplog.clear()
        begin()
        consumer = make(config, group_id=unique(topic), auto_offset_reset="earliest", auto_commit_interval_ms=300)
        consumer.subscribe([topic])
        found, gap = read_for(consumer, _LONGER_THAN_TWO_LOGINS)
        connections = [message for message in caplog.messages if message.startswith("connected to")]
        behind = written[0] - len(found)
        consumer.close()
        if found != list(range(len(found))):
            pytest.fail(f"a record was lost or repeated: {found}")
        assert behind < 100
        assert gap < _LONGEST_GAP
        assert len(connections) == len(set(connections)), f"the client reconnected: {connections}"
        assert renewals(caplog) >= 2 * 3

    patiently(scenario)
