"""Promises of share groups: every record is delivered and accepted, and an accepted record is done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from support.ledgers.share_history import ACKNOWLEDGED, AVAILABLE

from ..evidence import Evidence, Place, TopicLog, Verdict
from ..identity import from_runs
from ..ledger import Life
from .groups import check_records
from .ownerships import Delivery
from .writes import visible_since

KINDS = ("share_implicit", "share_explicit")
LOCK = 15_000.0
"""The lock duration of all groups, in milliseconds."""
_ON_ITS_WAY = 4 * LOCK
"""Milliseconds that a delivery may take from the broker to the record's return by poll(), with faults in between."""


def check_shares(evidence: Evidence) -> Iterator[Verdict]:
    for group, lives in evidence.of_kind(*KINDS).items():
        topic = lives[0].started["topic"]
        log = evidence.logs[topic]
        deliveries = _deliveries(lives)
        flat = [(life.name, place[0], [each]) for place, found in deliveries.items() for life, each in found]
        yield from check_records(group, log, flat)
        for place in sorted(log.visible - deliveries.keys()):
            yield Verdict("never delivered", group, f"{log.records[place]} at {place}")
        yield from _check_returned_once(evidence, group, deliveries)
        yield from _check_accepted(evidence, group, log, lives, deliveries)
        yield from _check_prompt(evidence, group, topic, deliveries)
        yield from _check_idle(evidence, topic, lives)
        if left := evidence.left.get(group):
            yield Verdict("never accepted", group, left)


def _deliveries(lives: Sequence[Life]) -> dict[Place, list[tuple[Life, Delivery]]]:
    found: dict[Place, list[tuple[Life, Delivery]]] = defaultdict(list)
    for life in lives:
        for event in life.events:
            if event.name == "received":
                for seen in from_runs(event.fields["runs"]):
                    delivery = Delivery(event.at, seen.offset, seen.identity, event.fields.get("delivery"))
                    found[seen.partition, seen.offset].append((life, delivery))
    return found


def _check_returned_once(
    evidence: Evidence, group: str, deliveries: dict[Place, list[tuple[Life, Delivery]]]
) -> Iterator[Verdict]:
    """A poll returns an acquired record once: the next delivery has a higher count.

    Brokers do not save the count when they deliver. A new leader may not know it, and neither does a leader that lost
    the connection to the only member, because of a fault: the member then knows that its acknowledgement was rejected.
    """
    rejected = _rejections(life for found in deliveries.values() for life, _ in found)
    for place, found in deliveries.items():
        for (life, first), (other, second) in pairwise(found):
            is_same = life is other and first.lane == second.lane is not None
            if not is_same or not evidence.are_brokers_well(first.at - LOCK, second.at):
                continue
            is_rejected = any(first.at <= at <= second.at for at in rejected.get((life.name, place), ()))
            if not is_rejected or evidence.is_well(life.client, first.at - LOCK, second.at):
                yield Verdict("returned twice", group, f"{place} by {life.name}, delivery {first.lane}")


def _rejections(lives: Iterable[Life]) -> dict[tuple[str, Place], list[float]]:
    """When acknowledgements of a record failed, by the name of a process and the record's place."""
    found: dict[tuple[str, Place], list[float]] = defaultdict(list)
    for life in {life.name: life for life in lives}.values():
        for event in life.events:
            if event.name == "rejected":
                for partition, start, end in event.fields["ranges"]:
                    for offset in range(start, end):
                        found[life.name, (partition, offset)].append(event.at)
    return found


def _check_accepted(
    evidence: Evidence,
    group: str,
    log: TopicLog,
    lives: Sequence[Life],
    deliveries: dict[Place, list[tuple[Life, Delivery]]],
) -> Iterator[Verdict]:
    accepted = _acceptances(lives, log)
    for place, found in accepted.items():
        for (first, since), (second, until) in pairwise(found):
            if not _is_late(evidence, place, second, since, until, deliveries) and not _is_forgotten(
                evidence, group, place, since, until
            ):
                yield Verdict("accepted twice", group, f"{place} by {first.name} and by {second.name}")
        for life, at in found:
            if not any(owner is life and each.at <= at for owner, each in deliveries.get(place, ())):
                yield Verdict("accepted without delivery", group, f"{place} by {life.name}")
        for other, delivery in deliveries.get(place, ()):
            before = [(life, at) for life, at in found if at < delivery.at]
            if not before:
                continue
            life, at = before[-1]
            # A member that was stopped may still return a record whose lock has expired meanwhile, but not for long.
            was_well = evidence.is_well(other.client, at - 2 * LOCK, delivery.at)
            was_done = delivery.at - at > _ON_ITS_WAY and not _is_forgotten(evidence, group, place, at, delivery.at)
            if was_well or was_done:
                what = f"{place} to {other.name}, {delivery.at - at:.0f} ms after {life.name} had accepted it"
                yield Verdict("delivered again", group, what)
    for place in sorted(log.visible & deliveries.keys() - accepted.keys()):
        # The process that had accepted it may have died before it knew that.
        if all(evidence.is_well(life.client, each.at, each.at + 2 * LOCK) for life, each in deliveries[place]):
            what = f"{log.records[place]} at {place} was delivered {len(deliveries[place])} times"
            yield Verdict("never accepted", group, what)


def _acceptances(lives: Sequence[Life], log: TopicLog) -> dict[Place, list[tuple[Life, float]]]:
    """Who accepted each record, and when, by time. A range covers offsets without records: they are left out."""
    found: dict[Place, list[tuple[Life, float]]] = defaultdict(list)
    for life in lives:
        for event in life.events:
            if event.name == "accepted":
                for partition, start, end in event.fields["ranges"]:
                    for offset in range(start, end):
                        if (partition, offset) in log.visible:
                            found[partition, offset].append((life, event.at))
    for each in found.values():
        each.sort(key=lambda acceptance: acceptance[1])
    return found


def _is_late(
    evidence: Evidence,
    place: Place,
    life: Life,
    since: float,
    until: float,
    deliveries: dict[Place, list[tuple[Life, Delivery]]],
) -> bool:
    """Whether the process got the record before another one had accepted it, and its lock has expired since then,
    because of a fault.

    Brokers do not reject an acknowledgement of records below the start offset, whoever sends it.
    """
    got = [delivery.at for owner, delivery in deliveries.get(place, ()) if owner is life and delivery.at <= until]
    was_late = bool(got) and got[-1] < since and got[-1] + LOCK <= until
    return was_late and not evidence.is_well(life.client, got[-1], until)


def _is_forgotten(evidence: Evidence, group: str, place: Place, since: float, until: float) -> bool:
    """Whether the coordinator's own log shows that the record was done, and later was not, near a fault of a broker.

    A leader saves the start offset of a share partition, and the states of records after it, before it responds. It
    retries each write by itself, and the coordinators of Kafka 4.3.1 accept an older one after a newer one (Kafka pull
    request 23074): the next leader then delivers what was accepted.
    """
    if evidence.are_brokers_well(since - 2 * LOCK, until):
        return False
    is_done, highest = False, -1
    for state in evidence.share_states.get(group, ()):
        if state.partition != place[0] or state.at > until:
            continue
        now = [kind for first, last, kind in state.batches if first <= place[1] <= last]
        if state.start > place[1] or ACKNOWLEDGED in now:
            is_done = True
        elif is_done and state.at >= since - LOCK and (AVAILABLE in now or highest > place[1]):
            return True
        highest = max(highest, state.start)
    return False


def _check_idle(evidence: Evidence, topic: str, lives: Iterable[Life]) -> Iterator[Verdict]:
    """While producers write, each member gets records within the timeouts."""
    last = max(visible_since(evidence, topic).values(), default=0.0)
    for life in lives:
        begun = life.events[0].at
        until = max(begun, min(last, life.ended or life.events[-1].at))
        got = [each.at for each in life.events if each.name == "received" and each.at < until]
        times = [begun, *got, until]
        idle = max(after - before for before, after in pairwise(times))
        if idle > evidence.patience:
            yield Verdict("idle", life.name, f"it got no record for {idle / 1000:.0f} s")


def _check_prompt(
    evidence: Evidence, group: str, topic: str, deliveries: dict[Place, list[tuple[Life, Delivery]]]
) -> Iterator[Verdict]:
    since = visible_since(evidence, topic)
    late = 0
    for found in deliveries.values():
        first = min((each for _, each in found), key=lambda each: each.at)
        late += first.identity in since and first.at - since[first.identity] > evidence.patience
    if late:
        yield Verdict("stuck", group, f"{late} records were delivered after {evidence.patience / 1000:g} s")
