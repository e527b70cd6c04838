"""Ownerships: from the assignment of a partition to a process until it gives the partition up or ends."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..evidence import Evidence, Place, Verdict
from ..identity import Identity, Seen, from_runs
from ..ledger import Event, Life

Ending = Literal["revoked", "lost", "closed", "killed", "open"]


class Delivery(NamedTuple):
    at: float
    offset: int
    identity: Identity
    lane: str | int | None
    """The lane of the record; in a share group, its delivery count."""


@dataclass(slots=True, eq=False)
class Ownership:
    life: Life
    partition: int
    begun: float
    over: float = float("inf")
    ending: Ending = "open"
    received: list[Delivery] = field(default_factory=list)
    handled: list[Delivery] = field(default_factory=list)

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.life.name} ({self.ending})"


def ownerships_of(lives: Iterable[Life]) -> tuple[list[Ownership], list[Verdict]]:
    """All ownerships by their begin; records that a process got without owning their partition, and partitions that it
    got again without giving them up."""
    found: list[Ownership] = []
    strays: list[Verdict] = []
    for life in lives:
        open_: dict[int, Ownership] = {}
        latest: dict[int, Ownership] = {}
        in_hands: dict[Place, deque[Ownership]] = defaultdict(deque)
        for event in life.events:
            match event.name:
                case "assigned":
                    for partition in event.fields["partitions"]:
                        if partition in open_:
                            strays.append(Verdict("two owners", life.name, f"{partition} was assigned twice"))
                        open_[partition] = latest[partition] = Ownership(life, partition, event.at)
                        found.append(open_[partition])
                case "revoked" | "lost":
                    for partition in event.fields["partitions"]:
                        _end(open_, partition, event.at, event.name)
                case "received":
                    # A handler may start and finish on its thread while the partition is being lost.
                    owners = latest if life.started["kind"] in ("done", "exactly_once") else open_
                    for seen in from_runs(event.fields["runs"]):
                        owner = owners.get(seen.partition)
                        if owner is None:
                            strays.append(Verdict("not the owner", life.name, f"received {seen}"))
                            continue
                        owner.received.append(_delivery(event, seen))
                        in_hands[seen.partition, seen.offset].append(owner)
                case "handled":  # it belongs to the ownership in which it was received
                    for seen in from_runs(event.fields["runs"]):
                        if received_in := in_hands[seen.partition, seen.offset]:
                            received_in.popleft().handled.append(_delivery(event, seen))
                        else:
                            strays.append(Verdict("not the owner", life.name, f"handled {seen}"))
                case "closed":
                    for partition in list(open_):
                        _end(open_, partition, event.at, "closed")
        for partition in list(open_):
            _end(open_, partition, life.ended or float("inf"), "killed" if life.was_killed else "open")
    return sorted(found, key=lambda each: each.begun), strays


def _delivery(event: Event, seen: Seen) -> Delivery:
    return Delivery(event.at, seen.offset, seen.identity, event.fields.get("lane"))


def _end(open_: dict[int, Ownership], partition: int, at: float, ending: Ending) -> None:
    if (ownership := open_.pop(partition, None)) is not None:
        ownership.over, ownership.ending = at, ending


def by_partition(ownerships: Iterable[Ownership]) -> dict[int, list[Ownership]]:
    found: dict[int, list[Ownership]] = defaultdict(list)
    for ownership in ownerships:
        found[ownership.partition].append(ownership)
    return found


def check_single_owner(evidence: Evidence, ownerships: Iterable[Ownership], session: float) -> Iterator[Verdict]:
    """No two owners at a time, unless the earlier one was killed, or removed: a fault that can last for a session kept
    it from giving the partition up."""
    for owners in by_partition(ownerships).values():
        for index, earlier in enumerate(owners):
            for later in owners[index + 1 :]:
                if later.begun >= earlier.over or later.life is earlier.life:
                    continue
                was_alive = earlier.ending in ("revoked", "lost", "closed")
                if was_alive and evidence.keeps_session(earlier.life.client, later.begun - session, earlier.over):
                    what = f"{earlier} overlaps that of {later.life.name} by {earlier.over - later.begun:.0f} ms"
                    yield Verdict("two owners", earlier.life.name, what)


def check_idle(evidence: Evidence, lives: Iterable[Life]) -> Iterator[Verdict]:
    """Each member gets a partition within the timeouts: topics have more partitions than groups have members."""
    for life in lives:
        since, open_ = life.events[0].at, set[int]()
        idle = 0.0
        for event in [*life.events, Event(life.ended or life.events[-1].at, "ended", {})]:
            if not open_:
                idle = max(idle, event.at - since)
            if event.name == "assigned":
                open_ |= set(event.fields["partitions"])
            elif event.name in ("revoked", "lost"):
                since = event.at if open_ else since
                open_ -= set(event.fields["partitions"])
        if idle > evidence.patience:
            yield Verdict("idle", life.name, f"it had no partition for {idle / 1000:.0f} s")
