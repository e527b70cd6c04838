"""Resets the offsets of a group: collects what `_machines/admin/reset.py` decides on, and writes what it decided.

A plan is applied exactly as it was shown and approved. So `apply` refuses a plan if the group or its backlog has
committed anything since, or if a topic was recreated. After that check the coordinator fences: it accepts the commit
only while the group has no members.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from kio.schema.errors import ErrorCode

from ..._machines.admin.reset import KEEP, PartitionFacts, open_ranges, outdated, planned_change, undecided
from ..._machines.admin.reset_target import ResetTarget, TargetKind
from ..._machines.lanes.commit_metadata import BACKLOG_SUFFIX, CommitMark, is_progress_of
from ..._protocol.codes import kafka_error
from ...admin import OffsetChange, OffsetRange, ResetPlan
from ...errors import ConfigError, HeadraceError, PartialFailureError, StateError
from ...types import OffsetAndMetadata, TopicPartition, Watermarks
from .client import AdminClient
from .groups import Groups, not_empty
from .offsets import GroupCommits
from .share_groups import ShareGroupOffsets
from .topics import Topics

log = logging.getLogger(__name__)

Commits = Mapping[TopicPartition, OffsetAndMetadata]


class Resets:
    def __init__(
        self,
        client: AdminClient,
        topics: Topics,
        groups: Groups,
        offsets: GroupCommits,
        share_offsets: ShareGroupOffsets,
    ) -> None:
        self._client = client
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._share_offsets = share_offsets

    # -- plans ---------------------------------------------------------------------------------------------------------

    async def plan(
        self,
        group: str,
        target: ResetTarget,
        chosen: Collection[TopicPartition | str] | None,
        backlog: str | None,
        may_create: bool,
        timeout: float | None,
    ) -> ResetPlan:
        """`chosen`: topics, and partitions; None for all partitions that the group has committed."""
        left = _Deadline(self._client, timeout)
        kind = await self._kind(group, may_create, left())
        if kind == "share" and target.kind is TargetKind.SHIFT:
            raise ConfigError(f"share group {group!r} has no position to move by records: name an offset or a time")
        found = await self._current(group, kind, left())
        described = await self._topics.describe(_names(found if chosen is None else chosen), left())
        there = {TopicPartition(it.topic, it.partition) for each in described.values() for it in each.partitions}
        if chosen is None:
            # Kafka's own topics are not consumed: the exactly-once sink of Spark keeps its decisions beside them.
            wanted = {tp for tp in found if tp.topic not in described or not described[tp.topic].internal}
        else:
            wanted = _selected(chosen, there, group)
        if not wanted:
            raise HeadraceError(f"group {group!r} has no committed offsets: name the topics to set offsets for")
        logs = await self._topics.bounds(wanted & there, left())
        times = await self._at_time(logs, target, left())
        progress = await self._progress(group, found, left()) if kind != "share" else {}
        changes = []
        for tp in sorted(wanted):
            if tp in logs:
                facts = PartitionFacts(tp, found.get(tp), progress.get(tp), logs[tp], times.get(tp))
                changes.append(planned_change(facts, target, backlog))
            else:
                current = found[tp].offset if tp in found else None
                changes.append(OffsetChange(tp, current, None, "the topic does not exist"))
        if backlog == KEEP and (lost := [each for each in changes if each.new is not None and each.commit is None]):
            raise StateError(
                f"the open ranges of {lost[0].partition} in group {group!r} cannot be parsed, so they cannot be kept: "
                "only 'drop' is possible"
            )
        ids = {name: self._client.cluster.topic_id(name) for name in described}
        return ResetPlan(group, kind, tuple(changes), backlog, ids, _only(wanted, found), _only(wanted, progress))

    async def _kind(self, group: str, may_create: bool, timeout: float) -> str:
        doing = f"reset of group {group}"
        described = await self._groups.describe(group, timeout)
        if described is None:
            if may_create:
                return "classic"
            raise kafka_error(ErrorCode.group_id_not_found, doing, "there is no such group")
        if described.members:
            raise not_empty(group, doing, described.members)
        if described.listing.kind == "streams":
            raise HeadraceError(f"group {group!r} belongs to Kafka Streams: reset it with kafka-streams-groups.sh")
        return described.listing.kind

    async def _current(self, group: str, kind: str, timeout: float) -> Commits:
        if kind != "share":
            return await self._offsets.committed(group, timeout, is_stable=True)
        starts = await self._share_offsets.describe(group, timeout)
        return {tp: OffsetAndMetadata(each.start) for tp, each in starts.items()}

    async def _at_time(
        self, logs: Mapping[TopicPartition, Watermarks], target: ResetTarget, timeout: float
    ) -> dict[TopicPartition, int]:
        if target.kind is not TargetKind.TIME:
            return {}
        asked = dict.fromkeys(logs, target.number)
        found = await self._client.retried("ListOffsets", timeout, lambda: self._topics.offsets_at(asked))
        return {tp: offset for tp, offset in found.items() if offset >= 0}

    async def _progress(self, group: str, found: Commits, timeout: float) -> Commits:
        """The second log of two lanes, for the commits that refer to it."""
        marked = [tp for tp, commit in found.items() if has_token(commit)]
        if not marked:
            return {}
        return _only(marked, await self._offsets.committed(group + BACKLOG_SUFFIX, timeout))

    async def open_ranges(self, group: str, timeout: float | None) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
        """Raises HeadraceError if the ranges of a commit cannot be parsed."""
        left = _Deadline(self._client, timeout)
        found = await self._offsets.committed(group, left())
        marked = {tp: commit for tp, commit in found.items() if commit.metadata}
        if not marked:
            return {}
        progress = await self._progress(group, marked, left())
        ranges = {}
        for tp, log in (await self._topics.bounds(marked, left())).items():
            try:
                ranges[tp] = open_ranges(PartitionFacts(tp, marked[tp], progress.get(tp), log))
            except ValueError as error:
                raise HeadraceError(f"the commit of group {group!r} for {tp} cannot be parsed: {error}") from None
        return {tp: each for tp, each in sorted(ranges.items()) if each}

    # -- changes -------------------------------------------------------------------------------------------------------

    async def apply(self, plan: ResetPlan, timeout: float | None) -> None:
        if plan.needs_decision:
            raise StateError(undecided(plan.group, plan.changes))
        commits = plan.commits
        if not commits:
            return
        left = _Deadline(self._client, timeout)
        now = _only(commits, await self._current(plan.group, plan.kind, left()))
        progress = await self._progress(plan.group, now, left()) if plan.kind != "share" else {}
        if (reason := outdated(plan, now, progress)) is not None:
            raise StateError(reason)
        if plan.kind == "share":
            starts = {tp: commit.offset for tp, commit in commits.items()}
            await self._share_offsets.alter(plan.group, starts, left(), plan.topic_ids)
            return
        try:
            await self._offsets.alter(plan.group, commits, left(), plan.topic_ids)
        except PartialFailureError as error:
            await self._delete_progress(plan, commits.keys() & error.done, progress, left())
            raise
        await self._delete_progress(plan, commits.keys(), progress, left())

    async def _delete_progress(
        self, plan: ResetPlan, done: Collection[TopicPartition], progress: Commits, timeout: float
    ) -> None:
        """Deletes the offsets of the backlog that no commit refers to any more: tools would show an ever growing lag
        for them. One try is enough, because they do no harm."""
        stale = [tp for tp in done if tp in progress and is_progress_of(progress[tp], plan.group)]
        if stale:
            try:
                await self._offsets.delete(plan.group + BACKLOG_SUFFIX, stale, timeout)
            except HeadraceError as error:
                log.info(
                    "cannot delete the offsets of the dropped backlog of %s: %s", ", ".join(map(str, stale)), error
                )


class _Deadline:
    """The seconds that are left for one of several steps."""

    def __init__(self, client: AdminClient, timeout: float | None) -> None:
        self._clock = asyncio.get_running_loop().time
        self._end = self._clock() + (client.config.default_api_timeout_ms / 1000 if timeout is None else timeout)

    def __call__(self) -> float:
        return max(0.0, self._end - self._clock())


def _only(partitions: Collection[TopicPartition], commits: Commits) -> dict[TopicPartition, OffsetAndMetadata]:
    return {tp: commits[tp] for tp in partitions if tp in commits}


def _names(chosen: Collection[TopicPartition | str]) -> set[str]:
    return {each if isinstance(each, str) else each.topic for each in chosen}


def _selected(chosen: Collection[TopicPartition | str], there: set[TopicPartition], group: str) -> set[TopicPartition]:
    """The partitions of the chosen topics. Raises KafkaError for a topic or partition that does not exist."""
    wanted: set[TopicPartition] = set()
    for each in chosen:
        found = {tp for tp in there if tp.topic == each} if isinstance(each, str) else {each} & there
        if not found:
            detail = f"there is no {'topic' if isinstance(each, str) else 'partition'} {each}"
            error = kafka_error(ErrorCode.unknown_topic_or_partition, f"reset of group {group}", detail)
            error.retriable = False
            raise error
        wanted |= found
    return wanted


def has_token(commit: OffsetAndMetadata) -> bool:
    """Whether a commit of either log belongs to two lanes."""
    try:
        return bool(CommitMark.read(commit).token)
    except ValueError:
        return False
