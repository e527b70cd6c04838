"""What the members of a group say about themselves: JSON lines, in the words of Kafka's VerifiableConsumer.

    startup_complete                           the consumer exists
    partitions_assigned, partitions_revoked    a listener was called; revoked: before the partitions are given up
    partitions_lost                            the same without a chance to commit (Java's says "revoked" for it)
    records_consumed                           offsets that a poll returned, a range for each partition
    offsets_committed                          what a commit brought
    shutdown_complete                          the consumer is closed

Java's members speak so by themselves, ours through `members/event_writer.py`.
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
    """Offsets from the first to before the second, all of them, for each partition."""

    at: int
    ranges: Mapping[TopicAndPartition, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Committed:
    at: int
    offsets: Mapping[TopicAndPartition, int]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The consumer was closed, in order."""

    at: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The process is gone. Said by whoever watches it."""

    at: int


Event = Started | Assigned | Revoked | Lost | Read | Committed | Closed | Ended


def milliseconds() -> int:
    """Now, as Java's members give it: the clock that all processes of a machine share."""
    return time.time_ns() // 1_000_000


def parse(line: str) -> Event | None:
    """The event in a line of output; None for a line that has none (a log line, an event nobody needs)."""
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
                # A summary tells the offsets only where they have no gaps, as in a log without transactions.
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
