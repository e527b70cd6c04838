"""Real Kafka brokers for tests: `kafka_broker`, `kafka_cluster`, `kafka_topic`.

    def test_orders(kafka_broker, kafka_topic):
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
        ...

pytest loads this module in every run of everybody who has headrace installed, so it imports nothing but pytest;
the rest is imported by the first test that asks for a broker. Under pytest-xdist each worker has its own.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.local import LocalBroker


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    """A single broker, shared by all tests of the session. Use topics of your own: see `kafka_topic`."""
    from headrace.local import LocalBroker

    with LocalBroker() as broker:
        yield broker


@pytest.fixture
def kafka_cluster() -> Iterator[Callable[..., LocalBroker]]:
    """Start clusters for one test: `kafka_cluster(3)`, with the arguments of `headrace.LocalBroker`.

    They are stopped when the test ends.
    """
    from headrace.local import LocalBroker

    with ExitStack() as stack:

        def start(brokers: int = 3, **settings: Any) -> LocalBroker:
            return stack.enter_context(LocalBroker(brokers, **settings))

        yield start


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses, made from the test's name. The topic itself is not created."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name).strip("-")
    return f"{readable[:80]}-{uuid.uuid4().hex[:12]}"
