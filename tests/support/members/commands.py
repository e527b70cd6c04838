"""Command lines of members: Java's VerifiableConsumer, confluent-kafka and headrace, with the same behaviour.

Each subscribes to one topic, starts at the beginning if nothing is committed, commits its records before the next poll
and before a revoke, and prints its events (see `members/events.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.brokers.java_tool import java_tool

_JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


@dataclass(frozen=True, slots=True)
class Membership:
    """The settings that all members of a group share. `strategy` None means KIP-848."""

    bootstrap_servers: str
    group: str
    topic: str
    strategy: str | None
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings that have the same name in all three clients."""

    def config(self, name: str) -> dict[str, object]:
        """All settings of a member, with the names that librdkafka, headrace and Java share."""
        if self.strategy is None:
            protocol: dict[str, object] = {"group.protocol": "consumer"}
        else:
            # Members learn about a rebalance from a heartbeat.
            protocol = {
                "partition.assignment.strategy": self.strategy,
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": 30_000,
            }
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "group.id": self.group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **protocol,
            **self.settings,
        }


Command = Callable[[Membership, str, Path], list[str]]


def java_command(membership: Membership, name: str, directory: Path) -> list[str]:
    config = membership.config(name)
    strategy = config.pop("partition.assignment.strategy", None)
    assignor = ["--assignment-strategy", _JAVA_ASSIGNORS[str(strategy)]] if strategy else []
    protocol = config.pop("group.protocol", "classic")
    properties = directory / f"{name}.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    return java_tool(
        "VerifiableConsumer",
        *("--bootstrap-server", membership.bootstrap_servers, "--topic", membership.topic),
        *("--group-id", membership.group, "--group-protocol", str(protocol), *assignor),
        *("--command-config", str(properties)),
    )


def confluent_command(membership: Membership, name: str, directory: Path) -> list[str]:
    return _python_command("support.programs.confluent_member", membership, name)


def headrace_command(membership: Membership, name: str, directory: Path) -> list[str]:
    return _python_command("support.programs.headrace_member", membership, name)


def _python_command(module: str, membership: Membership, name: str) -> list[str]:
    return [sys.executable, "-m", module, membership.topic, json.dumps(membership.config(name))]


COMMANDS: Mapping[str, Command] = {
    "java": java_command,
    "confluent": confluent_command,
    "headrace": headrace_command,
}
