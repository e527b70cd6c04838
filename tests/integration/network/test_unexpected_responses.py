"""Responses that nobody requested close the connection, and nothing else: no call fails, and no membership ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from chaos.proxy import Proxy
from headrace import Consumer, Producer, ShareConsumer
from support.brokers.admin import Admin, unique
from support.brokers.faulty_proxy import redirecting
from support.harness.share_consumers import share_group
from support.harness.waiting import wait_for

FLOODS = 3
RECORDS = 20


@pytest.fixture
def proxy(servers: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with Proxy(servers) as proxy, redirecting({int(servers.rsplit(":", 1)[1]): proxy.port}, monkeypatch):
        yield proxy


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_keeps_its_partitions_and_a_producer_its_order(
    proxy: Proxy, servers: str, admin: Admin, protocol: str, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    topic, group = admin.create("unrequested"), unique("g")
    expected = [b"%d-%d" % (flood, number) for flood in range(FLOODS) for number in range(RECORDS)]
    found: list[bytes | None] = []
    settings: dict[str, Any] = {"bootstrap_servers": servers}
    with (
        Producer(**settings) as producer,
        Consumer(
            **settings,
            group_id=group,
            group_protocol=protocol,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=50,
        ) as consumer,
    ):
        consumer.subscribe([topic])
        wait_for("an assignment", lambda: consumer.poll(0.1) or consumer.assignment())
        member = consumer.group_metadata().member_id
        for flood in range(FLOODS):
            proxy.flood()
            deliveries = [producer.send(topic, b"%d-%d" % (flood, number)) for number in range(RECORDS)]
            deadline = time.monotonic() + 60
            while len(found) < RECORDS * (flood + 1) and time.monotonic() < deadline:
                found += [record.value for record in consumer.poll(0.2)]
            assert [delivery.result(60) for delivery in deliveries]
            consumer.commit()
        assert consumer.group_metadata().member_id == member
    assert found == expected
    assert any("answered request 2147483647" in record.getMessage() for record in caplog.records)


def test_a_share_consumer_gets_everything(proxy: Proxy, servers: str, admin: Admin) -> None:
    topic, found = admin.create("unrequested"), set()
    with (
        Producer(bootstrap_servers=servers) as producer,
        ShareConsumer(bootstrap_servers=servers, group_id=share_group(servers)) as consumer,
    ):
        consumer.subscribe([topic])
        for flood in range(FLOODS):
            proxy.flood()
            for number in range(RECORDS):
                producer.send(topic, b"%d-%d" % (flood, number))
            producer.flush(timeout=60)
            deadline = time.monotonic() + 60
            while len(found) < RECORDS * (flood + 1) and time.monotonic() < deadline:
                found |= {record.value for record in consumer.poll(0.2)}
    assert len(found) == FLOODS * RECORDS
