"""Promises of consumers that own partitions: at least once, in order, nothing again that was committed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from headrace import OffsetAndMetadata
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import CommitMark
from support.ledgers.commit_history import Commit

from ..evidence import Evidence, TopicLog, Verdict
from ..identity import Identity, key_of
from ..ledger import Life
from .ownerships import Delivery, Ownership, check_single_owner, ownerships_of
from .writes import visible_since

RUNS = ("done", "exactly_once")
"""Kinds with run(), whose records are finished when they are handled, in the order of their keys."""
KINDS = ("assigned", "eager", "cooperative", "consumer", *RUNS)
SESSION = 10_000.0
"""The session timeout of all groups, in milliseconds."""
_SLACK = 2.0
"""Milliseconds: brokers round times down."""
UNANSWERED = 20_000.0
"""Milliseconds after a fault in which a broker may process a request whose connection broke."""
_NEVER_LATE = ("exactly_once", "spark_member")
"""The first commits in transactions, and brokers reject requests of an earlier transaction (KIP-890). For the second,
the ledgers do not tell when it owned a partition."""


def check_groups(evidence: Evidence) -> Iterator[Verdict]:
    for group, lives in evidence.of_kind(*KINDS).items():
        kind, topic = lives[0].started["kind"], lives[0].started["topic"]
        log, commits = evidence.logs[topic], evidence.commits.get(group, ())
        ownerships, strays = ownerships_of(lives)
        yield from strays
        finished = [_finished(kind, ownership) for ownership in ownerships]
        yield from check_records(group, log, [(each.life.name, each.partition, each.received) for each in ownerships])
        yield from check_complete(group, log, zip(ownerships, finished, strict=True))
        yield from check_prompt(evidence, group, topic, zip(ownerships, finished, strict=True))
        if kind in RUNS:
            yield from _check_keys(ownerships)
            yield from _check_revokes(ownerships)
        else:
            yield from check_order(ownerships, log)
        yield from check_commits(evidence, group, log, commits, zip(ownerships, finished, strict=True))
        yield from check_repeats(group, commits, ownerships)
        yield from check_confirmed(lives, commits)
        if kind != "assigned":  # nothing keeps two assigned consumers apart
            yield from check_single_owner(evidence, ownerships, SESSION)


def _finished(kind: str, ownership: Ownership) -> list[Delivery]:
    """The deliveries that may be committed."""
    return ownership.handled if kind in RUNS else ownership.received


def check_records(
    group: str, log: TopicLog, deliveries: Iterable[tuple[str, int, Sequence[Delivery]]]
) -> Iterator[Verdict]:
    """Every record is the one that was written there, and no record of an aborted transaction."""
    for who, partition, received in deliveries:
        for delivery in received:
            place = (partition, delivery.offset)
            if log.records.get(place) != delivery.identity:
                what = f"{delivery.identity} at offset {delivery.offset} of {partition}: {log.records.get(place)}"
                yield Verdict("not what was written", f"{group}, {who}", what)
            elif place not in log.visible:
                yield Verdict("of an aborted transaction", f"{group}, {who}", f"{delivery.identity} at {place}")


def check_complete(
    group: str, log: TopicLog, deliveries: Iterable[tuple[Ownership, Sequence[Delivery]]]
) -> Iterator[Verdict]:
    seen = {(ownership.partition, each.offset) for ownership, found in deliveries for each in found}
    for partition, offset in sorted(log.visible - seen):
        yield Verdict("never delivered", group, f"{log.records[partition, offset]} at offset {offset} of {partition}")


def check_prompt(
    evidence: Evidence,
    group: str,
    topic: str,
    deliveries: Iterable[tuple[Ownership, Sequence[Delivery]]],
    more_patience: float = 0.0,
) -> Iterator[Verdict]:
    """Nobody is stuck for longer than the timeouts add up to."""
    patience = evidence.patience + more_patience
    first: dict[Identity, float] = {}
    for _, found in deliveries:
        for delivery in found:
            first[delivery.identity] = min(delivery.at, first.get(delivery.identity, delivery.at))
    since = visible_since(evidence, topic)
    late = {each: at - since[each] for each, at in first.items() if each in since and at - since[each] > patience}
    if late:
        worst = max(late, key=late.__getitem__)
        what = f"{len(late)} records were late; {worst} by {late[worst] / 1000:.1f} s"
        yield Verdict("stuck", group, f"{what}, allowed are {patience / 1000:g} s")


def check_order(ownerships: Iterable[Ownership], log: TopicLog) -> Iterator[Verdict]:
    for ownership in ownerships:
        visible = log.visible_offsets.get(ownership.partition, [])
        for before, after in pairwise(ownership.received):
            if after.offset <= before.offset:
                yield Verdict("out of order", ownership.life.name, f"{after.offset} after {before.offset}: {ownership}")
            elif skipped := bisect_left(visible, after.offset) - bisect_right(visible, before.offset):
                what = f"{skipped} records between {before.offset} and {after.offset}: {ownership}"
                yield Verdict("skipped", ownership.life.name, what)


def _check_keys(ownerships: Iterable[Ownership]) -> Iterator[Verdict]:
    """Records of a key are handled in order; the key of a record is that of its producer and number."""
    for ownership in ownerships:
        last: dict[object, int] = defaultdict(lambda: -1)
        for delivery in ownership.handled:
            key = key_of(delivery.identity)
            if delivery.offset <= last[key]:
                what = f"{delivery.offset} of key {key} was handled after {last[key]}: {ownership}"
                yield Verdict("out of order", ownership.life.name, what)
            last[key] = max(last[key], delivery.offset)


def _check_revokes(ownerships: Iterable[Ownership]) -> Iterator[Verdict]:
    """run() completes a revoke only after the handlers of the partition have returned, and starts none later."""
    for ownership in ownerships:
        late = [each.offset for each in (*ownership.received, *ownership.handled) if each.at > ownership.over]
        if late and ownership.ending == "revoked":
            yield Verdict("handled after the revoke", ownership.life.name, f"{late}: {ownership}")


# -- commits ----------------------------------------------------------------------------------------------------------


def check_commits(
    evidence: Evidence,
    group: str,
    log: TopicLog,
    commits: Sequence[Commit],
    deliveries: Iterable[tuple[Ownership, Sequence[Delivery]]],
) -> Iterator[Verdict]:
    """A committed offset never decreases, never passes a record that was not finished by then, and reaches the end."""
    deliveries = list(deliveries)
    yield from _check_monotonic(evidence, group, commits, [ownership for ownership, _ in deliveries])
    first: dict[tuple[int, int], float] = {}
    for ownership, found in deliveries:
        for delivery in found:
            place = (ownership.partition, delivery.offset)
            first[place] = min(delivery.at, first.get(place, delivery.at))
    finished = {
        partition: list(accumulate((first.get((partition, offset), float("inf")) for offset in offsets), max))
        for partition, offsets in log.visible_offsets.items()
    }
    committed: dict[int, int] = defaultdict(int)
    for commit in commits:
        partition = commit.tp[1]
        committed[partition] = commit.offset
        below = bisect_left(log.visible_offsets.get(partition, []), commit.offset)
        if below and finished[partition][below - 1] > commit.at + _SLACK:
            what = f"offset {commit.offset} of {partition} was committed before all records below it were finished"
            yield Verdict("committed too much", group, what)
    for partition, offsets in log.visible_offsets.items():
        if committed[partition] <= offsets[-1]:
            what = f"{committed[partition]} of partition {partition}, whose last record is {offsets[-1]}"
            yield Verdict("not committed", group, what)


def _check_monotonic(
    evidence: Evidence, group: str, commits: Sequence[Commit], ownerships: Sequence[Ownership]
) -> Iterator[Verdict]:
    begins: dict[int, list[float]] = defaultdict(list)
    for ownership in sorted(ownerships, key=lambda each: each.begun):
        begins[ownership.partition].append(ownership.begun)
    highest: dict[int, Commit] = {}
    earlier: dict[int, list[Commit]] = defaultdict(list)
    for commit in commits:
        partition = commit.tp[1]
        found = earlier[partition]
        if found and bisect_right(begins[partition], found[-1].at) < bisect_right(begins[partition], commit.at):
            highest[partition] = found[-1]  # a new owner resumes there, even if it was late
        before = highest.setdefault(partition, commit)
        if commit.offset >= before.offset and _done(before) <= _done(commit):
            highest[partition] = commit
        elif not _is_late(evidence, before, commit, found, ownerships):
            yield Verdict("commit decreased", group, f"{partition}: {commit.offset} after {before.offset}")
        found.append(commit)


def _is_late(
    evidence: Evidence,
    before: Commit,
    commit: Commit,
    earlier: Sequence[Commit],
    ownerships: Sequence[Ownership],
) -> bool:
    """Whether this may be a commit without a response that the broker processed after the owner's next one.

    Brokers keep the order of requests on one connection only, and a client whose connection breaks cannot withdraw
    what it has sent. The coordinator rejects late commits of a former owner. The next commit is compared with the
    highest one again, so it corrects the offset.
    """
    for ownership in ownerships:
        if ownership.partition != commit.tp[1] or ownership.life.started["kind"] in _NEVER_LATE:
            continue
        since = max(commit.at - UNANSWERED, ownership.begun)
        answered = max((each.offset for each in earlier if each.at < since), default=0)
        is_of_owner = ownership.begun <= before.at + _SLACK and ownership.over >= commit.at
        if is_of_owner and commit.offset >= answered:
            return not evidence.is_well(ownership.life.client, commit.at - UNANSWERED, commit.at)
    return False


def check_repeats(group: str, commits: Sequence[Commit], ownerships: Iterable[Ownership]) -> Iterator[Verdict]:
    """What was committed before an ownership is not delivered in it."""
    history: dict[int, list[Commit]] = defaultdict(list)
    for commit in commits:
        history[commit.tp[1]].append(commit)
    for ownership in ownerships:
        found = history[ownership.partition]
        earlier = bisect_left(found, ownership.begun - _SLACK, key=lambda each: each.at)
        if earlier:
            done = _done(found[earlier - 1])
            again = [each.offset for each in ownership.received if not done.open(each.offset, each.offset + 1)]
            if again:
                what = f"{len(again)} records from {again[0]} on were committed before: {ownership}"
                yield Verdict("delivered again", group, what)


def _done(commit: Commit) -> OffsetSet:
    return CommitMark.read(OffsetAndMetadata(commit.offset, commit.metadata)).done


def check_confirmed(lives: Iterable[Life], commits: Sequence[Commit]) -> Iterator[Verdict]:
    """A commit that a client got a response for is in the group's log."""
    accepted: dict[tuple[int, int], float] = {}
    for each in commits:
        accepted.setdefault((each.tp[1], each.offset), each.at)
    for life in lives:
        for event in life.events:
            if event.name == "committed":
                for partition, offset in event.fields["offsets"]:
                    if accepted.get((partition, offset), float("inf")) > event.at + _SLACK:
                        yield Verdict("commit lost", life.name, f"offset {offset} of partition {partition}")
