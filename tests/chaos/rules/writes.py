"""Promises of producers: nothing lost, nothing twice, in order; transactions whole or not at all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from ..evidence import Evidence, TopicLog, Verdict
from ..identity import ANY_PARTITION, NO_TRANSACTION, Identity
from ..ledger import UNKNOWN_OFFSET, Life

KINDS = ("idempotent", "transactional", "librdkafka", "java")
DELIVERY_TIMEOUT = 120_000.0
"""Milliseconds after send() in which a delivery does not fail (delivery.timeout.ms)."""
_ENDS = {"txn_committed": "committing", "txn_aborted": "aborting"}


def check_writes(evidence: Evidence) -> Iterator[Verdict]:
    for life in evidence.lives:
        if life.started.get("kind") in KINDS:
            yield from _check_process(life, evidence.logs[life.started["topic"]])
            yield from _check_failures(life)
            yield from _check_prompt(life, evidence.patience)
        if life.started.get("kind") in ("idempotent", "librdkafka", "moving_writer"):
            yield from _check_reports(life)
    yield from _check_writers(evidence.lives)
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
        if life.started["kind"] != "java" and key_in_ledger(identity) not in sent
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


def _check_writers(lives: Iterable[Life]) -> Iterator[Verdict]:
    """Every producer that was closed has written something, in this or an earlier process."""
    closed, successful = set(), set()
    for life in lives:
        if life.started.get("kind") in (*KINDS, "moving_writer"):
            closed |= {life.client} if life.is_closed else set()
            successful |= {life.client for event in life.events if event.name in ("acked", "txn_committed")}
    for client in sorted(closed - successful):
        yield Verdict("wrote nothing", client, "no record was acknowledged, and no transaction committed")


def _times_of(life: Life) -> dict[tuple[int, int], float]:
    """When each record was given to send(), by partition and number."""
    return {
        (partition, number): event.at
        for event in life.events
        if event.name == "sent"
        for partition, first, count, _ in event.fields["runs"]
        for number in range(first, first + count)
    }


def _reported(life: Life, *names: str) -> Iterator[tuple[float, tuple[int, int]]]:
    for event in life.events:
        if event.name in names:
            for partition, number, *_ in event.fields["records"]:
                yield event.at, (partition, number)


def _check_reports(life: Life) -> Iterator[Verdict]:
    """Each delivery of a producer that was closed has an outcome, unless send() raised an error."""
    if not life.is_closed:
        return
    due: set[tuple[int, int]] = set()
    last: set[tuple[int, int]] = set()
    for event in life.events:
        if event.name == "sent":
            due |= last
            last = set(_times_of(Life(life.client, life.number, [event])))
        elif event.name == "error":
            last = set()
    if missing := (due | last) - {record for _, record in _reported(life, "acked", "failed")}:
        yield Verdict("never reported", life.name, f"{len(missing)} deliveries, such as {min(missing)}")


def _check_failures(life: Life) -> Iterator[Verdict]:
    """A delivery fails only after its timeout."""
    sent = _times_of(life)
    for at, record in _reported(life, "failed") if sent else ():
        if at - sent.get(record, at) < DELIVERY_TIMEOUT:
            yield Verdict("failed early", life.name, f"{record[1]} of partition {record[0]}")


def _check_prompt(life: Life, patience: float) -> Iterator[Verdict]:
    """No delivery, and no end of a transaction, takes longer than the timeouts add up to."""
    sent = _times_of(life)
    late = [record for at, record in _reported(life, "acked") if at - sent.get(record, at) > patience]
    if late:
        yield Verdict("stuck", life.name, f"{len(late)} acknowledgements, such as that of {min(late)}, were late")
    begun = {
        (event.name, event.fields["transaction"]): event.at for event in life.events if event.name in _ENDS.values()
    }
    for event in life.events:
        if event.name in _ENDS:
            transaction = event.fields["transaction"]
            if event.at - begun.get((_ENDS[event.name], transaction), event.at) > patience:
                yield Verdict("stuck", life.name, f"the end of transaction {transaction} was late")


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
