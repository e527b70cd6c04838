"""Events of group members: JSON lines in the format of Kafka's VerifiableConsumer.

    startup_complete                           the consumer exists
    partitions_assigned, partitions_revoked    a listener was called; revoked: before the partitions are released
    partitions_lost                            a listener was called without a chance to commit (Java prints "revoked")
    records_consumed                           offsets that a poll returned, a range for each partition
    offsets_committed                          the result of a commit
    shutdown_complete                          the consumer is closed

Java's members print these themselves, ours with `members/event_writer.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TopicAndPartition = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True)
class Started:
    at: int


@dataclass(frozen=True, slots=True)
class Assigned:
    at: int
    partitions: frozenset[TopicAndPartition]


@dataclass(frozen=True, slots=True)
class Revoked:
    at: int
    partitions: frozenset[TopicAndPartition]


@dataclass(frozen=True, slots=True)
class Lost:
    at: int
    partitions: frozenset[TopicAndPartition]


@dataclass(frozen=True, slots=True)
class Read:
    """All offsets from the first to before the second, for each partition."""

    at: int
    ranges: Mapping[TopicAndPartition, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Committed:
    at: int
    offsets: Mapping[TopicAndPartition, int]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The consumer was closed properly."""

    at: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The process has ended. Reported by its parent."""

    at: int


Event = Started | Assigned | Revoked | Lost | Read | Committed | Closed | Ended


def milliseconds() -> int:
    """Now, like Java's timestamps: the clock that all processes of a machine share."""
    return time.time_ns() // 1_000_000


def parse(line: str) -> Event | None:
    """The event in a line of output; None if there is none (a log line, or an event that is not used)."""
    if not line.startswith("{"):
        return None
    said = json.loads(line)
    at: int = said["timestamp"]
    match said["name"]:
        case "startup_complete":
            return Started(at)
        case "partitions_assigned":
            return Assigned(at, _partitions_in(said))
        case "partitions_revoked":
            return Revoked(at, _partitions_in(said))
        case "partitions_lost":
            return Lost(at, _partitions_in(said))
        case "records_consumed":
            for each in said["partitions"]:
                # A summary determines the offsets only if they have no gaps, as in a log without transactions.
                assert each["count"] == each["maxOffset"] - each["minOffset"] + 1, f"gaps in {each}"
            return Read(
                at, {(e["topic"], e["partition"]): (e["minOffset"], e["maxOffset"] + 1) for e in said["partitions"]}
            )
        case "offsets_committed":
            offsets = {(each["topic"], each["partition"]): each["offset"] for each in said["offsets"]}
            return Committed(at, offsets, None if said["success"] else said.get("error") or "unknown")
        case "shutdown_complete":
            return Closed(at)
    return None


def _partitions_in(said: dict[str, Any]) -> frozenset[TopicAndPartition]:
    return frozenset((each["topic"], each["partition"]) for each in said["partitions"])
