"""Promises of producers: nothing lost, nothing twice, in order; transactions whole or not at all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from ..evidence import Evidence, TopicLog, Verdict
from ..identity import ANY_PARTITION, NO_TRANSACTION, Identity
from ..ledger import UNKNOWN_OFFSET, Life

KINDS = ("idempotent", "transactional", "librdkafka", "java")


def check_writes(evidence: Evidence) -> Iterator[Verdict]:
    for life in evidence.lives:
        if life.started.get("kind") in KINDS:
            yield from _check_process(life, evidence.logs[life.started["topic"]])
    written = {life.name for life in evidence.lives if life.started.get("kind") in KINDS}
    topics = {life.started["topic"] for life in evidence.lives if life.started.get("kind") in KINDS}
    for topic in sorted(topics):
        for identity in evidence.logs[topic].records.values():
            if identity.producer not in written:
                yield Verdict("written by nobody", identity.producer, f"{topic} has {identity}")


def _check_process(life: Life, log: TopicLog) -> Iterator[Verdict]:
    own = {place: identity for place, identity in log.records.items() if identity.producer == life.name}
    yield from check_written_once(life, own.values())
    yield from check_written_order(life, own)
    sent = set(sent_by(life))
    yield from (
        Verdict("never sent", life.name, f"{identity} is at offset {offset} of partition {partition}")
        for (partition, offset), identity in own.items()
        if sent and key_in_ledger(identity) not in sent
    )
    if life.started["kind"] == "transactional":
        yield from _check_transactions(life, log)
        return
    written = {(partition, identity.number) for (partition, _), identity in own.items()}
    for event in life.events:
        if event.name == "acked":
            for partition, number, offset in event.fields["records"]:
                if offset in (UNKNOWN_OFFSET, None) and (partition, number) in written:
                    continue
                identity = log.records.get((partition, offset))
                if identity is None or identity.producer != life.name or identity.number != number:
                    what = f"{number} was acknowledged at offset {offset} of partition {partition}"
                    yield Verdict("acknowledged and lost", life.name, f"{what}, where the log has {identity}")


def check_written_once(life: Life, written: Iterable[Identity]) -> Iterator[Verdict]:
    for identity, times in Counter(written).items():
        if times > 1:
            yield Verdict("written twice", life.name, f"{identity}: {times} times")


def check_written_order(life: Life, own: dict[tuple[int, int], Identity]) -> Iterator[Verdict]:
    last: dict[int, Identity] = {}
    for (partition, offset), identity in sorted(own.items()):
        if identity.partition not in (partition, ANY_PARTITION):
            yield Verdict("wrong partition", life.name, f"{identity} is in partition {partition}")
        before = last.get(partition)
        if before is not None and before.number >= identity.number:
            yield Verdict("out of order", life.name, f"{identity} at offset {offset} is after {before}")
        last[partition] = identity


def sent_by(life: Life) -> Iterator[tuple[int, int, int]]:
    for event in life.events:
        if event.name == "sent":
            for partition, first, count, transaction in event.fields["runs"]:
                for number in range(first, first + count):
                    yield partition, number, transaction


def key_in_ledger(identity: Identity) -> tuple[int, int, int]:
    return identity.partition, identity.number, identity.transaction


def _check_transactions(life: Life, log: TopicLog) -> Iterator[Verdict]:
    parts: dict[int, set[tuple[int, int, int]]] = defaultdict(set)
    for key in sent_by(life):
        parts[key[2]].add(key)
    seen: dict[int, set[tuple[int, int, int]]] = defaultdict(set)
    for place in log.visible:
        identity = log.records[place]
        if identity.producer == life.name and identity.transaction != NO_TRANSACTION:
            seen[identity.transaction].add(key_in_ledger(identity))
    outcomes = {
        event.fields["transaction"]: event.name
        for event in life.events
        if event.name in ("txn_committed", "txn_aborted")
    }
    committing = {event.fields["transaction"] for event in life.events if event.name == "committing"}
    for transaction, sent in parts.items():
        missing = len(sent - seen[transaction])
        outcome = outcomes.get(transaction)
        if outcome == "txn_committed" and missing:
            what = f"{missing} of {len(sent)} records of transaction {transaction} are missing"
            yield Verdict("committed and lost", life.name, what)
        elif outcome == "txn_aborted" and seen[transaction]:
            what = f"{len(seen[transaction])} records of transaction {transaction} are visible"
            yield Verdict("aborted and visible", life.name, what)
        elif outcome is None and transaction not in committing and seen[transaction]:
            what = f"transaction {transaction} is visible, and its commit was never called"
            yield Verdict("aborted and visible", life.name, what)
        elif outcome is None and seen[transaction] and missing:
            what = f"{missing} of {len(sent)} records of transaction {transaction} are missing, the others are visible"
            yield Verdict("half a transaction", life.name, what)


def visible_since(evidence: Evidence, topic: str) -> dict[Identity, float]:
    """When each record was acknowledged, or its transaction committed. Later events may have been lost with their
    process: such records are missing here."""
    found: dict[Identity, float] = {}
    for life in evidence.lives:
        if life.started.get("topic") != topic or life.started.get("kind") not in (*KINDS, "moving_writer"):
            continue
        own = ANY_PARTITION if life.started["kind"] == "java" else None
        by_transaction: dict[int, list[Identity]] = defaultdict(list)
        for event in life.events:
            if event.name == "acked":
                for partition, number, _ in event.fields["records"]:
                    found[Identity(life.name, partition if own is None else own, number)] = event.at
            elif event.name == "sent":
                for partition, first, count, transaction in event.fields["runs"]:
                    if transaction != NO_TRANSACTION:
                        numbers = range(first, first + count)
                        by_transaction[transaction] += [Identity(life.name, partition, n, transaction) for n in numbers]
            elif event.name == "txn_committed":
                found.update((identity, event.at) for identity in by_transaction[event.fields["transaction"]])
    return found
