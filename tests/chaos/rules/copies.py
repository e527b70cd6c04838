"""Promises of clients that copy a topic: an exactly-once run(), and Spark's sink in both modes.

Each record that the source shows is in the target exactly once, or at least once. The value of a copy is
`partition/offset/identity` of its source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..evidence import Evidence, Place, Verdict
from ..identity import identity_of, key_of, parse_identity
from ..ledger import Life

FILES = ("spark_plain",)
"""Kinds with Spark's file sink."""
SINKS = ("spark_sink", "spark_sink_once")
AT_LEAST_ONCE = ("spark_sink",)
KINDS = ("exactly_once", *SINKS)


def copy_value(place: Place, identity: str) -> str:
    return f"{place[0]}/{place[1]}/{identity}"


def parse_copy(value: bytes | None, key: bytes | None) -> tuple[Place, str]:
    """The place of the source and its identity; another one if the copy has another key."""
    partition, offset, identity = (value or b"").decode().split("/")
    return (int(partition), int(offset)), str(identity_of(identity.encode(), key))


def check_copies(evidence: Evidence) -> Iterator[Verdict]:
    for group, lives in evidence.of_kind(*KINDS).items():
        source, target = lives[0].started["topic"], lives[0].started["target"]
        log, found = evidence.logs[source], evidence.copies[target]
        if lives[0].started["kind"] not in AT_LEAST_ONCE or not _may_repeat(evidence, lives):
            for (place, _), times in Counter(found).items():
                if times > 1:
                    yield Verdict("copied twice", group, f"{log.records.get(place)} at {place}: {times} times")
        for place, identity in found:
            if place not in log.visible:
                yield Verdict("of an aborted transaction", group, f"{identity} at {place} was copied")
            elif str(log.records[place]) != identity:
                yield Verdict("not what was written", group, f"{identity} at {place}: {log.records[place]}")
        if lives[0].started["kind"] == "exactly_once":
            yield from _check_order(group, found)
        missing = log.visible - {place for place, _ in found}
        for place in sorted(missing):
            yield Verdict("never copied", group, f"{log.records[place]} at {place}")


def _check_order(group: str, found: Sequence[tuple[Place, str]]) -> Iterator[Verdict]:
    """Copies of a key are in one partition of the target, in the order of their sources."""
    last: dict[tuple[int, str], int] = {}
    for (partition, offset), identity in found:
        key = (partition, key_of(parse_identity(identity)))
        if offset < last.get(key, -1):
            yield Verdict("out of order", group, f"{identity} of offset {offset} was copied after {last[key]}")
        last[key] = offset


def _may_repeat(evidence: Evidence, lives: Sequence[Life]) -> bool:
    """Whether a batch or a task may have been run again. Otherwise each record is written once in this mode as well."""
    has_failed = any(event.name == "query_failed" for life in lives for event in life.events)
    was_well = evidence.is_well(lives[0].client, 0.0, float("inf"))
    return len(lives) > 1 or has_failed or not was_well
