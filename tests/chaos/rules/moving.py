"""Promises for topics that lose records: by retention, compaction, deletion and unclean leader elections.

Only records may be lost that the topic has lost. Offsets that retention deleted before they were read are reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..evidence import Evidence, Happened, Place, TopicLog, Verdict
from ..identity import Identity, key_of
from ..ledger import Life
from ..plan import MOVING
from .groups import check_prompt
from .ownerships import Delivery, Ownership, ownerships_of
from .writes import check_written_once, check_written_order, sent_by

_FORGETFUL = ("recreated", "unclean")
"""When such a log is replaced, its offsets are used again. With it, brokers lose the sequence numbers of producers: a
batch that is sent again can follow a later one, or be written twice."""
RETENTION = 5_000.0
"""Milliseconds, of the topic `retained`."""
UNCLEAN_REPLICAS = ((1, 2), (2, 3), (3, 1), (1, 2))
"""The brokers of each partition of the topic `unclean`."""
_SETTLES = 20_000.0
"""Milliseconds after a topic was recreated in which acknowledgements for its predecessor may still be reported."""


_REPORTED = 5_000.0
"""Milliseconds until a producer reports an acknowledgement."""
_PROMPT = 30_000.0
"""Milliseconds in which a consumer delivers an acknowledged record if nothing fails."""
_REJOINS = 30_000.0
"""Milliseconds in which a replica is in sync again after a fault of its broker (replica.lag.time.max.ms)."""


@dataclass(slots=True)
class Written:
    """What the ledgers of the producers of a topic say."""

    sent: dict[Identity, float] = field(default_factory=dict)
    """When: the brokers may append a record soon afterwards, and its acknowledgement may come much later."""
    acked: dict[Identity, tuple[float, Place]] = field(default_factory=dict)


def check_moving(evidence: Evidence) -> Iterator[Verdict]:
    for group, lives in evidence.of_kind(*MOVING).items():
        kind, topic = lives[0].started["kind"], lives[0].started["topic"]
        log = evidence.logs[topic]
        writers = [
            life
            for life in evidence.lives
            if life.started.get("kind") == "moving_writer" and life.started["topic"] == topic
        ]
        written = _written(writers)
        ownerships, strays = ownerships_of(lives)
        yield from strays
        replaced = _replacements(kind, evidence.faults)
        yield from _check_log(writers, log, written, evidence.faults, replaced)
        yield from _check_received(kind, group, ownerships, log, written, evidence.faults, replaced)
        yield from check_prompt(evidence, group, topic, [(each, each.received) for each in ownerships])
        delivered = {delivery.identity for ownership in ownerships for delivery in ownership.received}
        for identity in sorted(set(log.records.values()) - delivered):
            yield Verdict("never delivered", group, f"{identity} is in the log")
        losses = _Losses(evidence, kind, group, lives, ownerships, log, written)
        kept = set(log.records.values())
        for identity in written.acked:
            if identity not in kept and not losses.is_gone(identity):
                yield Verdict("acknowledged and lost", identity.producer, f"{identity}: {written.acked[identity][1]}")
            if identity not in delivered and not losses.may_be_missed(identity):
                yield Verdict("never delivered", group, f"{identity}: {written.acked[identity][1]}")


def _written(writers: Iterable[Life]) -> Written:
    found = Written()
    for life in writers:
        for event in life.events:
            if event.name == "sent":
                one = Life(life.client, life.number, [event])
                found.sent.update((Identity(life.name, each[0], each[1]), event.at) for each in sent_by(one))
            elif event.name == "acked":
                for partition, number, offset in event.fields["records"]:
                    found.acked[Identity(life.name, partition, number)] = event.at, (partition, offset)
    return found


def _replacements(kind: str, faults: Sequence[Happened]) -> list[tuple[float, float]]:
    """The times in which a log of this kind may have been replaced, and producers may have had requests for it."""
    if kind == "recreated":
        times = [(each.begun, each.ended) for each in faults if each.kind == "recreate_topic"]
    else:
        times = [(begun, ended) for begun, ended, _ in _elections(faults)] if kind == "unclean" else []
    return [(begun - _SETTLES, ended + _SETTLES) for begun, ended in times]


def _check_log(
    writers: Sequence[Life],
    log: TopicLog,
    written: Written,
    faults: Sequence[Happened],
    replaced: Sequence[tuple[float, float]],
) -> Iterator[Verdict]:
    for life in writers:
        own = {place: identity for place, identity in log.records.items() if identity.producer == life.name}
        once = (each for each in own.values() if not _may_repeat(each, written, faults))
        yield from check_written_once(life, once)
        ordered = {
            place: each
            for place, each in own.items()
            if not any(begun <= written.sent.get(each, 0.0) <= ended for begun, ended in replaced)
        }
        yield from check_written_order(life, ordered)
    for (partition, _), identity in log.records.items():
        if identity not in written.sent:
            yield Verdict("never sent", identity.producer, str(identity))
        elif identity.partition != partition:
            yield Verdict("wrong partition", identity.producer, f"{identity} is in partition {partition}")


def _may_repeat(identity: Identity, written: Written, faults: Iterable[Happened]) -> bool:
    """Whether it was sent while its topic was recreated.

    A broker accepts any sequence number of a producer that it does not know (KIP-360). If it gets a later batch first,
    the producer starts anew, and repeats what was under way.
    """
    at = written.sent.get(identity, float("inf"))
    return any(
        each.kind == "recreate_topic" and each.begun - _SETTLES <= at <= each.ended + _SETTLES for each in faults
    )


def _check_received(
    kind: str,
    group: str,
    ownerships: Iterable[Ownership],
    log: TopicLog,
    written: Written,
    faults: Sequence[Happened],
    replaced: Sequence[tuple[float, float]],
) -> Iterator[Verdict]:
    for ownership in ownerships:
        before: Delivery | None = None
        latest: dict[str, Delivery] = {}
        for delivery in ownership.received:
            identity, here = delivery.identity, (ownership.partition, delivery.offset)
            _, place = written.acked.get(identity, (0.0, here))
            is_there = place == here or _may_repeat(identity, written, faults)
            is_other = kind not in _FORGETFUL and log.records.get(here, identity) != identity
            if identity not in written.sent or not is_there or is_other:
                what = f"{identity} at offset {delivery.offset} of {ownership.partition}"
                yield Verdict("not what was written", f"{group}, {ownership.life.name}", what)
            for each in (before, latest.get(identity.producer)):
                if each is None:
                    continue
                is_gap = each is before and kind in _FORGETFUL and delivery.offset > each.offset + 1
                rule = "out of order" if _is_back(each, delivery) else "skipped" if is_gap else None
                # Between the first send() and the last delivery, the log was the same.
                since = min(written.sent.get(found.identity, 0.0) for found in (each, delivery))
                if rule and not any(begun <= delivery.at and since <= ended for begun, ended in replaced):
                    yield Verdict(rule, ownership.life.name, f"{identity} at {delivery.offset}: {ownership}")
                    break
            before = latest[identity.producer] = delivery


def _is_back(before: Delivery, delivery: Delivery) -> bool:
    is_same = before.identity.producer == delivery.identity.producer
    return delivery.offset <= before.offset or (is_same and delivery.identity.number <= before.identity.number)


def _elections(faults: Iterable[Happened]) -> Iterator[tuple[float, float, frozenset[int] | None]]:
    """The times of unclean elections, and their two brokers if they are known: planned ones, and those in which the
    broker of one replica had a fault before the other replica was in sync again. `unclean.leader.election.enable`
    allows an election then."""
    of_brokers = sorted((each for each in faults if each.target.startswith("broker-")), key=lambda each: each.begun)
    for fault in of_brokers:
        if fault.kind == "unclean_election":
            yield fault.begun, fault.ended, None
    for first, second in pairwise(of_brokers):
        is_other = first.target != second.target or first.kind == "rolling_restart"
        if is_other and second.begun <= first.ended + _REJOINS:
            names = [each.target.removeprefix("broker-") for each in (first, second)]
            are_single = all(name.isdigit() for name in names)
            yield first.begun, second.ended + _REPORTED, frozenset(map(int, names)) if are_single else None


class _Losses:
    """Which records a topic may have lost, and which of them a consumer may have missed."""

    def __init__(
        self,
        evidence: Evidence,
        kind: str,
        group: str,
        lives: Sequence[Life],
        ownerships: Sequence[Ownership],
        log: TopicLog,
        written: Written,
    ) -> None:
        self._kind = kind
        self._written = written
        self._evidence = evidence
        self._clients = {life.client for life in lives}
        self._over = max(event.at for life in evidence.lives for event in life.events)
        self._first = {partition: offsets[0] for partition, offsets in log.visible_offsets.items()}
        self._recreations = [fault for fault in evidence.faults if fault.kind == "recreate_topic"]
        self._elections = list(_elections(evidence.faults))
        self._reported = [
            (event.at, event.fields["partition"], event.fields["start"], event.fields["end"])
            for life in lives
            for event in life.events
            if event.name == "lost_range"
        ]
        self._newest: dict[tuple[int, str], int] = {}
        for (partition, offset), identity in log.records.items():
            key = (partition, key_of(identity))
            self._newest[key] = max(offset, self._newest.get(key, -1))
        # A member without a committed offset starts at the first record that is left.
        committed: dict[int, float] = {}
        for commit in evidence.commits.get(group, ()):
            committed.setdefault(commit.tp[1], commit.at)
        self._begun_anew: dict[int, float] = defaultdict(float)
        for ownership in ownerships:
            if ownership.begun < committed.get(ownership.partition, float("inf")):
                self._begun_anew[ownership.partition] = ownership.begun

    def is_gone(self, identity: Identity) -> bool:
        """Whether the topic may have lost it by the end."""
        at, place = self._written.acked[identity]
        if self._kind == "retained":
            is_first = place[1] < self._first.get(place[0], place[1] + 1)
            return is_first and self._over - self._written.sent[identity] >= RETENTION
        if self._kind == "compacted":
            return self._is_replaced(identity, place)
        if self._kind == "unclean":
            return self._is_during_an_election(at, place[0])
        return any(at <= each.ended + _SETTLES for each in self._recreations)

    def may_be_missed(self, identity: Identity) -> bool:
        """Whether the consumer may have missed it: the topic lost it first."""
        at, place = self._written.acked[identity]
        if self._kind == "retained":
            old = self._written.sent[identity] + RETENTION
            is_reported = any(
                old <= when and partition == place[0] and start <= place[1] < end
                for when, partition, start, end in self._reported
            )
            return is_reported or old <= self._begun_anew[place[0]]
        if self._kind == "compacted":
            return self._is_replaced(identity, place)
        if self._kind == "unclean":
            return self._is_during_an_election(at, place[0])
        was_well = all(self._evidence.is_well(client, at, at + _PROMPT) for client in self._clients)
        patience = _PROMPT if was_well else self._evidence.patience
        return any(each.begun - patience <= at <= each.ended + _SETTLES for each in self._recreations)

    def _is_during_an_election(self, at: float, partition: int) -> bool:
        """Only records may be lost that were acknowledged while a replica of their partition was away."""
        replicas = frozenset(UNCLEAN_REPLICAS[partition % len(UNCLEAN_REPLICAS)])
        return any(begun <= at <= ended and brokers in (None, replicas) for begun, ended, brokers in self._elections)

    def _is_replaced(self, identity: Identity, place: Place) -> bool:
        """Whether a later record has its key."""
        return self._newest.get((place[0], key_of(identity)), -1) > place[1]
