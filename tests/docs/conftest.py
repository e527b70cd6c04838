"""The broker that the pages talk of."""

from __future__ import annotations

import pytest

from support.admin import Admin
from support.produce import Outgoing, write

_TOPICS = ("orders", "refunds", "readings", "mails", "orders-failed", "orders.failed")


@pytest.fixture(scope="session")
def documented(share_servers: str, share_admin: Admin) -> str:
    """A broker with their topics."""
    for topic in _TOPICS:
        share_admin.create(topic, 3, name=topic)
        write(share_servers, topic, [Outgoing(b'{"amount": %d}' % n, b"key-%d" % (n % 7), n % 3) for n in range(60)])
    return share_servers
