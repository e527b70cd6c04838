"""What earlier passes knew of whatever the latest one could not read. Nothing here does I/O or reads a clock.

    a log without a leader, or whose leader is silent     its last known beginning and end
    commits or members that cannot be read                those of the last pass that could
    a group whose coordinator is away                     all of it
    a broker that holds replicas, and is gone             its address

An outage must not look like progress: a lag that nobody can read does not fall. Values that are kept have
`stale_since`, the time of the pass that read them. What does not exist any more is forgotten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from .._aio.survey.found import FoundLog, FoundTopic
from ..errors import HeadraceError
from ..types import Node, TopicPartition, Watermarks
from .model import BrokerView, GroupKey, GroupView, PartitionView

Bounds = Mapping[TopicPartition, int | HeadraceError]
MISSING = "it is down, or cannot reach the controller"


class KeptBounds(NamedTuple):
    log: Watermarks
    since: float


class LastKnown:
    """For one cluster. In each pass: `note_bounds`, then `group` for each group, then `absent_groups`."""

    def __init__(self) -> None:
        self._at = 0.0
        self._begins: Bounds = {}
        self._ends: Bounds = {}
        self._kept: dict[TopicPartition, KeptBounds] = {}
        self._groups: dict[GroupKey, tuple[GroupView, float]] = {}
        self._brokers: dict[int, Node] = {}

    def note_bounds(
        self, at: float, partitions: Iterable[TopicPartition], begins: Bounds, ends: Bounds
    ) -> Mapping[TopicPartition, KeptBounds]:
        """Takes what a pass has read of all partitions that exist. Returns the last known bounds of the others."""
        kept: dict[TopicPartition, KeptBounds] = {}
        for tp in partitions:
            if isinstance(ends.get(tp), int) and isinstance(begins.get(tp), int):
                continue
            begin, end = self._begins.get(tp), self._ends.get(tp)
            if isinstance(begin, int) and isinstance(end, int):
                kept[tp] = KeptBounds(Watermarks(begin, max(begin, end)), self._at)
            elif tp in self._kept:
                kept[tp] = self._kept[tp]
        self._at, self._begins, self._ends, self._kept = at, begins, ends, kept
        return kept

    def group(
        self,
        at: float,
        group: GroupView,
        exists: Callable[[TopicPartition], bool],
        *,
        without_members: bool = False,
        without_commits: bool = False,
    ) -> GroupView:
        """The group, with the last known values for the parts that this pass could not read."""
        before = self._groups.get(group.key)
        if before is not None:
            known, since = before
            if without_commits:
                rows = _stale(known.partitions, since, group.error or "")
                group = dataclasses.replace(group, partitions=rows, stale_since=known.stale_since or since)
            elif any(row.is_unread and row.lag is None for row in group.partitions):
                group = dataclasses.replace(group, partitions=_filled(group.partitions, known, since, exists))
            if without_members:
                group = dataclasses.replace(
                    group,
                    members=known.members,
                    assignor=known.assignor,
                    stale_since=known.stale_since or since,
                )
        if before is not None or not (without_members or without_commits):
            self._groups[group.key] = (group, at)
        return group

    def absent_groups(
        self, found: Collection[GroupKey], why_away: Callable[[GroupView], str | None]
    ) -> list[GroupView]:
        """The groups of earlier passes that this one did not find, although they may exist. `why_away` tells why a
        group may be missing; None if it is gone."""
        absent = []
        for key in self._groups.keys() - found:
            group, since = self._groups[key]
            if (reason := why_away(group)) is None:
                del self._groups[key]
                continue
            rows = _stale(group.partitions, since, reason)
            group = dataclasses.replace(
                group, partitions=rows, error=reason, has_nothing=False, stale_since=group.stale_since or since
            )
            self._groups[key] = (group, since)
            absent.append(group)
        return absent

    def missing_brokers(self, brokers: Collection[Node], topics: Iterable[FoundTopic]) -> dict[int, BrokerView]:
        """The brokers that have replicas, and are not in the cluster now."""
        self._brokers.update((it.id, it) for it in brokers)
        present = {it.id for it in brokers}
        placed = {node for topic in topics for log in topic.logs for node in log.replicas}
        found = {}
        for node in sorted(placed - present):
            known = self._brokers.get(node)
            host, port, rack = ("", 0, None) if known is None else (known.host, known.port, known.rack)
            found[node] = BrokerView(node, host, port, rack, error=MISSING, is_missing=True)
        return found


def _stale(rows: Iterable[PartitionView], since: float, reason: str) -> tuple[PartitionView, ...]:
    return tuple(dataclasses.replace(row, stale_since=row.stale_since or since, error=reason) for row in rows)


def _filled(
    rows: Iterable[PartitionView], known: GroupView, since: float, exists: Callable[[TopicPartition], bool]
) -> tuple[PartitionView, ...]:
    earlier: dict[TopicPartition, list[PartitionView]] = {}
    for row in known.partitions:
        if row.lag is not None:
            earlier.setdefault(row.tp, []).append(row)
    filled: list[PartitionView] = []
    for row in rows:
        if row.is_unread and row.lag is None and exists(row.tp):
            kept = _stale(earlier.get(row.tp, ()), since, row.error or "")
            filled += [dataclasses.replace(it, is_leaderless=row.is_leaderless) for it in kept] or [row]
        else:
            filled.append(row)
    return tuple(filled)


def leader_error(log: FoundLog, missing: Mapping[int, BrokerView]) -> str:
    """Why a partition has no leader: the brokers with its replicas that are away."""
    away = [missing[node] for node in log.replicas if node in missing]
    if not away:
        return "the partition has no leader"
    names = ", ".join(broker_name(it) for it in away)
    return f"the partition has no leader: {names} {'is' if len(away) == 1 else 'are'} down"


def broker_name(broker: BrokerView) -> str:
    return f"broker {broker.id} ({broker.host}:{broker.port})" if broker.host else f"broker {broker.id}"
