"""Commits to a group that the consumer is not a member of."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from headrace import OffsetAndMetadata, TopicPartition
from headrace.errors import CommitFailedError, ConfigError, HeadraceError
from support.brokers.admin import Admin, client_settings, unique
from support.brokers.produce import numbered_topic
from support.harness.consumers import AnyConsumer, MakeConsumer, assigned, poll_until
from support.harness.waiting import wait_for


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("commits", 2), 2, 100)


def committed(consumer: AnyConsumer, tp: TopicPartition) -> OffsetAndMetadata | None:
    found: OffsetAndMetadata | None = consumer.committed([tp])[tp]
    return found


def test_a_restarted_consumer_resumes_at_the_committed_offset(make: MakeConsumer, topic: str, servers: str) -> None:
    tp, group = TopicPartition(topic, 0), unique("g")
    settings: dict[str, Any] = {"group_id": group, "enable_auto_commit": False, "max_poll_records": 10}
    consumer = assigned(make, servers, topic, **settings)
    assert committed(consumer, tp) is None
    epoch = poll_until(consumer, 10)[-1].leader_epoch
    consumer.commit()
    assert committed(consumer, tp) == OffsetAndMetadata(10, "", epoch)
    poll_until(consumer, 10)
    consumer.close()

    again = assigned(make, servers, topic, **settings)
    assert again.position(tp) == 10
    assert poll_until(again, 1)[0].offset == 10


def test_explicit_offsets_are_committed_with_their_metadata(make: MakeConsumer, topic: str, servers: str) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer = make(bootstrap_servers=servers, group_id=unique("g"))
    consumer.commit({first: 42, second: OffsetAndMetadata(7, "a note")})
    assert consumer.committed([first, second]) == {first: OffsetAndMetadata(42), second: OffsetAndMetadata(7, "a note")}
    with pytest.raises(ValueError, match="negative"):
        consumer.commit({first: -1})
    consumer.assign([first])
    assert consumer.position(first) == 42
    assert poll_until(consumer, 1)[0].offset == 42


def test_metadata_that_is_too_large_is_refused(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = make(bootstrap_servers=servers, group_id=unique("g"))
    with pytest.raises(HeadraceError, match=r"OFFSET_METADATA_TOO_LARGE.*") as caught:
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(1, "x" * 5000)})
    assert topic in str(caught.value)


def test_commits_without_a_group_id_raise_config_error(make: MakeConsumer, topic: str, servers: str) -> None:
    consumer = assigned(make, servers, topic)
    poll_until(consumer, 1)
    with pytest.raises(ConfigError, match=r"group\.id"):
        consumer.commit()
    with pytest.raises(ConfigError, match=r"group\.id"):
        consumer.committed([(topic, 0)])


def test_commit_async_calls_back_in_the_order_of_the_commits(make: MakeConsumer, topic: str, servers: str) -> None:
    """Callbacks run on the user's thread."""
    tp = TopicPartition(topic, 0)
    consumer = assigned(make, servers, topic, group_id=unique("g"), enable_auto_commit=False)
    seen: list[tuple[int, HeadraceError | None, int]] = []

    def done(offsets: dict[TopicPartition, OffsetAndMetadata], error: HeadraceError | None) -> None:
        seen.append((offsets[tp].offset, error, threading.get_ident()))

    for offset in range(1, 21):
        consumer.commit_async({tp: offset}, done)
    wait_for("the callbacks", lambda: consumer.poll(0.05) is not None and len(seen) == 20)
    assert [(offset, error) for offset, error, _ in seen] == [(offset, None) for offset in range(1, 21)]
    assert {thread for *_, thread in seen} == {threading.get_ident()}
    assert committed(consumer, tp) == OffsetAndMetadata(20)

    consumer.commit_async({tp: 33}, done)
    consumer.close()
    assert seen[-1][:2] == (33, None), "close() waits for the commit and calls back"


def test_auto_commit_commits_by_interval(make: MakeConsumer, topic: str, servers: str) -> None:
    tp, group = TopicPartition(topic, 0), unique("g")
    watcher = make(bootstrap_servers=servers, group_id=group)
    consumer = assigned(make, servers, topic, group_id=group, auto_commit_interval_ms=100, max_poll_records=10)
    assert len(poll_until(consumer, 10)) == 10
    consumer.pause([tp])

    def in_time() -> bool:
        consumer.poll(0.05)
        found = committed(watcher, tp)
        return found is not None and found.offset == 10

    wait_for("an auto-commit", in_time)


def test_close_auto_commits_the_records_that_poll_returned(make: MakeConsumer, topic: str, servers: str) -> None:
    tp, group = TopicPartition(topic, 0), unique("g")
    consumer = assigned(make, servers, topic, group_id=group, max_poll_records=13)
    assert len(poll_until(consumer, 13)) == 13
    consumer.close()
    watcher = make(bootstrap_servers=servers, group_id=group)
    found = committed(watcher, tp)
    assert found is not None
    assert found.offset == 13


def test_nothing_is_committed_when_auto_commit_is_off(make: MakeConsumer, topic: str, servers: str) -> None:
    group = unique("g")
    consumer = assigned(
        make, servers, topic, group_id=group, enable_auto_commit=False, auto_commit_interval_ms=0, max_poll_records=5
    )
    poll_until(consumer, 20)
    consumer.close()
    assert committed(make(bootstrap_servers=servers, group_id=group), TopicPartition(topic, 0)) is None


@pytest.fixture
def busy_group(topic: str, servers: str) -> Iterator[str]:
    """A group with an active member."""
    group = unique("busy")
    member = ConfluentConsumer({**client_settings(servers), "group.id": group, "auto.offset.reset": "earliest"})
    member.subscribe([topic])
    deadline = time.monotonic() + 60
    while not member.assignment():
        assert time.monotonic() < deadline, "the member was not assigned anything"
        member.poll(0.1)
    yield group
    member.close()


def test_a_commit_to_a_group_with_active_members_is_rejected(
    make: MakeConsumer, topic: str, servers: str, busy_group: str
) -> None:
    tp = TopicPartition(topic, 0)
    consumer = assigned(make, servers, topic, group_id=busy_group, enable_auto_commit=False)
    poll_until(consumer, 1)
    with pytest.raises(CommitFailedError, match="active members") as caught:
        consumer.commit()
    assert busy_group in str(caught.value)
    assert not caught.value.retriable
    errors: list[HeadraceError | None] = []
    consumer.commit_async({tp: 1}, lambda offsets, error: errors.append(error))
    wait_for("the callback", lambda: consumer.poll(0.05) is not None and errors)
    assert isinstance(errors[0], CommitFailedError)
