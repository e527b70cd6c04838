"""Fixtures for run(): each test runs with threads and with tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.harness.consumers import KINDS
from support.harness.run_kinds import Kind


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    kind = Kind(request.param)
    yield kind
    kind.close()
