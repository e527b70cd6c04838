"""A broker whose groups change hands quickly, for the tests that name this file as a plugin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import LocalBroker

from .admin import Admin

# With KIP-848 members hear of what they have to do in the answer to a heartbeat, and the broker says how often they
# send one. Its own choice is five seconds. Session timeouts stay long, for members that a busy machine holds up; a
# group may ask for a shorter one.
QUICK_GROUPS = {
    "group.min.session.timeout.ms": 500,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
}


@pytest.fixture(scope="session")
def group_broker() -> Iterator[LocalBroker]:
    with LocalBroker(properties=QUICK_GROUPS, start_timeout=100.0) as broker:
        yield broker


@pytest.fixture(scope="session")
def group_admin(group_broker: LocalBroker) -> Iterator[Admin]:
    admin = Admin(group_broker.bootstrap_servers)
    yield admin
    admin.close()
