"""Loops that catch an error and poll again: the same error is raised at a limited rate, and others are raised too."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace import TopicPartition
from headrace.errors import HeadraceError, KafkaError, OffsetOutOfRangeError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.consumers import AnyConsumer, MakeConsumer, assigned

SECONDS = 4.0


class Loop:
    """Such a loop, with its errors and offsets. It ends after `seconds`, but not before it has `at_least` errors."""

    def __init__(self, consumer: AnyConsumer, wait: float, at_least: int = 0, seconds: float = SECONDS) -> None:
        self.errors: list[HeadraceError] = []
        self.offsets: list[int] = []
        began = time.monotonic()
        while time.monotonic() < began + seconds or len(self.errors) < at_least:
            assert time.monotonic() < began + 60, self.errors
            try:
                self.offsets += [record.offset for record in consumer.poll(wait)]
            except HeadraceError as error:
                self.errors.append(error)
        # One error per second, or one per poll if polls wait for at least 0.1 s.
        self.most = 1 + (time.monotonic() - began) / min(1.0, max(0.1, wait))


@pytest.mark.parametrize("wait", [0.0, 0.1, 5.0])
def test_a_position_out_of_range_without_a_reset_policy_is_raised_at_a_bearable_pace(
    make: MakeConsumer, admin: Admin, servers: str, wait: float
) -> None:
    topic = admin.create("naive", 3)
    write(servers, topic, numbered(20, partition=1))
    consumer = assigned(make, servers, topic, 3, auto_offset_reset="none")
    for number, offset in enumerate([5000, 0, 6000]):
        consumer.seek((topic, number), offset)
    loop = Loop(consumer, wait, at_least=3)
    assert len(loop.errors) <= 2 + loop.most, "each error at once, then one at a time"
    assert loop.offsets == list(range(20)), "the other partition is consumed"
    found = [error.offsets for error in loop.errors if isinstance(error, OffsetOutOfRangeError)]
    assert {TopicPartition(topic, 0): 5000} in found
    assert {TopicPartition(topic, 2): 6000} in found

    consumer.seek((topic, 0), 7000)
    assert any("7000" in str(error) for error in Loop(consumer, 0.1, at_least=3).errors)
    consumer.seek((topic, 0), 0)
    consumer.seek((topic, 2), 0)
    loop = Loop(consumer, 0.1, seconds=1.5)
    assert (loop.errors, loop.offsets) == ([], [])


@pytest.mark.parametrize("wait", [0.0, 0.1, 5.0])
def test_the_error_of_a_membership_that_ended_is_raised_at_a_bearable_pace(
    make: MakeConsumer, admin: Admin, servers: str, wait: float
) -> None:
    settings: dict[str, Any] = {"group_protocol": "consumer", "group_remote_assignor": "nonsense"}
    consumer = make(bootstrap_servers=servers, group_id=unique("g"), **settings)
    consumer.subscribe([admin.create("naive")])
    loop = Loop(consumer, wait, at_least=2)
    assert len(loop.errors) <= loop.most
    assert {error.name for error in loop.errors if isinstance(error, KafkaError)} == {"UNSUPPORTED_ASSIGNOR"}
