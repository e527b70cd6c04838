"""KIP-983: other partitions are consumed at full speed during a revoke, while a blocking listener stops all of them."""

from __future__ import annotations

import pytest

from headrace.cli.demo_rebalance import measure

pytestmark = pytest.mark.soak  # a busy machine would distort the measurement


def test_partitions_that_are_kept_are_consumed_at_full_speed_during_a_revoke(servers: str) -> None:
    deferred, blocking = measure(servers, deferred=True), measure(servers, deferred=False)
    assert deferred.during >= 0.9 * deferred.before
    assert blocking.during <= 0.1 * blocking.before
