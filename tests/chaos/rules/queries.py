"""Promises of Spark's queries. A batch that was interrupted is run again under its number.

With a sink that replaces the batch of a number, each record is there exactly once: plain, typed and with two lanes.
Members of groups and share groups deliver at least once, and again only what was not committed or accepted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from support.ledgers.commit_history import Commit

from ..evidence import Evidence, Place, TopicLog, Verdict
from ..identity import Seen, from_runs
from ..ledger import Life
from .copies import FILES, SINKS
from .groups import SESSION, check_commits, check_complete, check_order, check_prompt, check_records, check_repeats
from .ownerships import Delivery, Ownership, ownerships_of
from .shares import LOCK

ONCE = (*FILES, "spark_typed", "spark_lanes")
MEMBERS = ("spark_member", "spark_peer")
DRIVER_PATIENCE = 120_000.0
"""Milliseconds that a driver may take for its start, in addition to the patience with other clients."""
_FAILS_WITHIN = 30_000.0
"""Milliseconds after a fault in which a query may fail because of it: requests end after 8 s, and are retried."""


@dataclass(slots=True, eq=False)
class Attempt:
    """A batch as the sink got it: consecutive lines of one process under one number."""

    life: Life
    number: int
    at: float
    since: float
    """When the batch before it, or the query, was there: it was planned later."""
    is_first: bool
    """The first batch after a start of the query, which may have been planned by an earlier run."""
    rows: list[tuple[str | None, Seen]] = field(default_factory=list)

    @property
    def places(self) -> Counter[Place]:
        return Counter((seen.partition, seen.offset) for _, seen in self.rows)


def attempts_of(lives: Sequence[Life]) -> list[Attempt]:
    """All attempts by time."""
    found: list[Attempt] = []
    for life in lives:
        current: Attempt | None = None
        since, is_first = 0.0, True
        for event in life.events:
            if event.name in ("running", "started"):
                current, since, is_first = None, event.at, True
            elif event.name == "received" and "batch" in event.fields:
                if current is None or current.number != event.fields["batch"]:
                    current = Attempt(life, event.fields["batch"], event.at, since, is_first)
                    found.append(current)
                    is_first = False
                current.rows += [(event.fields["lane"], seen) for seen in from_runs(event.fields["runs"])]
                since = event.at
    return sorted(found, key=lambda attempt: attempt.at)


def check_queries(evidence: Evidence) -> Iterator[Verdict]:
    """Exactly once in a sink that replaces batches, in order, and commits only of what is there."""
    for group, lives in evidence.of_kind(*ONCE).items():
        kind, topic = lives[0].started["kind"], lives[0].started["topic"]
        log = evidence.logs[topic]
        attempts = attempts_of(lives)
        if kind not in FILES:  # a file tells the number of its batch, but not the attempts that left no file
            yield from _check_repeated_batches(group, attempts)
            yield from _check_numbers(group, attempts)
        final = list({attempt.number: attempt for attempt in attempts}.values()) if kind not in FILES else attempts
        yield from _check_once(group, log, final)
        yield from _check_live_order(group, final)
        deliveries = _deliveries(attempts)
        yield from check_records(group, log, [(each.life.name, each.partition, each.received) for each in deliveries])
        yield from check_complete(group, log, [(each, each.received) for each in deliveries])
        yield from _check_prompt(evidence, group, topic, deliveries)
        commits = evidence.commits.get(group, ())
        yield from check_commits(evidence, group, log, commits, [(each, each.received) for each in deliveries])


def _deliveries(attempts: Sequence[Attempt]) -> list[Ownership]:
    """The records by process and partition, as those of consumers."""
    found: dict[tuple[str, int], Ownership] = {}
    for attempt in attempts:
        for lane, seen in attempt.rows:
            key = (attempt.life.name, seen.partition)
            owner = found.setdefault(key, Ownership(attempt.life, seen.partition, attempt.at))
            owner.received.append(Delivery(attempt.at, seen.offset, seen.identity, lane))
    return list(found.values())


def _check_repeated_batches(group: str, attempts: Sequence[Attempt]) -> Iterator[Verdict]:
    first: dict[int, Attempt] = {}
    for attempt in attempts:
        before = first.setdefault(attempt.number, attempt)
        if before.places != attempt.places:
            more, fewer = attempt.places - before.places, before.places - attempt.places
            what = f"{attempt.number} in {attempt.life.name}: {len(more)} more records, {len(fewer)} fewer"
            yield Verdict("repeated batch differs", group, f"{what} than in {before.life.name}")


def _check_numbers(group: str, attempts: Sequence[Attempt]) -> Iterator[Verdict]:
    last = -1
    for attempt in attempts:
        if attempt.number not in (last, last + 1):
            yield Verdict("batch skipped", group, f"{attempt.number} after {last}, in {attempt.life.name}")
        last = attempt.number


def _check_once(group: str, log: TopicLog, final: Sequence[Attempt]) -> Iterator[Verdict]:
    """The ranges of batches, and of the lanes in them, are disjoint."""
    times: Counter[Place] = Counter()
    for attempt in final:
        times.update(attempt.places)
    for place, count in times.items():
        if count > 1:
            yield Verdict("in the sink twice", group, f"{log.records.get(place)} at {place}: {count} times")


def _check_live_order(group: str, final: Sequence[Attempt]) -> Iterator[Verdict]:
    """Offsets ascend from batch to batch, except those of the backlog."""
    reached: dict[int, int] = defaultdict(lambda: -1)
    for attempt in sorted(final, key=lambda attempt: attempt.number):
        rows = [seen for lane, seen in attempt.rows if lane != "backlog"]
        for seen in rows:
            if seen.offset <= reached[seen.partition]:
                what = f"{seen.offset} of {seen.partition} after {reached[seen.partition]}, in batch {attempt.number}"
                yield Verdict("out of order", group, what)
            reached[seen.partition] = max(reached[seen.partition], seen.offset)


def _check_prompt(evidence: Evidence, group: str, topic: str, deliveries: Sequence[Ownership]) -> Iterator[Verdict]:
    found = [(each, each.received) for each in deliveries]
    yield from check_prompt(evidence, group, topic, found, DRIVER_PATIENCE)


# -- groups -----------------------------------------------------------------------------------------------------------


def check_spark_members(evidence: Evidence) -> Iterator[Verdict]:
    """At least once by all members together; what was committed is not delivered again."""
    for group, lives in evidence.of_kind(*MEMBERS).items():
        topic = lives[0].started["topic"]
        log, commits = evidence.logs[topic], evidence.commits.get(group, ())
        queries = [life for life in lives if life.started["kind"] == "spark_member"]
        peers, strays = ownerships_of([life for life in lives if life.started["kind"] == "spark_peer"])
        attempts = attempts_of(queries)
        yield from strays
        yield from _check_repeated_batches(group, attempts)
        yield from _check_numbers(group, attempts)
        yield from _check_uncommitted(evidence, group, commits, attempts)
        yield from check_order(peers, log)
        yield from check_repeats(group, commits, peers)
        deliveries = [*_deliveries(attempts), *peers]
        yield from check_records(group, log, [(each.life.name, each.partition, each.received) for each in deliveries])
        yield from check_complete(group, log, [(each, each.received) for each in deliveries])
        yield from _check_prompt(evidence, group, topic, deliveries)
        yield from check_commits(evidence, group, log, commits, [(each, each.received) for each in deliveries])


def _check_uncommitted(
    evidence: Evidence, group: str, commits: Sequence[Commit], attempts: Sequence[Attempt]
) -> Iterator[Verdict]:
    """A query does not plan what was committed. After a fault that can last for a session, it may not know yet that it
    has lost a partition."""
    history: dict[int, list[Commit]] = defaultdict(list)
    for commit in commits:
        history[commit.tp[1]].append(commit)
    for attempt in attempts:
        since = attempt.since - 2 * SESSION
        if attempt.is_first or not evidence.keeps_session(attempt.life.client, since, attempt.at):
            continue
        for place in attempt.places:
            found = history[place[0]]
            earlier = bisect_left(found, attempt.since - SESSION, key=lambda each: each.at)
            if earlier and found[earlier - 1].offset > place[1]:
                what = f"{place} was committed before batch {attempt.number} of {attempt.life.name}"
                yield Verdict("delivered again", group, what)


def check_spark_shares(evidence: Evidence) -> Iterator[Verdict]:
    """At least once; a batch that is run again has no records; a completed batch is not delivered again."""
    for group, lives in evidence.of_kind("spark_share").items():
        topic = lives[0].started["topic"]
        log, attempts = evidence.logs[topic], attempts_of(lives)
        yield from _check_numbers(group, attempts)
        numbers: set[int] = set()
        for attempt in attempts:
            if attempt.number in numbers and attempt.rows:
                what = f"{attempt.number} was run again with {len(attempt.rows)} records"
                yield Verdict("repeated batch differs", group, what)
            numbers.add(attempt.number)
        deliveries = _deliveries(attempts)
        yield from check_records(group, log, [(each.life.name, each.partition, each.received) for each in deliveries])
        yield from check_complete(group, log, [(each, each.received) for each in deliveries])
        yield from _check_prompt(evidence, group, topic, deliveries)
        yield from _check_accepted(evidence, group, attempts)
        if left := evidence.left.get(group):
            yield Verdict("never accepted", group, left)


def _check_accepted(evidence: Evidence, group: str, attempts: Sequence[Attempt]) -> Iterator[Verdict]:
    delivered: dict[Place, Attempt] = {}
    for attempt in attempts:
        for place in attempt.places:
            before = delivered.get(place)
            if before is not None and evidence.is_well(attempt.life.client, before.at - 2 * LOCK, attempt.at):
                what = f"{place} in batch {attempt.number}, after batch {before.number}"
                yield Verdict("delivered again", group, what)
            delivered[place] = attempt


def check_query_failures(evidence: Evidence) -> Iterator[Verdict]:
    """A query fails only because of a fault, and sinks copy everything in time."""
    for group, lives in evidence.of_kind(*ONCE, *SINKS, "spark_member", "spark_share").items():
        for life in lives:
            for event in life.events:
                if event.name == "query_failed" and evidence.is_well(life.client, event.at - _FAILS_WITHIN, event.at):
                    yield Verdict("query failed", life.name, event.fields["error"])
        if lives[0].started["kind"] in SINKS and (left := evidence.left.get(group)):
            yield Verdict("not copied in time", group, left)
