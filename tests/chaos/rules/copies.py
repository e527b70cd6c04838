"""The promise of an exactly-once run(): each record that its source shows is in its target exactly once.

The value of a copy is `partition/offset/identity` of its source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..evidence import Evidence, Place, Verdict

KINDS = ("exactly_once",)


def copy_value(place: Place, identity: str) -> str:
    return f"{place[0]}/{place[1]}/{identity}"


def parse_copy(text: str) -> tuple[Place, str]:
    partition, offset, identity = text.split("/")
    return (int(partition), int(offset)), identity


def check_copies(evidence: Evidence) -> Iterator[Verdict]:
    for group, lives in evidence.of_kind(*KINDS).items():
        source, target = lives[0].started["topic"], lives[0].started["target"]
        log, found = evidence.logs[source], evidence.copies[target]
        for (place, _), times in Counter(found).items():
            if times > 1:
                yield Verdict("copied twice", group, f"{log.records.get(place)} at {place}: {times} times")
        for place, identity in found:
            if place not in log.visible:
                yield Verdict("of an aborted transaction", group, f"{identity} at {place} was copied")
            elif str(log.records[place]) != identity:
                yield Verdict("not what was written", group, f"{identity} at {place}: {log.records[place]}")
        missing = log.visible - {place for place, _ in found}
        for place in sorted(missing):
            yield Verdict("never copied", group, f"{log.records[place]} at {place}")
