"""What the tests share: one broker for the session, one cluster for those that need several."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from headrace import LocalBroker
from support.admin import Admin
from support.consumers import KINDS, MakeConsumer, closing_all
from support.groups import SESSION

pytest_plugins = ("support.secure", "support.renewals")

# A runner that was started in the background ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Whether a property holds is not a matter of how busy the machine is, nor of luck: the same examples each time. The
# long forms try others.
settings.register_profile(
    "headrace",
    deadline=None,
    derandomize=not os.environ.get("SOAK"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headrace")

# Kafka does its housekeeping every few minutes; the tests wait for it. Nor do they want to wait for newcomers to a
# group, nor for the timeouts that only larger settings of Kafka's allow. Sessions are long, for members that a busy
# machine holds up; a group may ask for a shorter one.
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
_STARTS_WITHIN = 100.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("SOAK"):
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: make soak, or SOAK=1"))


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    with LocalBroker(properties=_EAGER, start_timeout=_STARTS_WITHIN) as broker:
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
    """Three brokers in the racks a, b and c. Tests that stop one of them start it again."""
    eager = _EAGER | {"auto.leader.rebalance.enable": False, "replica.fetch.wait.max.ms": 50}
    with LocalBroker(3, racks=["a", "b", "c"], properties=eager, start_timeout=_STARTS_WITHIN) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_admin(cluster: LocalBroker) -> Iterator[Admin]:
    admin = Admin(cluster.bootstrap_servers)
    yield admin
    admin.close()


@pytest.fixture
def whole_cluster(cluster: LocalBroker) -> Iterator[LocalBroker]:
    """The cluster, for a test that stops brokers: all run again when it ends, however it ends."""
    yield cluster
    for broker in cluster.live_brokers:
        cluster.resume(broker)
    down = set(cluster.brokers) - set(cluster.live_brokers)
    if down:
        cluster.restart(*sorted(down))


@pytest.fixture(params=list(KINDS))
def make(request: pytest.FixtureRequest) -> Iterator[MakeConsumer]:
    """Makes consumers of one kind, the test running with each, and closes them."""
    yield from closing_all(KINDS[request.param])


@pytest.fixture
def make_sync() -> Iterator[MakeConsumer]:
    yield from closing_all(KINDS["sync"])


@pytest.fixture
def make_async() -> Iterator[MakeConsumer]:
    yield from closing_all(KINDS["async"])
