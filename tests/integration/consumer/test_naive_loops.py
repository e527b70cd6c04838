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


def run(consumer: AnyConsumer, wait: float, seconds: float = SECONDS) -> tuple[list[HeadraceError], list[int]]:
    """Run such a loop; return its errors and offsets."""
    errors: list[HeadraceError] = []
    offsets: list[int] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            offsets += [record.offset for record in consumer.poll(wait)]
        except HeadraceError as error:
            errors.append(error)
    return errors, offsets


def most(wait: float) -> float:
    """The largest number of errors: one per second, or one per poll if polls wait for at least 0.1 s."""
    return 1 + SECONDS / min(1.0, max(0.1, wait))


@pytest.mark.parametrize("wait", [0.0, 0.1, 5.0])
def test_a_position_out_of_range_without_a_reset_policy_is_raised_at_a_bearable_pace(
    make: MakeConsumer, admin: Admin, servers: str, wait: float
) -> None:
    topic = admin.create("naive", 3)
    write(servers, topic, numbered(20, partition=1))
    consumer = assigned(make, servers, topic, 3, auto_offset_reset="none")
    for number, offset in enumerate([5000, 0, 6000]):
        consumer.seek((topic, number), offset)
    errors, offsets = run(consumer, wait)
    assert 3 <= len(errors) <= 2 + most(wait), "each error at once, then one at a time"
    assert offsets == list(range(20)), "the other partition is consumed"
    found = [error.offsets for error in errors if isinstance(error, OffsetOutOfRangeError)]
    assert {TopicPartition(topic, 0): 5000} in found
    assert {TopicPartition(topic, 2): 6000} in found

    consumer.seek((topic, 0), 7000)
    errors, _ = run(consumer, 0.1)
    assert any("7000" in str(error) for error in errors)
    consumer.seek((topic, 0), 0)
    consumer.seek((topic, 2), 0)
    assert run(consumer, 0.1, 1.5) == ([], [])


@pytest.mark.parametrize("wait", [0.0, 0.1, 5.0])
def test_the_error_of_a_membership_that_ended_is_raised_at_a_bearable_pace(
    make: MakeConsumer, admin: Admin, servers: str, wait: float
) -> None:
    settings: dict[str, Any] = {"group_protocol": "consumer", "group_remote_assignor": "nonsense"}
    consumer = make(bootstrap_servers=servers, group_id=unique("g"), **settings)
    consumer.subscribe([admin.create("naive")])
    errors, _ = run(consumer, wait)
    assert 2 <= len(errors) <= most(wait)
    assert {error.name for error in errors if isinstance(error, KafkaError)} == {"UNSUPPORTED_ASSIGNOR"}
