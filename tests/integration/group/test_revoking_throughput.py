"""KIP-983: what is not asked back goes on at full speed, where a listener that waits stops it all."""

from __future__ import annotations

import pytest

from headrace.cli.demo_rebalance import measure

pytestmark = pytest.mark.soak  # figures, which a busy machine would spoil


def test_partitions_that_are_kept_are_consumed_at_full_speed_during_a_revoke(servers: str) -> None:
    deferred, blocking = measure(servers, deferred=True), measure(servers, deferred=False)
    assert deferred.during >= 0.9 * deferred.before
    assert blocking.during <= 0.1 * blocking.before
