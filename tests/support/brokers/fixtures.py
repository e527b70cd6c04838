"""The brokers that tests share. Each test process has one broker and, for some tests, one cluster of three.

Tests use unique topics and groups (`Admin.create`, `unique`), so that one broker serves all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headrace import LocalBroker
from headrace.local.kafka_home import DEFAULT_VERSION
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
    "log.retention.ms": -1,  # of topics without one: records with old timestamps stay
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
KAFKA_VERSION = os.environ.get("KAFKA_VERSION", DEFAULT_VERSION)
"""`make compatibility` sets others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`@pytest.mark.kafka("4.2")` skips a test with older brokers, as does the group protocol of KIP-848."""
    for item in items:
        marker = item.get_closest_marker("kafka")
        needed = marker.args[0] if marker is not None else _needed_by_parameters(item)
        if _version(KAFKA_VERSION) < _version(needed):
            item.add_marker(pytest.mark.skip(reason=f"needs Kafka {needed}; this is {KAFKA_VERSION}"))


def _needed_by_parameters(item: pytest.Item) -> str:
    parameters = getattr(item, "callspec", None)
    values = () if parameters is None else parameters.params.values()
    uses_kip_848 = any(_is_kip_848(each) for each in values)
    return "4.0" if uses_kip_848 else "0.0"


def _is_kip_848(value: object) -> bool:
    """Parameters may be anything, data frames too, which cannot be compared with a name."""
    if isinstance(value, dict):
        value = value.get("group_protocol")
    return isinstance(value, str) and value == "consumer"


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    properties = _EAGER | _EAGER_SHARE_GROUPS
    with LocalBroker(properties=properties, version=KAFKA_VERSION, start_timeout=_STARTS_WITHIN) as broker:
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
    racks = ["a", "b", "c"]
    with LocalBroker(3, racks=racks, properties=eager, version=KAFKA_VERSION, start_timeout=_STARTS_WITHIN) as cluster:
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
