"""The brokers that tests share. Each test process has one broker and, for some tests, one cluster of three.

Tests use unique topics and groups (`Admin.create`, `unique`), so that one broker serves all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import LocalBroker
from support.brokers.admin import Admin
from support.harness.groups import SESSION

# Tests wait for Kafka's housekeeping, which normally runs every few minutes, so it runs more often here. Rebalances
# start at once, and the minimums of timeouts are low. Sessions are long, since a busy machine delays members; a group
# may set a shorter one.
_EAGER = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": round(SESSION * 1000),
    "log.cleaner.backoff.ms": 200,
    "log.initial.task.delay.ms": 500,
    "log.retention.check.interval.ms": 500,
}
# The same for share groups. Their locks last at least 15 seconds by default.
_EAGER_SHARE_GROUPS = {
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 100,
    "group.share.min.session.timeout.ms": 1000,
    "group.share.assignment.interval.ms": 0,
    "group.share.min.record.lock.duration.ms": 1000,
}
_STARTS_WITHIN = 100.0


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    with LocalBroker(properties=_EAGER | _EAGER_SHARE_GROUPS, start_timeout=_STARTS_WITHIN) as broker:
        yield broker


@pytest.fixture(scope="session")
def servers(kafka_broker: LocalBroker) -> str:
    return kafka_broker.bootstrap_servers


@pytest.fixture(scope="session")
def admin(servers: str) -> Iterator[Admin]:
    admin = Admin(servers)
    yield admin
    admin.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalBroker]:
    """Three brokers in the racks a, b and c. Tests that stop a broker restart it."""
    eager = _EAGER | {"auto.leader.rebalance.enable": False, "replica.fetch.wait.max.ms": 50}
    eager |= {"group.share.min.session.timeout.ms": 1000}
    with LocalBroker(3, racks=["a", "b", "c"], properties=eager, start_timeout=_STARTS_WITHIN) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_admin(cluster: LocalBroker) -> Iterator[Admin]:
    admin = Admin(cluster.bootstrap_servers)
    yield admin
    admin.close()


@pytest.fixture
def whole_cluster(cluster: LocalBroker) -> Iterator[LocalBroker]:
    """The cluster, for tests that stop brokers. All brokers are restarted afterwards."""
    yield cluster
    for broker in cluster.live_brokers:
        cluster.resume(broker)
    down = set(cluster.brokers) - set(cluster.live_brokers)
    if down:
        cluster.restart(*sorted(down))
