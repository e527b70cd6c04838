"""Explicit acknowledgements with a broker: accept, release, reject, renew, and expired locks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace import AcknowledgeType, TopicPartition
from headrace._machines.share.acquired import AcquiredRecords
from headrace.errors import KafkaError, StateError
from support.brokers.admin import Admin
from support.brokers.group_configs import configure_group
from support.brokers.produce import numbered
from support.harness.retries import patiently
from support.harness.share_consumers import MakeShareConsumer, offsets, poll_nothing, poll_some, put, share_group
from support.harness.waiting import wait_for

pytestmark = pytest.mark.kafka("4.2")

LOCK = 1.5
Heard = list[tuple[dict[TopicPartition, list[range]], Any]]


def explicit(make: MakeShareConsumer, servers: str, group: str, topic: str, **settings: Any) -> Any:
    return make(
        bootstrap_servers=servers,
        group_id=group,
        share_acknowledgement_mode="explicit",
        topics=[topic],
        **settings,
    )


@pytest.fixture
def topic(servers: str, admin: Admin) -> str:
    name = admin.create("explicit")
    put(servers, name, numbered(10))
    return name


def test_each_record_can_be_acknowledged_with_its_own_type(
    make_share: MakeShareConsumer, servers: str, admin: Admin, topic: str
) -> None:
    consumer = explicit(make_share, servers, share_group(servers), topic)
    tp = TopicPartition(topic, 0)
    heard: Heard = []
    consumer.set_acknowledgement_commit_callback(lambda offsets, error: heard.append((offsets, error)))
    records = poll_some(consumer)
    assert offsets(records) == list(range(10))
    consumer.acknowledge(records[:4])
    consumer.acknowledge(records[4], "release")
    consumer.acknowledge(records[5], AcknowledgeType.REJECT)
    consumer.acknowledge(records[6:], AcknowledgeType.ACCEPT)
    consumer.acknowledge(records[8], "Release")
    assert consumer.commit() == {tp: None}
    assert [(sorted(map(str, offsets)), error) for offsets, error in heard] == [([str(tp)], None)]
    assert [offset for each in heard[0][0][tp] for offset in each] == list(range(10))
    again = poll_some(consumer)
    assert [(record.offset, record.delivery_count) for record in again] == [(4, 2), (8, 2)]
    consumer.acknowledge(again)
    heard.clear()
    wait_for("the callback", lambda: not consumer.poll(1.0) and heard)
    assert heard == [({tp: [range(4, 5), range(8, 9)]}, None)], "the poll sends the acknowledgements"
    with pytest.raises(StateError, match="acknowledged already"):
        consumer.acknowledge(again[0])


def test_an_explicit_poll_raises_while_records_are_unacknowledged(
    make_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    consumer = explicit(make_share, servers, share_group(servers), topic)
    records = poll_some(consumer)
    consumer.acknowledge(records[:7])
    with pytest.raises(StateError, match="offset 7 of"):
        consumer.poll(0)
    consumer.acknowledge(records[7:])
    poll_nothing(consumer, 0.2)


def test_acknowledge_in_implicit_mode_raises(make_share: MakeShareConsumer, servers: str, topic: str) -> None:
    consumer = make_share(bootstrap_servers=servers, group_id=share_group(servers), topics=[topic])
    records = poll_some(consumer)
    with pytest.raises(StateError, match="explicit"):
        consumer.acknowledge(records)


def test_twenty_thousand_acknowledgements_are_sent_as_few_ranges(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = AcquiredRecords.send

    def counted(acquired: AcquiredRecords) -> list[dict[str, Any]]:
        batches = send(acquired)
        sent.append(len(batches))
        return batches

    monkeypatch.setattr(AcquiredRecords, "send", counted)
    topic = admin.create("many")
    put(servers, topic, numbered(20_000))
    consumer = explicit(make_sync_share, servers, share_group(servers), topic, max_poll_records=2000)
    left = 20_000
    while left:
        records = poll_some(consumer)
        left -= len(records)
        consumer.acknowledge(records)
    assert set(consumer.commit().values()) == {None}
    assert consumer.metrics()["acknowledged"] == 20_000
    assert set(sent) == {1}, "one range per request"
    assert len(sent) < 50


def test_an_expired_lock_gives_records_to_others_and_rejects_late_acknowledgements(
    make_sync_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    group = share_group(servers, share_record_lock_duration_ms=round(LOCK * 1000))
    slow = explicit(make_sync_share, servers, group, topic)
    began = time.monotonic()
    records = poll_some(slow)
    assert slow.acquisition_lock_timeout() == LOCK
    configure_group(servers, group, share_record_lock_duration_ms=60_000)  # for the next consumer
    quick = explicit(make_sync_share, servers, group, topic)
    again = poll_some(quick)
    assert time.monotonic() - began > LOCK
    assert {record.delivery_count for record in again} == {2}
    slow.acknowledge(records)
    (error,) = slow.commit().values()
    assert isinstance(error, KafkaError)
    assert error.name == "INVALID_RECORD_STATE"
    quick.acknowledge(again)
    assert list(quick.commit().values()) == [None]
    assert slow.metrics()["refused"] == 10


@pytest.mark.parametrize("polls", [False, True])
def test_commit_returns_rejections_that_came_before_it(
    make_share: MakeShareConsumer, make_sync_share: MakeShareConsumer, servers: str, topic: str, polls: bool
) -> None:
    """Acknowledgements are sent 50 ms after the call, and a poll passes their results to the callback."""
    group, tp = share_group(servers, share_record_lock_duration_ms=round(LOCK * 1000)), TopicPartition(topic, 0)
    slow = explicit(make_share, servers, group, topic)
    heard: Heard = []
    slow.set_acknowledgement_commit_callback(lambda offsets, error: heard.append((offsets, error)))
    records = poll_some(slow)
    configure_group(servers, group, share_record_lock_duration_ms=60_000)  # for the next consumer
    assert len(poll_some(explicit(make_sync_share, servers, group, topic))) == 10
    slow.acknowledge(records)
    wait_for("the answer", lambda: slow.metrics()["acknowledgements"])
    if polls:
        wait_for("the callback", lambda: not slow.poll(0.1) and heard)
    results = slow.commit()
    assert {tp: error.name for tp, error in results.items()} == {tp: "INVALID_RECORD_STATE"}
    assert heard == [({tp: [range(10)]}, results[tp])]
    assert slow.commit() == {}


def test_an_expired_lock_does_not_fail_the_acknowledgements_of_other_records(
    make_sync_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    """The broker rejects all acknowledgements of a partition in one request, so valid ones are sent separately."""

    def scenario(scale: float) -> None:
        lock = scale * LOCK
        group = share_group(servers, share_record_lock_duration_ms=round(lock * 1000))
        consumer = explicit(
            make_sync_share, servers, group, topic, max_poll_records=5, share_acquire_mode="record_limit"
        )
        records = poll_some(consumer)
        assert offsets(records) == [0, 1, 2, 3, 4]
        consumer.acknowledge(records, "renew")
        time.sleep(0.6 * lock)  # two of these are longer than a lock without renewal
        fresh = poll_some(consumer)
        assert offsets(fresh) == [5, 6, 7, 8, 9]
        time.sleep(0.6 * lock)  # two of these are longer than a lock without renewal
        consumer.acknowledge(records)
        consumer.acknowledge(fresh)
        consumer.commit()
        numbers = consumer.metrics()
        assert (numbers["acknowledged"], numbers["refused"]) == (10, 5), (
            "five renewed records, and five of the second poll"
        )

    patiently(scenario)


def test_records_stay_locked_while_their_locks_are_renewed(
    make_sync_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    def scenario(scale: float) -> None:
        lock = scale * LOCK
        group = share_group(servers, share_record_lock_duration_ms=round(lock * 1000))
        consumer = explicit(make_sync_share, servers, group, topic)
        records = poll_some(consumer)
        other = explicit(make_sync_share, servers, group, topic)
        deadline = time.monotonic() + 1.8 * lock
        while time.monotonic() < deadline:
            consumer.acknowledge(records, AcknowledgeType.RENEW)
            assert list(consumer.commit().values()) == [None]
            poll_nothing(other, lock / 3)
        consumer.acknowledge(records[:9])
        consumer.acknowledge(records[9], "release")
        assert list(consumer.commit().values()) == [None]
        assert [(record.offset, record.delivery_count) for record in poll_some(other)] == [(9, 2)]

    patiently(scenario)


def test_renew_auto_keeps_locks_up_to_max_poll_interval(
    make_sync_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    """Work may take longer than a lock, with polls in between, but not longer than max.poll.interval.ms."""

    def scenario(scale: float) -> None:
        lock, interval = scale * LOCK, scale * 3.5
        group = share_group(servers, share_record_lock_duration_ms=round(lock * 1000))
        limits = {
            "max_poll_interval_ms": round(interval * 1000),
            "renew": "auto",
            "max_poll_records": 5,
            "share_acquire_mode": "record_limit",
        }
        consumer = explicit(make_sync_share, servers, group, topic, **limits)
        other = explicit(make_sync_share, servers, group, topic)
        first = poll_some(consumer)
        second = poll_some(consumer)
        assert offsets(first) + offsets(second) == list(range(10))
        began = time.monotonic()
        poll_nothing(other, 1.6 * lock)
        consumer.acknowledge(first)
        assert list(consumer.commit().values()) == [None]
        stolen: list[int] = []
        while len(stolen) < 5:
            records = poll_some(other)
            other.acknowledge(records)
            stolen += offsets(records)
        assert stolen == offsets(second), "the consumer did not poll or acknowledge for max.poll.interval.ms"
        assert interval - scale / 2 < time.monotonic() - began < interval + 3 * lock

    patiently(scenario)


def test_renew_auto_keeps_locks_in_implicit_mode(make_sync_share: MakeShareConsumer, servers: str, topic: str) -> None:
    def scenario(scale: float) -> None:
        lock = scale * LOCK
        group = share_group(servers, share_record_lock_duration_ms=round(lock * 1000))
        settings = {"bootstrap_servers": servers, "group_id": group, "topics": [topic]}
        consumer = make_sync_share(**settings, renew="auto")
        other = make_sync_share(**settings)
        assert len(poll_some(consumer)) == 10
        poll_nothing(other, 1.8 * lock)
        assert list(consumer.commit().values()) == [None]
        assert consumer.metrics()["refused"] == 0

    patiently(scenario)


def test_buffered_share_records_keep_their_locks(make_sync_share: MakeShareConsumer, servers: str, topic: str) -> None:
    def scenario(scale: float) -> None:
        lock = scale * LOCK
        group = share_group(servers, share_record_lock_duration_ms=round(lock * 1000))
        settings = {"bootstrap_servers": servers, "group_id": group, "topics": [topic]}
        consumer = make_sync_share(**settings, max_poll_records=5)
        other = make_sync_share(**settings)
        first = poll_some(consumer)
        assert consumer.metrics()["buffered_records"] == 5
        assert list(consumer.commit().values()) == [None]
        poll_nothing(other, 1.6 * lock)
        rest = poll_some(consumer)
        assert offsets(first) + offsets(rest) == list(range(10))
        assert {record.delivery_count for record in rest} == {1}
        assert list(consumer.commit().values()) == [None]

    patiently(scenario)


def test_acknowledgements_are_sent_soon_although_nothing_is_fetched(
    make_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    """The next poll returns buffered records without a fetch, and their processing may take longer than a lock."""
    consumer = make_share(bootstrap_servers=servers, group_id=share_group(servers), topics=[topic], max_poll_records=5)
    poll_some(consumer)
    time.sleep(0.6)  # slow enough that nothing is prefetched
    assert offsets(poll_some(consumer)) == [5, 6, 7, 8, 9]
    wait_for("the acknowledgement", lambda: consumer.metrics()["acknowledgements"], timeout=5)


@pytest.mark.kafka("4.3")  # share.delivery.count.limit
def test_a_released_record_is_dropped_at_the_delivery_count_limit(
    make_sync_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    """The broker gives up a record that is released too often."""
    group = share_group(servers, share_delivery_count_limit=3)
    consumer = explicit(make_sync_share, servers, group, topic)
    seen: dict[int, list[int]] = {}
    deadline = time.monotonic() + 60
    while sum(map(len, seen.values())) < 9 + 3:
        assert time.monotonic() < deadline, seen
        for record in consumer.poll(0.2):
            assert record.delivery_count is not None
            seen.setdefault(record.offset, []).append(record.delivery_count)
            consumer.acknowledge(record, "release" if record.offset == 6 else "accept")
    assert seen.pop(6) == [1, 2, 3]
    assert list(seen.values()) == [[1]] * 9
    poll_nothing(consumer, 0.5)


def test_close_sends_acknowledgements_and_releases_the_other_records(
    make_share: MakeShareConsumer, servers: str, topic: str
) -> None:
    group = share_group(servers)
    consumer = explicit(make_share, servers, group, topic)
    heard: Heard = []
    consumer.set_acknowledgement_commit_callback(lambda offsets, error: heard.append((offsets, error)))
    records = poll_some(consumer)
    consumer.acknowledge(records[:6])
    consumer.close()
    assert heard == [({TopicPartition(topic, 0): [range(6)]}, None)]
    other = explicit(make_share, servers, group, topic)
    again = poll_some(other)
    assert [(record.offset, record.delivery_count) for record in again] == [(6, 2), (7, 2), (8, 2), (9, 2)]
    other.acknowledge(again)
