"""Turns what brokers and checkpoints say of a group into its view. Nothing here asks a broker or reads a clock."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from .._aio.survey.found import FoundGroup, FoundMembers, FoundShareOffset, FoundTopic
from .._machines.admin.reset import is_sink_decision
from .._machines.lanes.commit_metadata import CommitMark
from ..errors import HeadraceError
from ..types import OffsetAndMetadata, TopicPartition, Watermarks
from .checkpoints import QueryCheckpoint, read_checkpoints
from .lag import done_rows, plain_row, progress_in, rows_of, uncommitted_row, unread_row
from .last_known import KeptBounds, leader_error
from .model import SHARE, SPARK, BrokerView, GroupView, MemberView, PartitionView

Commit = OffsetAndMetadata | FoundShareOffset | HeadraceError
Owner = tuple[str, str]
Age = Callable[[TopicPartition, int, int], float | None]
"""The age of the record at an offset, which is below the second one: see `Ages.seconds`."""


_NOBODY: tuple[str | None, str | None] = (None, None)


@dataclasses.dataclass(frozen=True, slots=True)
class GroupFacts:
    """The answers about one group."""

    found: FoundGroup
    members: FoundMembers | HeadraceError | None
    """None if the group is empty, so that it was not asked for."""
    commits: Mapping[TopicPartition, Commit] | HeadraceError
    backlog: Mapping[TopicPartition, OffsetAndMetadata] | None = None
    """The commits of the second log (KIP-333)."""


class LogBounds:
    """Beginnings and ends of the logs in scope, with the reason where they are unknown, and the last known ones."""

    def __init__(
        self,
        topics: Iterable[FoundTopic],
        begins: Mapping[TopicPartition, int | HeadraceError],
        ends: Mapping[TopicPartition, int | HeadraceError],
        pattern: re.Pattern[str] | None,
        kept: Mapping[TopicPartition, KeptBounds] | None = None,
        missing: Mapping[int, BrokerView] | None = None,
    ) -> None:
        """`missing` are the brokers that are not in the cluster now."""
        self._logs = {topic.name: topic.logs for topic in topics}
        self._kept = kept or {}
        self._missing = missing or {}
        self._begins = begins
        self._ends = ends
        self._pattern = pattern

    def is_in_scope(self, topic: str) -> bool:
        return topic in self._logs or self._pattern is None or self._pattern.fullmatch(topic) is not None

    def of(self, tp: TopicPartition) -> Watermarks | str:
        begin, end = self._begins.get(tp), self._ends.get(tp)
        if isinstance(begin, int) and isinstance(end, int):
            # If records were deleted after the end was read, the beginning may be beyond it. The end is there by now.
            return Watermarks(begin, max(begin, end))
        if error := next((it for it in (end, begin) if isinstance(it, HeadraceError)), None):
            return str(error)
        if self.exists(tp):
            return leader_error(self._logs[tp.topic][tp.partition], self._missing)
        return "the partition does not exist any more, or this client may not describe its topic"

    def kept(self, tp: TopicPartition) -> KeptBounds | None:
        """The last known bounds of a log that this pass could not read."""
        return self._kept.get(tp)

    def exists(self, tp: TopicPartition) -> bool:
        return tp.partition < len(self._logs.get(tp.topic, ()))

    def is_leaderless(self, tp: TopicPartition) -> bool:
        return tp not in self._ends and self.exists(tp)


def group_view(facts: GroupFacts, bounds: LogBounds, age: Age) -> GroupView:
    found, described = facts.found, facts.members
    members: tuple[MemberView, ...] = ()
    state, assignor, errors = found.state, "", []
    if isinstance(described, FoundMembers):
        members = tuple(sorted((MemberView(*it) for it in described.members), key=lambda it: (it.owner, it.id)))
        state, assignor = described.state or state, described.assignor
    elif described is not None:
        errors.append(str(described))
    commits: Mapping[TopicPartition, Commit] = {}
    if isinstance(facts.commits, HeadraceError):
        errors.append(str(facts.commits))
    else:
        commits = {tp: it for tp, it in facts.commits.items() if not _is_decision(it)}
    owners: dict[TopicPartition, Owner] = {}
    for it in members:
        owners |= dict.fromkeys(it.partitions, (it.owner, it.id))
    in_scope = [tp for tp in {**commits, **owners} if bounds.is_in_scope(tp.topic)]
    row_of = _share_rows if found.kind == SHARE else _commit_rows
    rows: list[PartitionView] = []
    for tp in sorted(in_scope):
        log = bounds.of(tp)
        commit = commits.get(tp)
        if isinstance(commit, OffsetAndMetadata) and not commit.metadata and not isinstance(log, str):
            # By far the most frequent row.
            start, end = max(commit.offset, log.low), log.high
            seconds = age(tp, start, end) if start < end else None
            owner, member = owners.get(tp, _NOBODY)
            rows.append(plain_row(tp, commit.offset, log, None, owner, member, seconds))
        else:
            kept = bounds.kept(tp)
            known = log if kept is None else kept.log
            found_rows = row_of(tp, commit, facts, known, owners.get(tp), bounds.is_leaderless(tp))
            rows += aged(found_rows if kept is None else _of_kept(found_rows, kept, log, bounds.is_leaderless(tp)), age)
    has_nothing = not rows and not errors
    if has_nothing:
        errors.append(_nothing_to_show(found.kind, bool(commits or owners)))
    error = "; ".join(errors) or None
    return GroupView(found.name, found.kind, state, members, tuple(rows), assignor, found.node, error, has_nothing)


def _of_kept(
    rows: Iterable[PartitionView], kept: KeptBounds, error: Watermarks | str, is_leaderless: bool
) -> list[PartitionView]:
    """The rows that were made with the last known bounds of a log. Its end may be higher by now: a commit beyond the
    known one proves nothing but that."""
    return [
        dataclasses.replace(
            row,
            end=row.next if row.is_beyond else row.end,
            is_leaderless=is_leaderless,
            stale_since=kept.since,
            error=row.error or str(error),
        )
        for row in rows
    ]


def _is_decision(commit: Commit) -> bool:
    return isinstance(commit, OffsetAndMetadata) and bool(commit.metadata) and is_sink_decision(commit)


def aged(rows: Iterable[PartitionView], age: Age) -> list[PartitionView]:
    return [
        dataclasses.replace(row, seconds=age(row.tp, row.next, row.end))
        if row.lag and row.next is not None and row.end is not None and row.next < row.end
        else row
        for row in rows
    ]


def _nothing_to_show(kind: str, has_some: bool) -> str:
    if has_some:
        return "reads none of the chosen topics"
    if kind == SHARE:
        return "has received no records yet"
    return "has no committed offsets, or none of topics that this client may describe"


def _commit_rows(
    tp: TopicPartition,
    commit: Commit | None,
    facts: GroupFacts,
    log: Watermarks | str,
    owner: Owner | None,
    is_leaderless: bool,
) -> list[PartitionView]:
    name, member = owner or (None, None)
    assert commit is None or isinstance(commit, OffsetAndMetadata)
    if isinstance(log, str):
        offset = None if commit is None else commit.offset
        return [_unreadable(tp, offset, log, owner, is_leaderless)]
    if commit is None:
        return [uncommitted_row(tp, log, name, member)]
    try:
        first = CommitMark.read(commit)
    except ValueError as error:
        return [_unreadable(tp, commit.offset, f"the commit cannot be parsed: {error}", owner, False)]
    return rows_of(tp, first, progress_in((facts.backlog or {}).get(tp)), log, name, member)


def _share_rows(
    tp: TopicPartition,
    commit: Commit | None,
    facts: GroupFacts,
    log: Watermarks | str,
    owner: Owner | None,
    is_leaderless: bool,
) -> list[PartitionView]:
    name, member = owner or (None, None)
    start = commit.start if isinstance(commit, FoundShareOffset) else None
    if isinstance(commit, HeadraceError) or isinstance(log, str):
        return [_unreadable(tp, start, str(commit if isinstance(commit, HeadraceError) else log), owner, is_leaderless)]
    if commit is None:
        # Nobody knows before the first acknowledgement where the group starts: share.auto.offset.reset decides.
        row = unread_row(tp, log, name or "", member)
        return [row if log.low == log.high else dataclasses.replace(row, next=None, lag=None)]
    assert isinstance(commit, FoundShareOffset)
    row = plain_row(tp, commit.start, log, commit.lag, name, member)
    if commit.lag is None:
        return [row]
    return [dataclasses.replace(row, completed=max(0, log.high - (row.next or 0) - commit.lag))]


def _unreadable(
    tp: TopicPartition, committed: int | None, error: str, owner: Owner | None, is_leaderless: bool
) -> PartitionView:
    name, member = owner or (None, None)
    return PartitionView(
        tp, committed=committed, next=committed, owner=name, member=member, is_leaderless=is_leaderless, error=error
    )


def is_companion(facts: GroupFacts) -> bool:
    """Whether all commits of the group are progress of a backlog lane."""
    if isinstance(facts.commits, HeadraceError) or facts.found.kind == SHARE or facts.members is not None:
        return False
    try:
        return all(
            isinstance(it, OffsetAndMetadata) and bool(CommitMark.read(it).token) for it in facts.commits.values()
        )
    except ValueError:
        return False


# -- checkpoints -------------------------------------------------------------------------------------------------

CheckpointView = Callable[[LogBounds, Age], GroupView]


def checkpoint_views(paths: Collection[Path]) -> list[CheckpointView]:
    """Reads these directories now. Each result makes the view of one query, when the bounds are known. A query that is
    in several of them has one."""
    found: list[CheckpointView] = []
    seen: set[Path] = set()
    for path in dict.fromkeys(paths):
        try:
            queries = read_checkpoints(path)
        except (HeadraceError, OSError, ValueError, RecursionError) as error:  # damaged, or half written
            found.append(_failed(str(path), str(error)))
            continue
        # Queries of a pipeline may read tables only. One without a finished batch may read anything.
        of_kafka = [query for query in queries if query.done or query.batch is None]
        for query in of_kafka:
            if (place := query.path.resolve()) in seen:
                continue
            seen.add(place)
            name = str(path) if len(queries) == 1 else str(path / query.name)
            found.append(_query(name, query))
        if not of_kafka:
            found.append(_failed(str(path), "has no finished batch of a Kafka source"))
    return found


def _failed(name: str, error: str) -> CheckpointView:
    return lambda bounds, age: GroupView(name, SPARK, "", error=error)


def _query(name: str, query: QueryCheckpoint) -> CheckpointView:
    def view(bounds: LogBounds, age: Age) -> GroupView:
        rows: list[PartitionView] = []
        for tp, done in sorted(query.done.items()):
            if bounds.is_in_scope(tp.topic):
                log = bounds.of(tp)
                is_leaderless = bounds.is_leaderless(tp)
                if isinstance(log, str) and (kept := bounds.kept(tp)) is not None:
                    rows += aged(_of_kept(done_rows(tp, done, kept.log), kept, log, is_leaderless), age)
                elif isinstance(log, str):
                    rows.append(_unreadable(tp, done.low, log, None, is_leaderless))
                else:
                    rows += aged(done_rows(tp, done, log), age)
        state = "no finished batch" if query.batch is None else f"batch {query.batch}"
        error = "reads none of the chosen topics" if query.done and not rows else None
        return GroupView(name, SPARK, state, partitions=tuple(rows), error=error, has_nothing=error is not None)

    return view
