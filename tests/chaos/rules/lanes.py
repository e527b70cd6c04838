"""Promises of consumers with two lanes: those of `LaneLedger`, and that nobody is stuck."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace import OffsetAndMetadata
from headrace._machines.lanes.commit_metadata import BACKLOG_SUFFIX, CommitMark
from support.ledgers.commit_history import Commit
from support.ledgers.lane_ledger import LaneCommit, LaneLedger, Logs

from ..evidence import Evidence, TopicLog, Verdict
from ..ledger import Life
from .groups import SESSION, UNANSWERED, check_complete, check_prompt, check_records
from .ownerships import Ownership, check_single_owner, ownerships_of

KINDS = ("lanes",)


def check_lanes(evidence: Evidence) -> Iterator[Verdict]:
    for group, lives in evidence.of_kind(*KINDS).items():
        topic = lives[0].started["topic"]
        log = evidence.logs[topic]
        ownerships, strays = ownerships_of(lives)
        yield from strays
        deliveries = [(each, each.received) for each in ownerships]
        yield from check_records(group, log, [(each.life.name, each.partition, each.received) for each in ownerships])
        yield from check_complete(group, log, deliveries)
        yield from check_prompt(evidence, group, topic, deliveries)
        yield from check_single_owner(evidence, ownerships, SESSION)
        yield from _check_lane_order(ownerships)
        yield from _check_ledger(group, lives, evidence.commits, log)
        yield from _check_monotonic(evidence, group, ownerships)


def _check_lane_order(ownerships: Iterable[Ownership]) -> Iterator[Verdict]:
    for ownership in ownerships:
        last: dict[str | int | None, int] = defaultdict(lambda: -1)
        for delivery in ownership.received:
            if delivery.offset <= last[delivery.lane]:
                what = f"{delivery.offset} of lane {delivery.lane} after {last[delivery.lane]}: {ownership}"
                yield Verdict("out of order", ownership.life.name, what)
            last[delivery.lane] = delivery.offset


def _check_ledger(
    group: str, lives: Sequence[Life], commits: Mapping[str, Sequence[Commit]], log: TopicLog
) -> Iterator[Verdict]:
    """The ranges of lanes are disjoint; both commit logs together never pass an undelivered record; nothing that they
    mark as done is delivered again."""
    ledger = LaneLedger()
    for life in lives:
        for said in _as_lane_events(life):
            try:
                ledger.take(life.client, said)
            except KeyError:  # records of a partition that it does not own: `ownerships_of` has found that
                continue
    marks = _marks(group, commits)
    for rule, check in (
        ("lanes overlap", ledger.check_ownerships),
        ("lane commits", lambda: ledger.check_commits(marks)),
    ):
        try:
            check()
        except AssertionError as problem:
            yield Verdict(rule, group, str(problem))
    logs = Logs(marks)
    for partition, offsets in log.visible_offsets.items():
        if left := logs.done(partition).open(offsets[0], offsets[-1] + 1):
            yield Verdict("not committed", group, f"{left} of partition {partition}")


def _marks(group: str, commits: Mapping[str, Sequence[Commit]]) -> list[LaneCommit]:
    """The commits of both logs, in the order in which they were accepted."""
    marks = [
        LaneCommit(each.at, is_second, each.tp[1], _mark(each), each.metadata)
        for is_second, name in ((False, group), (True, group + BACKLOG_SUFFIX))
        for each in commits.get(name, ())
    ]
    return sorted(marks, key=lambda each: (each.at, not each.is_second))


def _check_monotonic(evidence: Evidence, group: str, ownerships: Sequence[Ownership]) -> Iterator[Verdict]:
    """Both logs together never forget a record, except by a late commit of the owner: see `groups`."""
    logs = Logs()
    for commit in _marks(group, evidence.commits):
        before = logs.done(commit.partition)
        logs.take(commit)
        forgotten = before - logs.done(commit.partition)
        owners = [
            each.life.client
            for each in ownerships
            if each.partition == commit.partition and each.begun <= commit.at <= each.over
        ]
        if forgotten and all(evidence.is_well(client, commit.at - UNANSWERED, commit.at) for client in owners):
            yield Verdict("commit decreased", group, f"{forgotten} of partition {commit.partition} was done before")


def _mark(commit: Commit) -> CommitMark:
    return CommitMark.read(OffsetAndMetadata(commit.offset, commit.metadata))


def _as_lane_events(life: Life) -> Iterator[dict[str, object]]:
    for event in life.events:
        # The coordinator's times are whole milliseconds, rounded down.
        said = {"at": int(event.at), "life": life.number}
        if event.name == "assigned":
            yield {**said, "name": "assigned", "partitions": event.fields["partitions"]}
        elif event.name in ("revoked", "lost"):
            yield {**said, "name": "gave_up", "partitions": event.fields["partitions"]}
        elif event.name == "received":
            lane = event.fields.get("lane")
            runs = [(lane, run[0], run[1], run[1] + run[2]) for run in event.fields["runs"]]
            yield {**said, "name": "handed", "runs": runs}
