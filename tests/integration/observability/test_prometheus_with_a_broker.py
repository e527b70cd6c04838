"""The figures that a scrape of prometheus_client has for clients at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace import Producer, ShareConsumer, TopicPartition
from headrace.prometheus import register
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until
from support.harness.groups import WAYS, member
from support.harness.share_consumers import share_group
from support.harness.two_lanes import behind, laned
from support.harness.waiting import wait_for


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("with-dashes", 2), 2, 10)


def scraper(*clients: Any) -> Callable[[], dict[tuple[str, ...], float]]:
    """A function that returns the samples by name and the values of the labels that are not those of the client."""
    registry = CollectorRegistry()
    register(*clients, registry=registry)

    def scrape() -> dict[tuple[str, ...], float]:
        own = ("client", "client_id", "group")
        return {
            (sample.name, *(value for name, value in sorted(sample.labels.items()) if name not in own)): sample.value
            for family in text_string_to_metric_families(generate_latest(registry).decode())
            for sample in family.samples
        }

    return scrape


def test_a_consumer_s_lag_position_and_membership_are_collected(make: MakeConsumer, servers: str, topic: str) -> None:
    consumer = member(make, servers, unique("g"), [topic], max_poll_records=1, **WAYS["eager"])
    scrape = scraper(getattr(consumer, "_consumer", consumer))
    poll_until(consumer, 4)
    wait_for("a heartbeat", lambda: scrape()["headrace_consumer_heartbeats_total",])
    found = scrape()
    lags = [found["headrace_consumer_lag_records", number, topic] for number in "01"]
    positions = [found["headrace_consumer_position", number, topic] for number in "01"]
    assert (sum(lags), sum(positions)) == (16, 4)
    assert found["headrace_consumer_records_total",] == 4
    assert found["headrace_consumer_rebalances_total",] == 1
    assert found["headrace_consumer_lost_partitions_total",] == 0
    assert found["headrace_consumer_heartbeat_failures_total",] == 0
    assert found["headrace_consumer_heartbeat_age_seconds",] < 60
    assert found["headrace_consumer_assigned_partitions",] == 2
    assert found["headrace_consumer_member", "stable"] == 1
    assert found["headrace_consumer_buffered_records",] == 16
    assert found["headrace_consumer_buffered_bytes",] > 0
    assert found["headrace_consumer_connections",] >= 1
    assert found["headrace_consumer_fetched_bytes_total",] > 0


def test_a_backlog_lane_s_lag_and_ranges_are_collected(
    make_sync: MakeConsumer, servers: str, tp: TopicPartition
) -> None:
    group = behind(servers, tp, 70, 120)
    consumer: AnyConsumer = laned(make_sync, servers, group, tp.topic, max_poll_records=20)
    scrape = scraper(consumer)
    assert consumer.position(tp) == 120
    found = scrape()
    assert found["headrace_consumer_backlog_lag_records", "0", tp.topic] == 50
    assert found["headrace_consumer_backlog_ranges", "0", tp.topic] == 1
    assert found["headrace_consumer_backlog_lost_offsets_total",] == 0
    live = ("headrace_consumer_lag_records", "0", tp.topic)
    assert wait_for("the end of the log", lambda: live in scrape())
    assert scrape()[live] == 0
    read = len(poll_until(consumer, 20))
    assert scrape()["headrace_consumer_backlog_lag_records", "0", tp.topic] == 50 - read


def test_a_share_consumer_s_locks_are_collected(servers: str, topic: str) -> None:
    group = share_group(servers)
    with ShareConsumer(bootstrap_servers=servers, group_id=group, max_poll_records=5) as consumer:
        scrape = scraper(consumer)
        consumer.subscribe([topic])
        wait_for("records", lambda: len(consumer.poll(0.05)))
        found = scrape()
        assert found["headrace_share_consumer_locked_records", "in_hand"] == 5
        assert found["headrace_share_consumer_lock_timeout_seconds",] > 0
        buffered = found["headrace_share_consumer_locked_records", "buffered"]
        assert (found["headrace_share_consumer_buffered_bytes",] > 0) == (buffered > 0)
        consumer.commit()
        found = scrape()
        assert found["headrace_share_consumer_locked_records", "in_hand"] == 0
        assert found["headrace_share_consumer_acknowledged_records_total",] == 5


def test_a_producer_s_deliveries_are_collected(servers: str, topic: str) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        scrape = scraper(producer)
        producer.send_all(topic, [b"1", b"2", b"3"]).result()
        found = scrape()
        assert found["headrace_producer_delivered_records_total",] == 3
        assert found["headrace_producer_failed_records_total",] == 0
        assert found["headrace_producer_requests_total",] >= 1
        assert found["headrace_producer_buffered_bytes",] == 0
        assert found["headrace_producer_buffer_limit_bytes",] == 32 * 2**20
