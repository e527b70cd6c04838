"""The settings of a member: in seconds, from those of its consumer."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._machines.group.actions import GroupSettings
from headrace.config.consumer import ConsumerConfig

TIMES = {"heartbeat_interval_ms": 1500, "max_poll_interval_ms": 70_000, "request_timeout_ms": 9000}


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        pytest.param({}, GroupSettings("g"), id="the same defaults"),
        pytest.param(
            {**TIMES, "session_timeout_ms": 8000, "group_instance_id": "i", "client_rack": "r"},
            GroupSettings("g", "i", "r", 8.0, 1.5, 70.0, 9.0),
            id="classic",
        ),
        pytest.param(
            {"group_protocol": "consumer", "group_remote_assignor": "uniform", "request_timeout_ms": 9000},
            GroupSettings("g", session_timeout=0.0, request_timeout=9.0, remote_assignor="uniform"),
            id="KIP-848: the coordinator sets the session timeout",
        ),
    ],
)
def test_a_member_has_the_settings_of_its_consumer_in_seconds(given: dict[str, Any], settings: GroupSettings) -> None:
    assert GroupSettings.of(ConsumerConfig.parse(bootstrap_servers="b:1", group_id="g", **given)) == settings
