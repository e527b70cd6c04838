"""Fixtures of tests with a broker."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import TopicPartition
from support.brokers.admin import Admin
from support.harness.groups import WAYS


@pytest.fixture
def tp(admin: Admin) -> TopicPartition:
    """The only partition of a new topic."""
    return TopicPartition(admin.create("lanes"), 0)


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Member settings for each rebalance protocol."""
    return WAYS[request.param]
