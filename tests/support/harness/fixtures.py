"""Fixtures for consumers and producers of both kinds, which are closed when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.harness.consumers import KINDS, MakeConsumer, closing_all
from support.harness.producers import PRODUCER_KINDS, MakeProducer, closing_producers
from support.harness.share_consumers import SHARE_KINDS, AnyShareConsumer, MakeShareConsumer


@pytest.fixture(params=list(KINDS))
def make(request: pytest.FixtureRequest) -> Iterator[MakeConsumer]:
    """Creates consumers and closes them. The test runs with each kind."""
    yield from closing_all(KINDS[request.param])


@pytest.fixture
def make_sync() -> Iterator[MakeConsumer]:
    yield from closing_all(KINDS["sync"])


@pytest.fixture
def make_async() -> Iterator[MakeConsumer]:
    yield from closing_all(KINDS["async"])


@pytest.fixture(params=list(PRODUCER_KINDS))
def make_producer(request: pytest.FixtureRequest) -> Iterator[MakeProducer]:
    """Creates producers and closes them. The test runs with each kind."""
    yield from closing_producers(PRODUCER_KINDS[request.param])


@pytest.fixture
def make_sync_producer() -> Iterator[MakeProducer]:
    yield from closing_producers(PRODUCER_KINDS["sync"])


@pytest.fixture(params=list(SHARE_KINDS))
def make_share(request: pytest.FixtureRequest) -> Iterator[MakeShareConsumer]:
    """Creates share consumers and closes them. The test runs with each kind."""
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
