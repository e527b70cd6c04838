"""A broker whose share groups are quick, for the tests that name this file as a plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import LocalBroker

from .admin import Admin
from .consumers import closing_all
from .share import SHARE_KINDS, AnyShareConsumer, MakeShareConsumer

# Locks last 15 seconds at least, and members hear of changes every five, if Kafka is left to itself.
QUICK_SHARES = {
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 100,
    "group.share.min.session.timeout.ms": 1000,
    "group.share.assignment.interval.ms": 0,
    "group.share.min.record.lock.duration.ms": 1000,
    "log.cleaner.backoff.ms": 200,
}


@pytest.fixture(scope="session")
def share_broker() -> Iterator[LocalBroker]:
    with LocalBroker(properties=QUICK_SHARES, start_timeout=100.0) as broker:
        yield broker


@pytest.fixture(scope="session")
def share_servers(share_broker: LocalBroker) -> str:
    return share_broker.bootstrap_servers


@pytest.fixture(scope="session")
def share_admin(share_servers: str) -> Iterator[Admin]:
    admin = Admin(share_servers)
    yield admin
    admin.close()


@pytest.fixture(params=list(SHARE_KINDS))
def make_share(request: pytest.FixtureRequest) -> Iterator[MakeShareConsumer]:
    """Makes share consumers of one kind, the test running with each, and closes them."""
    yield from closing_all(_subscribing(SHARE_KINDS[request.param]))


@pytest.fixture
def make_sync_share() -> Iterator[MakeShareConsumer]:
    yield from closing_all(_subscribing(SHARE_KINDS["sync"]))


def _subscribing(kind: MakeShareConsumer) -> MakeShareConsumer:
    def make(config: Any = None, /, **settings: Any) -> AnyShareConsumer:
        topics = settings.pop("topics", None)
        consumer = kind(config, **settings)
        if topics is not None:
            consumer.subscribe(topics)
        return consumer

    return make
