"""Metrics of OpenTelemetry: messages and durations by the semantic conventions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace import Consumer, Producer
from headrace.errors import OffsetResetError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.harness.consumers import KINDS, poll_until
from support.harness.otel import Observed, observing
from support.harness.producers import PRODUCER_KINDS
from support.harness.run_kinds import Kind, until
from support.harness.share_consumers import SHARE_KINDS, poll_some, share_group


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("metered", 2), 2, 10)


def common(servers: str, topic: str | None = None, group: str | None = None) -> dict[str, Any]:
    host, port = servers.rsplit(":", 1)
    found: dict[str, Any] = {"messaging.system": "kafka", "server.address": host, "server.port": int(port)}
    found |= {} if group is None else {"messaging.consumer.group.name": group}
    return found if topic is None else found | {"messaging.destination.name": topic}


def operation(name: str, kind: str) -> dict[str, str]:
    return {"messaging.operation.name": name, "messaging.operation.type": kind}


def durations(observed: Observed, name: str) -> list[Any]:
    found = observed.points("messaging.client.operation.duration")
    return [point for point in found if point.attributes["messaging.operation.name"] == name]


def test_the_instruments_are_those_of_the_conventions(servers: str, topic: str) -> None:
    with observing(traces=False) as observed:
        with Producer(bootstrap_servers=servers) as producer:
            producer.send(topic, b"1").result()
        with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            poll_until(consumer, 1)
        for name, unit in (
            ("messaging.client.sent.messages", "{message}"),
            ("messaging.client.consumed.messages", "{message}"),
            ("messaging.client.operation.duration", "s"),
        ):
            metric = observed.metric(name)
            assert metric.unit == unit
            if unit == "{message}":
                assert metric.data.is_monotonic
            else:
                assert metric.data.data_points[0].explicit_bounds[:2] == (0.005, 0.01)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_consumer_counts_messages_by_partition_and_times_polls_and_commits(
    kind: str, servers: str, topic: str
) -> None:
    group = unique("g")
    with observing() as observed:
        consumer = KINDS[kind](bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest")
        consumer.subscribe([topic])
        total = len(poll_until(consumer, 20))
        consumer.commit()
        consumer.close()
        poll = operation("poll", "receive")
        points = observed.points("messaging.client.consumed.messages")
        found = {each.attributes["messaging.destination.partition.id"]: each for each in points}
        assert sum(each.value for each in found.values()) == total, "also after the consumer was closed"
        for number, each in found.items():
            expected = common(servers, topic, group) | poll | {"messaging.destination.partition.id": number}
            assert dict(each.attributes) == expected
        (polls,) = durations(observed, "poll")
        assert dict(polls.attributes) == common(servers, topic, group) | poll
        assert 1 <= polls.count <= 20, "polls that returned nothing, or did not wait, do not count"
        commits = [dict(each.attributes) for each in durations(observed, "commit")]
        assert commits == [common(servers, None, group) | operation("commit", "settle")]


def test_a_poll_that_raises_is_timed_with_its_error(servers: str, topic: str) -> None:
    with observing() as observed:
        with Consumer(bootstrap_servers=servers, auto_offset_reset="none") as consumer:
            consumer.assign([(topic, 0)])
            with pytest.raises(OffsetResetError):
                consumer.poll(30.0)
        (point,) = durations(observed, "poll")
        assert point.attributes["error.type"] == "headrace.errors.OffsetResetError"


@pytest.mark.parametrize("kind", list(SHARE_KINDS))
def test_a_share_consumer_counts_messages(kind: str, servers: str, topic: str) -> None:
    group = share_group(servers)
    with observing() as observed:
        consumer = SHARE_KINDS[kind](bootstrap_servers=servers, group_id=group)
        consumer.subscribe([topic])
        count = len(poll_some(consumer))
        consumer.close()
        points = observed.points("messaging.client.consumed.messages")
        assert sum(each.value for each in points) == count
        assert {each.attributes["messaging.consumer.group.name"] for each in points} == {group}
        assert len(durations(observed, "poll")) == 1


@pytest.mark.parametrize("kind", list(PRODUCER_KINDS))
@pytest.mark.parametrize("traces", [True, False])
@pytest.mark.parametrize("linger", [0, 5])
def test_a_producer_counts_messages_and_times_batches(
    kind: str, traces: bool, linger: int, servers: str, admin: Admin
) -> None:
    topic = admin.create("sent", 1)
    with observing(traces=traces) as observed:
        producer = PRODUCER_KINDS[kind](bootstrap_servers=servers, linger_ms=linger)
        for _ in range(10):
            producer.send(topic, b"1").result()
        producer.send_arrow(topic, pa.table({"value": [b"%d" % n for n in range(100)]})).result()
        producer.close()
        (point,) = observed.points("messaging.client.sent.messages")
        where = {"messaging.destination.partition.id": "0"}
        assert dict(point.attributes) == common(servers, topic) | operation("send", "send") | where
        assert point.value == 110
        (timed,) = durations(observed, "send")
        assert 2 <= timed.count <= 11


def test_handlers_are_timed_with_their_errors(servers: str, topic: str) -> None:
    kind, group = Kind("sync"), unique("g")
    with observing(traces=False) as observed:
        consumer = kind.member(servers, group, topic)

        def handle(record: Any) -> None:
            if record.offset == 3:
                raise ValueError("nonsense")

        buried: list[Any] = []
        consumer.run(
            handle,
            retries=0,
            dead_letter=lambda record, error: buried.append(record),
            **until(consumer, lambda it: it.handled + it.dead_lettered >= 20),
        )
        kind.close()
        points = observed.points("messaging.process.duration")
        partition = "messaging.destination.partition.id"
        by_error = {(it.attributes.get("error.type"), it.attributes[partition]): it.count for it in points}
        assert {key[0] for key in by_error} == {None, "ValueError"}
        assert by_error["ValueError", "0"] == by_error["ValueError", "1"] == 1
        assert sum(by_error.values()) >= 20


def test_lags_and_buffered_bytes_are_exported(servers: str, topic: str) -> None:
    with (
        observing() as observed,
        Consumer(
            bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest", max_poll_records=1
        ) as consumer,
    ):
        consumer.subscribe([topic])
        poll_until(consumer, 1)
        name = consumer._parts.name
        lags = [each for each in observed.points("headrace.consumer.lag") if each.attributes["headrace.client"] == name]
        assert sum(each.value for each in lags) >= 18
        assert {each.attributes["messaging.destination.name"] for each in lags} == {topic}
        (buffered,) = [
            each for each in observed.points("headrace.consumer.buffered") if each.attributes["headrace.client"] == name
        ]
        assert buffered.value > 0
