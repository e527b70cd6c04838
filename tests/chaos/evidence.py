"""What the judge gets: ledgers, the logs of topics and groups, and the faults that happened."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from support.ledgers.commit_history import Commit
from support.ledgers.share_history import ShareState

from .identity import Identity, Run, Seen, from_runs, to_runs
from .ledger import Life, read_lives

Place = tuple[int, int]
"""A partition and an offset."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A broken promise."""

    rule: str
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.who}: {self.what}"


@dataclass(frozen=True)
class TopicLog:
    """The records of a topic, read by librdkafka at the end."""

    records: Mapping[Place, Identity]
    visible: frozenset[Place]
    """The places that `read_committed` shows."""

    @cached_property
    def visible_offsets(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for partition, offset in sorted(self.visible):
            found[partition].append(offset)
        return found


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault: `target` is a client, or `broker-1`, or `proxy-1`."""

    kind: str
    target: str
    begun: float
    ended: float


_BRIEF = ("cut", "halve", "flood", "delay", "jitter", "renew_certificates", "jump_clock")
"""Faults after which connections are back long before a session has expired."""


@dataclass(frozen=True)
class Evidence:
    lives: Sequence[Life]
    logs: Mapping[str, TopicLog]
    commits: Mapping[str, Sequence[Commit]] = field(default_factory=dict)
    """By group, in the order in which the coordinator accepted them."""
    faults: Sequence[Happened] = ()
    copies: Mapping[str, Sequence[tuple[Place, str]]] = field(default_factory=dict)
    """By target topic of an exactly-once run(): place and identity of the sources that `read_committed` shows."""
    left: Mapping[str, str] = field(default_factory=dict)
    """By group, what it had not consumed at the end."""
    patience: float = 120_000.0
    """Milliseconds: the timeouts that may add up until a record is received."""
    share_states: Mapping[str, Sequence[ShareState]] = field(default_factory=dict)
    """By share group, in the order in which the coordinator accepted them for each partition."""

    def of_kind(self, *kinds: str) -> dict[str, list[Life]]:
        """The lives of these kinds, by group."""
        found: dict[str, list[Life]] = defaultdict(list)
        for life in self.lives:
            if life.started.get("kind") in kinds:
                found[life.started["group"]].append(life)
        return found

    def is_well(self, client: str, since: float, until: float) -> bool:
        """Whether no fault touched this client or any broker in this time. A clock that jumps excuses nothing."""
        return not any(
            fault.begun <= until and fault.ended >= since
            for fault in self.faults
            if fault.target == client or fault.target.startswith(("broker-", "proxy-"))
            if fault.kind != "jump_clock"
        )

    def keeps_session(self, client: str, since: float, until: float) -> bool:
        """Whether no fault in this time can have lasted until a group removed this client."""
        long = [fault for fault in self.faults if fault.kind not in _BRIEF]
        return dataclasses.replace(self, faults=long).is_well(client, since, until)

    def are_brokers_well(self, since: float, until: float) -> bool:
        return not any(
            fault.begun <= until and fault.ended >= since for fault in self.faults if fault.target.startswith("broker-")
        )


# -- files: `evidence.json` has the ends of processes and the faults --------------------------------------------------


def save(directory: Path, evidence: Evidence) -> None:
    """Save all but the ledgers, which are there already."""
    logs = {topic: _log_to_json(log) for topic, log in evidence.logs.items()}
    commits = {
        group: [[each.at, *each.tp, each.offset, each.metadata] for each in found]
        for group, found in evidence.commits.items()
    }
    ends = {life.name: [life.ended, life.was_killed, life.code] for life in evidence.lives}
    faults = [[fault.kind, fault.target, fault.begun, fault.ended] for fault in evidence.faults]
    runner: dict[str, Any] = {
        "logs": logs,
        "commits": commits,
        "ends": ends,
        "faults": faults,
        "copies": evidence.copies,
        "left": evidence.left,
    }
    runner["patience"] = evidence.patience
    runner["share_states"] = {
        group: [[each.at, each.partition, each.start, each.batches] for each in found]
        for group, found in evidence.share_states.items()
    }
    (directory / "evidence.json").write_text(json.dumps(runner))


def load(directory: Path) -> Evidence:
    found: dict[str, Any] = json.loads((directory / "evidence.json").read_text())
    lives = read_lives(directory / "ledgers", found["ends"])
    for life in lives:
        life.ended, life.was_killed, life.code = found["ends"].get(life.name, (None, False, None))
    return Evidence(
        lives,
        {topic: log_of(*saved) for topic, saved in found["logs"].items()},
        {
            group: [Commit(at, (topic, number), offset, metadata) for at, topic, number, offset, metadata in saved]
            for group, saved in found["commits"].items()
        },
        [Happened(*each) for each in found["faults"]],
        {topic: [((each[0][0], each[0][1]), each[1]) for each in saved] for topic, saved in found["copies"].items()},
        found.get("left", {}),
        found["patience"],
        {group: [share_state_of(*each) for each in saved] for group, saved in found.get("share_states", {}).items()},
    )


def share_state_of(at: int, partition: int, start: int, batches: Sequence[Sequence[int]] = ()) -> ShareState:
    return ShareState(at, partition, start, tuple((first, last, state) for first, last, state in batches))


def _log_to_json(log: TopicLog) -> tuple[list[Run], list[Run]]:
    runs = []
    for places in (log.records.keys(), log.visible):
        runs.append(to_runs(Seen(*place, log.records[place]) for place in sorted(places)))
    return runs[0], runs[1]


def log_of(records: Iterable[Run], visible: Iterable[Run] | None = None) -> TopicLog:
    """A log from runs; without `visible`, all records are."""
    everything = {(seen.partition, seen.offset): seen.identity for seen in from_runs(records)}
    if visible is None:
        return TopicLog(everything, frozenset(everything))
    return TopicLog(everything, frozenset((seen.partition, seen.offset) for seen in from_runs(visible)))
