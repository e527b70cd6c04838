"""Consumers report what they wait for in vain: topics, patterns and partitions that do not exist."""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Consumer, ShareConsumer
from headrace.errors import KafkaError
from headrace.events import Event, TopicsFound, TopicsMissing
from headrace.types import TopicPartition
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.harness.share_consumers import share_group
from support.harness.waiting import wait_for

WAYS: dict[str, dict[str, Any]] = {
    "classic": {"heartbeat_interval_ms": 100},
    "KIP-848": {"group_protocol": "consumer"},
}


class Heard:
    """A function for on_event, and a consumer that is polled until an event comes."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def __call__(self, event: Event) -> None:
        self._events.put(event)

    def next(self, consumer: Any) -> Event:
        def look() -> Event | None:
            with contextlib.suppress(KafkaError):  # of a share fetch from a topic that is being deleted
                consumer.poll(0.1)
            return None if self._events.empty() else self._events.get()

        return wait_for("an event", look)


def settings(servers: str, heard: Heard, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": servers, "allow_auto_create_topics": False, "on_event": heard, **more}


def subscribed(servers: str, heard: Heard, kind: str, topics: list[str]) -> Any:
    if kind == "share":
        consumer: Any = ShareConsumer(settings(servers, heard, group_id=share_group(servers)))
    else:
        group = {"group_id": unique("g"), "auto_offset_reset": "earliest"}
        consumer = Consumer(settings(servers, heard, **group, **WAYS[kind]))
    consumer.subscribe(topics)
    return consumer


@pytest.mark.parametrize("kind", [*WAYS, "share"])
def test_a_misspelt_topic_is_reported_with_a_similar_one_and_found_when_it_is_created(
    servers: str, admin: Admin, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    right, heard = admin.create(f"orders-{kind}"), Heard()
    typo, began = right.replace("orders", "ordres"), time.monotonic()
    with subscribed(servers, heard, kind, [right, typo]) as consumer:
        event = heard.next(consumer)
        assert isinstance(event, TopicsMissing)
        assert (event.topics, event.suggestions, event.partitions, event.pattern) == ((typo,), {typo: right}, (), None)
        # tests/unit/group/test_missing_topics.py has the schedule, in virtual time.
        assert 5.0 <= event.seconds <= time.monotonic() - began
        logged = [each for each in caplog.records if each.name == "headrace.events"]
        assert [(each.levelno, each.getMessage()) for each in logged] == [(logging.WARNING, str(event))]
        assert consumer.metrics()["missing_topics"] == [typo]
        admin.create("", name=typo)
        assert heard.next(consumer) == TopicsFound(event.group_id, (typo,))
        assert consumer.metrics()["missing_topics"] == []


@pytest.mark.parametrize("kind", [*WAYS, "share"])
def test_a_topic_that_is_deleted_while_it_is_subscribed_is_reported(servers: str, admin: Admin, kind: str) -> None:
    topic, heard = numbered_topic(servers, admin.create("gone"), 1, 10), Heard()
    with subscribed(servers, heard, kind, [topic]) as consumer:
        wait_for("records", lambda: len(consumer.poll(0.1)))
        admin.delete(topic)
        event = heard.next(consumer)
        assert isinstance(event, TopicsMissing)
        assert event.topics == (topic,)


Compile = Callable[[str], str | re.Pattern[str]]


@pytest.mark.parametrize(
    ("kind", "compiled"), [("classic", str), ("KIP-848", str), ("KIP-848", re.compile)], ids=["classic", "RE2", "local"]
)
def test_a_pattern_that_matches_nothing_is_reported(servers: str, admin: Admin, kind: str, compiled: Compile) -> None:
    name, heard = unique("pattern"), Heard()
    ways = settings(servers, heard, group_id=unique("g"), metadata_max_age_ms=1000, **WAYS[kind])
    with Consumer(ways) as consumer:
        consumer.subscribe(pattern=compiled(f"{name}.*"))
        event = heard.next(consumer)
        assert isinstance(event, TopicsMissing)
        assert (event.topics, event.pattern) == ((), f"{name}.*")
        admin.create("", name=f"{name}.first")
        assert heard.next(consumer) == TopicsFound(event.group_id, pattern=f"{name}.*")


def test_a_member_without_partitions_does_not_take_its_pattern_for_wrong(servers: str, admin: Admin) -> None:
    """The coordinator evaluates the pattern, and the other member owns everything that it matches."""
    topic, group, heard = admin.create("pattern"), unique("g"), Heard()
    way = {"group_id": group, **WAYS["KIP-848"]}
    with Consumer(settings(servers, Heard(), **way)) as owner, Consumer(settings(servers, heard, **way)) as idle:
        owner.subscribe(pattern=f"{topic}.*")
        wait_for("the assignment", lambda: owner.poll(0.1) or owner.assignment())
        idle.subscribe(pattern=f"{topic}.*")
        typo = Consumer(settings(servers, late := Heard(), **{**way, "group_id": unique("g")}))
        with typo:  # its report comes after the time at which the idle member would have reported
            idle.poll(0.5)
            typo.subscribe(pattern=f"not-{topic}.*")

            def both() -> Any:
                idle.poll(0.1)
                owner.poll(0.1)
                return len(typo.poll(0.1)) + len(typo.metrics()["missing_topics"])

            wait_for("the report of the wrong pattern", both)
            assert late.next(typo).__class__ is TopicsMissing
        assert not idle.assignment()
        assert idle.metrics()["missing_topics"] == []
        assert heard._events.empty()


def test_an_assigned_partition_that_does_not_exist_is_reported_without_a_group(servers: str, admin: Admin) -> None:
    topic, heard = admin.create("assigned", 2), Heard()
    with Consumer(settings(servers, heard)) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 2)])
        event = heard.next(consumer)
        assert isinstance(event, TopicsMissing)
        assert (event.group_id, event.topics, event.partitions) == ("", (), (TopicPartition(topic, 2),))
        admin.add_partitions(topic, 3)
        assert heard.next(consumer) == TopicsFound("", (), (TopicPartition(topic, 2),))
