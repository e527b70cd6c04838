"""The broker that the documentation uses."""

from __future__ import annotations

import pytest

from support.brokers.admin import Admin
from support.brokers.produce import Outgoing, write

_TOPICS = ("orders", "refunds", "readings", "mails", "payments", "orders-failed", "orders.failed")


@pytest.fixture(scope="session")
def documented(servers: str, admin: Admin) -> str:
    """The address of a broker with the documented topics."""
    for topic in _TOPICS:
        admin.create(topic, 3, name=topic)
        write(servers, topic, [Outgoing(b'{"amount": %d}' % n, b"key-%d" % (n % 7), n % 3) for n in range(60)])
    return servers
