"""One pass over a cluster: all brokers, topics and groups, with a few large requests.

    Metadata                       1 request
    ListGroups                     1 for each broker
    describe, commits, starts      1 for each coordinator and kind of group (500 groups at most)
    ListOffsets                    2 for each leader: beginnings and ends
    DescribeLogDirs                1 for each broker, once a minute, and only if asked for

Commits are read before ends, so that no commit is ahead of the end that it is compared with. A lag is therefore too
large by what was written during the pass, and never negative.

Whatever cannot be read is an error of its row: an unreachable broker, a partition without a leader, a group that this
client may not describe. Its numbers are those of the last pass that could read them (`last_known.py`). The pass fails
only if no broker answers, or if all of them fall silent while it is under way: otherwise the last data of a cluster
that goes away would be a view with nothing but errors.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from .._aio.survey import Survey
from .._aio.survey.found import FoundCluster, FoundGroup, FoundLog, FoundTopic
from .._aio.survey.group_requests import committed, members, share_offsets
from .._aio.survey.log_bounds import EARLIEST, LATEST, offsets
from .._machines.lanes.commit_metadata import BACKLOG_SUFFIX
from .._protocol.codes import code_name, printable
from ..errors import HeadraceError
from ..types import TopicPartition
from .ages import Ages
from .coordinators import OFFSETS_TOPIC, Coordinators
from .group_rows import GroupFacts, LogBounds, aged, checkpoint_views, group_view, is_companion
from .last_known import LastKnown
from .model import SHARE, SPARK, BrokerView, ClusterView, GroupView, LogView, TopicView
from .steady_clock import steady_time

_SIZES_EVERY = 60.0
_EMPTY = {"Empty", "Dead"}

_Brokers = Mapping[int, BrokerView]


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """What is observed."""

    groups: re.Pattern[str] | None = None
    """Only groups whose whole name matches."""
    topics: re.Pattern[str] | None = None
    """Only topics whose whole name matches; also of the partitions of groups."""
    checkpoints: tuple[Path, ...] = ()
    """Directories of Spark checkpoints, each a group for each query in it."""
    with_sizes: bool = False
    """Whether to ask for the sizes of logs."""


class Collector:
    """For one event loop. `async with` closes its connections."""

    def __init__(self, settings: Mapping[str, Any], scope: Scope | None = None, *, timeout: float = 10.0) -> None:
        self._scope = scope or Scope()
        self._survey = Survey(settings, timeout)
        self._ages = Ages(settings)
        self._last_known = LastKnown()
        self._coordinators = Coordinators()
        self._sizes: dict[int, dict[TopicPartition, int]] = {}
        self._sizes_error: str | None = None
        self._sizes_at = -_SIZES_EVERY

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._survey.close()

    async def collect(self) -> ClusterView:
        """One pass. Raises HeadraceError if no broker answers, or each leaves a request unanswered."""
        begun = time.monotonic()
        found = await self._survey.cluster()
        brokers = {node.id: node for node in found.brokers}
        facts, broken = await self._groups(brokers)
        checkpoints = await asyncio.to_thread(checkpoint_views, self._scope.checkpoints)
        topics = [topic for topic in found.topics if _matches(self._scope.topics, topic.name)]
        logs = [log for topic in topics for log in topic.logs if log.leader in brokers]
        begins, ends = await asyncio.gather(offsets(self._survey, logs, EARLIEST), offsets(self._survey, logs, LATEST))
        if brokers and self._survey.silent.keys() >= brokers.keys():
            raise next(iter(self._survey.silent.values()))
        at, steady = time.time(), steady_time()
        if self._scope.with_sizes:
            await self._read_sizes(brokers)
        missing = self._last_known.missing_brokers(found.brokers, found.topics)
        every_log = [log.tp for topic in topics for log in topic.logs]
        kept = self._last_known.note_bounds(at, every_log, begins, ends)
        bounds = LogBounds(topics, begins, ends, self._scope.topics, kept, missing)
        known_ends = {tp: end for tp, end in ends.items() if isinstance(end, int)}
        ages = self._ages
        ages.begin(steady, known_ends, at - steady)
        groups = [self._complete(at, group_view(it, bounds, ages.seconds), bounds, it) for it in facts]
        groups += [self._complete(at, view(bounds, ages.seconds), bounds) for view in checkpoints]
        groups += self._absent(at, groups, found, broken, missing)
        groups.sort(key=lambda it: it.key)
        if better := set(await ages.read()):
            groups = [self._aged(group, better) for group in groups]
        views = {topic.name: self._topic(topic, bounds, begins, ends) for topic in topics}
        return ClusterView(
            at,
            time.monotonic() - begun,
            found.id,
            (
                *(
                    BrokerView(it.id, it.host, it.port, it.rack, it.id == found.controller, broken.get(it.id))
                    for it in sorted(found.brokers)
                ),
                *missing.values(),
            ),
            views,
            tuple(groups),
            self._problems(found, broken, facts),
            steady,
        )

    def _complete(self, at: float, group: GroupView, bounds: LogBounds, facts: GroupFacts | None = None) -> GroupView:
        """The group, with what earlier passes know of the parts that this one could not read."""
        is_damaged = facts is None and group.error is not None and not group.has_nothing
        return self._last_known.group(
            at,
            group,
            bounds.exists,
            without_members=facts is not None and isinstance(facts.members, HeadraceError),
            without_commits=is_damaged or (facts is not None and isinstance(facts.commits, HeadraceError)),
        )

    def _absent(
        self,
        at: float,
        groups: Collection[GroupView],
        found: FoundCluster,
        broken: Mapping[int, str],
        missing: _Brokers,
    ) -> list[GroupView]:
        """The groups that nobody has listed, although they may exist."""
        offsets_topic = next((topic.logs for topic in found.topics if topic.name == OFFSETS_TOPIC), ())
        brokers = {it.id: BrokerView(it.id, it.host, it.port) for it in found.brokers} | {**missing}
        self._coordinators.note(at, offsets_topic, brokers, broken)
        damaged = [it.name for it in groups if it.kind == SPARK and it.error is not None and not it.has_nothing]

        def why_away(group: GroupView) -> str | None:
            if group.kind != SPARK:
                return self._coordinators.why_away(group)
            parent = next((it for it in damaged if group.name.startswith(f"{it}/")), None)
            return None if parent is None else f"{parent} cannot be read"

        return self._last_known.absent_groups({it.key for it in groups}, why_away)

    async def _groups(self, brokers: Iterable[int]) -> tuple[list[GroupFacts], dict[int, str]]:
        """What is known of each group, and the errors of brokers that did not list theirs."""
        listed = await self._survey.groups(brokers)
        broken = {node: str(it) for node, it in listed.items() if isinstance(it, HeadraceError)}
        found: dict[str, FoundGroup] = {}
        for answer in listed.values():
            if not isinstance(answer, HeadraceError):
                # A group that moves between two coordinators may be listed by both.
                found.update((group.name, group) for group in answer)
        wanted = {name: it for name, it in found.items() if self._is_wanted(name)}
        share = [it for it in wanted.values() if it.kind == SHARE]
        others = [it for it in wanted.values() if it.kind != SHARE]
        described, offsets_of, starts = await asyncio.gather(
            members(self._survey, [it for it in wanted.values() if it.state not in _EMPTY]),
            committed(self._survey, others),
            share_offsets(self._survey, share),
        )
        facts = []
        for name in sorted(wanted):
            companion = offsets_of.get(name + BACKLOG_SUFFIX)
            commits = starts.get(name) if wanted[name].kind == SHARE else offsets_of.get(name)
            assert commits is not None
            facts.append(
                GroupFacts(
                    wanted[name],
                    described.get(name),
                    commits,
                    None if isinstance(companion, HeadraceError) else companion,
                )
            )
        return [it for it in facts if not self._is_hidden(it, wanted)], broken

    def _is_wanted(self, name: str) -> bool:
        """Whether the group matches, or has the backlog lane of one that does."""
        pattern = self._scope.groups
        return _matches(pattern, name) or (
            name.endswith(BACKLOG_SUFFIX) and _matches(pattern, name.removesuffix(BACKLOG_SUFFIX))
        )

    def _is_hidden(self, facts: GroupFacts, all_groups: Mapping[str, FoundGroup]) -> bool:
        """Whether the group is the second commit log of another one (KIP-333), or was only asked for to find out."""
        name = facts.found.name
        base = name.removesuffix(BACKLOG_SUFFIX)
        if name == base:
            return False
        return not _matches(self._scope.groups, name) or (base in all_groups and is_companion(facts))

    async def _read_sizes(self, brokers: Iterable[int]) -> None:
        if time.monotonic() - self._sizes_at < _SIZES_EVERY:
            return
        self._sizes_at = time.monotonic()
        found = await self._survey.sizes(brokers)
        self._sizes = {node: it for node, it in found.items() if not isinstance(it, HeadraceError)}
        errors = sorted({str(it) for it in found.values() if isinstance(it, HeadraceError)})
        self._sizes_error = f"sizes of topics are unknown: {'; '.join(errors)}" if errors else None

    def _aged(self, group: GroupView, partitions: Collection[TopicPartition]) -> GroupView:
        """The group with the new ages of these partitions."""
        if not any(row.tp in partitions for row in group.partitions):
            return group
        rows = [
            it
            for row in group.partitions
            for it in (aged([row], self._ages.seconds) if row.tp in partitions else [row])
        ]
        return dataclasses.replace(group, partitions=tuple(rows))

    def _topic(
        self,
        topic: FoundTopic,
        bounds: LogBounds,
        begins: Mapping[TopicPartition, int | HeadraceError],
        ends: Mapping[TopicPartition, int | HeadraceError],
    ) -> TopicView:
        error = f"{topic.name}: {code_name(topic.code)}" if topic.code else None
        logs = tuple(self._log(log, bounds, begins.get(log.tp), ends.get(log.tp)) for log in topic.logs)
        rate = self._ages.times.rate([log.tp for log in topic.logs])
        return TopicView(topic.name, logs, topic.is_internal, rate, error)

    def _log(
        self,
        log: FoundLog,
        bounds: LogBounds,
        begin: int | HeadraceError | None,
        end: int | HeadraceError | None,
    ) -> LogView:
        is_known = isinstance(begin, int) and isinstance(end, int)
        error = None if is_known else str(bounds.of(log.tp))
        kept = None if is_known else bounds.kept(log.tp)
        if kept is not None:
            begin, end = kept.log
        leader = None if bounds.is_leaderless(log.tp) else log.leader
        sizes = self._sizes.get(log.leader)
        return LogView(
            log.tp.partition,
            leader,
            log.replicas,
            log.in_sync,
            log.offline,
            begin if isinstance(begin, int) else None,
            end if isinstance(end, int) else None,
            None if sizes is None else sizes.get(log.tp),
            error,
            None if kept is None else kept.since,
        )

    def _problems(self, found: FoundCluster, broken: Mapping[int, str], facts: Sequence[GroupFacts]) -> tuple[str, ...]:
        problems = [
            f"broker {node} does not list its groups, whose last known state is shown: {error}"
            for node, error in sorted(broken.items())
        ]
        if self._sizes_error:
            problems.append(self._sizes_error)
        return tuple(printable(it) for it in problems)


def _matches(pattern: re.Pattern[str] | None, name: str) -> bool:
    return pattern is None or pattern.fullmatch(name) is not None
