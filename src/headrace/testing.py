"""Real Kafka brokers for tests: `kafka_broker`, `kafka_cluster`, `kafka_topic`; and a registry: `schema_registry`.

    def test_orders(kafka_broker, kafka_topic):
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
        ...

pytest loads this module in every test run wherever headrace is installed. It therefore imports only pytest; the first
test that uses a broker imports the rest. With pytest-xdist, each worker has its own broker.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .local import LocalBroker, LocalRegistry


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    """A single broker, shared by all tests of the session. Use a separate topic in each test: see `kafka_topic`."""
    from .local import LocalBroker

    with LocalBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[LocalRegistry]:
    """A schema registry, shared by all tests of the session. Use separate subjects in each test: those of
    `kafka_topic`."""
    from .local import LocalRegistry

    with LocalRegistry() as registry:
        yield registry


@pytest.fixture
def kafka_cluster() -> Iterator[Callable[..., LocalBroker]]:
    """A function that starts a cluster for one test: `kafka_cluster(3)`. It takes the arguments of
    `headrace.LocalBroker`. The clusters are stopped when the test ends."""
    from .local import LocalBroker

    with ExitStack() as stack:

        def start(brokers: int = 3, **settings: Any) -> LocalBroker:
            return stack.enter_context(LocalBroker(brokers, **settings))

        yield start


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest) -> str:
    """A unique topic name, derived from the test's name. The topic itself is not created."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name).strip("-")
    return f"{readable[:80]}-{uuid.uuid4().hex[:12]}"
