"""What the pages show, as documents of plain values. Nothing here does I/O or reads a clock.

    groups   a row for each group         group   a row for each partition, with its lanes
    topics   a row for each topic         topic   a row for each partition, and the groups that read it

Numbers are rounded to what a page shows: a field that looks the same does not change, and is not sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..monitor.last_known import broker_name
from ..monitor.model import (
    SPARK,
    BrokerView,
    ClusterView,
    GroupHistory,
    GroupKey,
    GroupView,
    LogView,
    MemberView,
    PartitionView,
    Range,
    Rebalance,
    TopicView,
    Trend,
    WatchStatus,
)
from ..types import TopicPartition
from .activity import Activity
from .attention import (
    CATCHING_UP,
    FALLING_BEHIND,
    WARNING,
    Attention,
    group_attention,
    is_growing,
    outlook,
    topic_attention,
)
from .patches import Document
from .sparklines import Sparkline

Histories = Mapping[GroupKey, GroupHistory]

_MOST_RANGES = 100  # more cannot be told apart in a drawing
_MOST_REBALANCES = 50
_MOST_PARTITIONS = 5000  # rows of one page


def status_head(status: WatchStatus, interval: float) -> dict[str, Any]:
    """What every page shows: which cluster, how old the data is, and whether the cluster is unreachable."""
    view = status.view
    away = None
    if status.error is not None:
        away = {"error": status.error, "since": _at(status.failing_since), "final": status.is_final}
    head: dict[str, Any] = {"at": None, "cluster": None, "brokers": None, "problems": [], "away": away}
    if view is not None:
        silent = [it for it in view.brokers if it.error]
        head |= {
            "at": _at(view.at),
            "cluster": view.cluster_id,
            "brokers": len(view.brokers) - len(silent),
            "problems": [*view.problems, *(f"{broker_name(it)}: {it.error}" for it in silent)],
        }
    return head | {"interval": interval}


def groups_document(view: ClusterView, histories: Histories, sparklines: Mapping[GroupKey, Sparkline]) -> Document:
    rows = {_group_id(it): _group_row(it, histories.get(it.key), sparklines.get(it.key)) for it in view.groups}
    lags = [row["lag"] for row in rows.values() if row["lag"] is not None]
    oldest = max((row["seconds"] for row in rows.values() if row["seconds"] is not None), default=None)
    head = {
        "groups": len(rows),
        "attention": sum(row["level"] >= WARNING for row in rows.values()),
        "lag": sum(lags) if lags else None,
        "unread": sum(row["unread"] for row in rows.values()),
        "seconds": oldest,
        "topics": sum(not it.is_internal for it in view.topics.values()),
    }
    return Document(head | {"nodes": broker_rows(view)}, rows)


def broker_rows(view: ClusterView) -> list[dict[str, Any]]:
    """All brokers, also those that are away, with the number of partitions that each leads, and of those that have a
    replica there which is not in sync."""
    leads: Counter[int] = Counter()
    lacks: Counter[int] = Counter()
    for topic in view.topics.values():
        for log in topic.partitions:
            if log.leader is not None:
                leads[log.leader] += 1
            if log.is_under_replicated:
                lacks.update(set(log.replicas) - set(log.in_sync))
    return [_broker(it, leads[it.id], lacks[it.id]) for it in sorted(view.brokers, key=lambda it: it.id)]


def _broker(broker: BrokerView, leads: int, lacks: int) -> dict[str, Any]:
    return {
        "id": broker.id,
        "address": f"{broker.host}:{broker.port}" if broker.host else None,
        "rack": broker.rack,
        "leads": leads,
        "behind": lacks,
        "problem": broker.error,
    }


def _group_id(group: GroupView) -> str:
    return f"{'checkpoint' if group.key.is_checkpoint else 'group'}:{group.name}"


def _group_row(group: GroupView, history: GroupHistory | None, sparkline: Sparkline | None) -> dict[str, Any]:
    trend = None if history is None else history.trend
    reasons = group_attention(group, trend)
    return {
        "name": group.name,
        "kind": group.kind,
        "state": group.state,
        "members": len(group.members) if group.are_members_known else None,
        "partitions": len({it.tp for it in group.partitions}),
        "topics": sorted({it.topic for it in group.partitions})[:_MOST_RANGES],
        "lag": group.lag,
        "unread": group.unread,
        "since": _at(group.unread_since),
        "seconds": _span(group.seconds),
        "lost": group.lost,
        "backlog": group.backlog,
        "trend": _trend(group, trend),
        "history": None if sparkline is None else sparkline.points,
        **_attention(reasons),
    }


def _attention(reasons: Sequence[Attention]) -> dict[str, Any]:
    return {"level": reasons[0].level if reasons else 0, "reasons": [it.text for it in reasons[:5]]}


def group_document(group: GroupView, history: GroupHistory | None, sparkline: Sparkline | None) -> Document:
    row = _group_row(group, history, sparkline)
    labels = member_labels(group.members)
    head = row | {
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "list": [_member(it, labels) for it in group.members],
        "rebalances": [_rebalance(it) for it in (history.rebalances if history else ())[-_MOST_REBALANCES:]],
        "hidden": 0,
    }
    lanes: dict[TopicPartition, list[PartitionView]] = {}
    for part in group.partitions:
        lanes.setdefault(part.tp, []).append(part)
    pending = {tp: labels[it.id] for it in group.members for tp in _pending_revokes(it)}
    rows = {str(tp): _partition(tp, found, labels, pending) for tp, found in list(lanes.items())[:_MOST_PARTITIONS]}
    return Document(head | {"hidden": len(lanes) - len(rows)}, rows)


def _pending_revokes(member: MemberView) -> frozenset[TopicPartition]:
    return frozenset() if member.target is None else member.partitions - member.target


def _member(member: MemberView, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": member.id,
        "label": labels[member.id],
        "host": member.host,
        "instance": member.instance_id,
        "partitions": len(member.partitions),
        "revoking": len(_pending_revokes(member)),
    }


def member_labels(members: Iterable[MemberView]) -> dict[str, str]:
    """A short name for each member: client id and host, with the beginning of the member id where they are not
    unique."""
    found = list(members)
    names = [it.owner for it in found]
    return {
        it.id: it.owner if names.count(it.owner) == 1 else f"{it.owner} {it.id.removeprefix(f'{it.client_id}-')[:8]}"
        for it in found
    }


def _partition(
    tp: TopicPartition, lanes: Sequence[PartitionView], labels: Mapping[str, str], pending: Mapping[TopicPartition, str]
) -> dict[str, Any]:
    first = lanes[0]
    lags = [it.lag for it in lanes if it.lag is not None]
    ages = [it.seconds for it in lanes if it.seconds is not None]
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "owner": labels.get(first.member or "", first.owner),
        "revoking": tp in pending,
        "committed": first.committed,
        "begin": first.begin,
        "end": max((it.end for it in lanes if it.end is not None), default=None),
        "lag": sum(lags) if lags else None,
        "seconds": _span(max(ages, default=None)),
        "lost": sum(it.lost for it in lanes),
        "lost_ranges": drawn_ranges([each for it in lanes for each in it.lost_ranges]),
        "lanes": [
            {"lane": it.lane, "lag": it.lag, "end": it.end, "seconds": _span(it.seconds), "open": drawn_ranges(it.open)}
            for it in lanes
        ],
        "completed": first.completed,
        "since": _at(min((it.stale_since for it in lanes if it.stale_since is not None), default=None)),
        "problem": _short(next((it.error for it in lanes if it.error), None)),
    }


def drawn_ranges(ranges: Sequence[Range], most: int = _MOST_RANGES) -> list[list[int]]:
    """The ranges; if there are too many to draw, the smallest gaps between them are closed."""
    found = sorted(ranges)
    if len(found) > most:
        gaps = sorted(range(1, len(found)), key=lambda at: found[at][0] - found[at - 1][1])
        closed = set(gaps[: len(found) - most])
        merged: list[Range] = []
        for at, (start, end) in enumerate(found):
            if at in closed:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        found = merged
    return [[start, end] for start, end in found]


def topics_document(view: ClusterView) -> Document:
    readers: dict[str, set[GroupKey]] = {}
    for group in view.groups:
        for part in group.partitions:
            readers.setdefault(part.topic, set()).add(group.key)
    rows = {name: _topic_row(it, len(readers.get(name, ()))) for name, it in view.topics.items()}
    shown = [row for row in rows.values() if not row["internal"]]
    sizes = [row["size"] for row in shown if row["size"] is not None]
    rates = [row["rate"] for row in shown if row["rate"] is not None]
    head = {
        "topics": len(shown),
        "partitions": sum(row["partitions"] for row in shown),
        "rate": sum(rates) if rates else None,
        "size": sum(sizes) if sizes else None,
    }
    return Document(head | {"nodes": broker_rows(view)}, rows)


def activity_document(activity: Activity, view: ClusterView | None) -> Document:
    """What the command has published, with the partitions of the groups that it names."""
    found = activity.document
    rows = dict(found.rows)
    lags = {}
    for label, name in activity.groups.items():
        group = None if view is None else view.group(GroupKey(False, name))
        if group is not None:
            lags[label] = group.lag
            parts = group_document(group, None, None).rows
            rows |= {f"{label}/{tp}": {**fields, "reader": label} for tp, fields in parts.items()}
    return Document({**found.head, "lags": lags, "queries": _queries(activity, view)}, rows)


def _queries(activity: Activity, view: ClusterView | None) -> list[dict[str, Any]]:
    """How far behind the queries are that read Kafka."""
    root = f"{activity.checkpoints}/"
    return [
        {"query": it.name.removeprefix(root), "lag": it.lag, "seconds": _span(it.seconds)}
        for it in (() if view is None or activity.checkpoints is None else view.groups)
        if it.kind == SPARK and it.partitions and it.name.startswith(root)
    ]


def _topic_row(topic: TopicView, readers: int) -> dict[str, Any]:
    return {
        "name": topic.name,
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "records": topic.records,
        "unread": topic.unread,
        "rate": _rate(topic.rate),
        "size": topic.size,
        "readers": readers,
        **_attention(topic_attention(topic)),
    }


def topic_document(topic: TopicView, groups: Iterable[GroupView]) -> Document:
    readers = [
        _reader(group, here) for group in groups if (here := [it for it in group.partitions if it.topic == topic.name])
    ]
    head = _topic_row(topic, len(readers)) | {"reading": sorted(readers, key=lambda it: -(it["lag"] or 0))}
    rows = {str(it.partition): _log(it) for it in topic.partitions[:_MOST_PARTITIONS]}
    return Document(head | {"hidden": len(topic.partitions) - len(rows)}, rows)


def _reader(group: GroupView, parts: Sequence[PartitionView]) -> dict[str, Any]:
    lags = [it.lag for it in parts if it.lag is not None]
    spans = [it for it in parts if it.lane != "backlog" and it.begin is not None and it.end is not None]
    total = sum((it.end or 0) - (it.begin or 0) for it in spans)
    lag = sum(lags) if lags else None
    return {
        "name": group.name,
        "kind": group.kind,
        "state": group.state,
        "partitions": len({it.tp for it in parts}),
        "lag": lag,
        "unread": len({it.tp for it in parts if it.is_unread}),
        "seconds": _span(max((it.seconds for it in parts if it.seconds is not None), default=None)),
        "done": None if lag is None or not total else round(max(0.0, 1 - lag / total), 3),
    }


def _log(log: LogView) -> dict[str, Any]:
    return {
        "partition": log.partition,
        "leader": log.leader,
        "replicas": list(log.replicas),
        "in_sync": list(log.in_sync),
        "begin": log.begin,
        "end": log.end,
        "size": log.size,
        "since": _at(log.stale_since),
        "problem": _short(log.error) or ("no leader" if log.is_leaderless else None),
    }


def _short(error: str | None) -> str | None:
    """The error in the row of its partition."""
    return None if error is None else error.removeprefix("the partition has ")


def _rebalance(found: Rebalance) -> dict[str, Any]:
    return {
        "at": _at(found.at),
        "until": _at(found.until),
        "joined": list(found.joined),
        "left": list(found.left),
        "moved": found.moved,
        "unowned": found.unowned,
        "unowned_seconds": _span(found.unowned_seconds),
    }


def _trend(group: GroupView, trend: Trend | None) -> dict[str, Any] | None:
    """`outlook` is one of `attention.OUTLOOKS`."""
    if trend is None:
        return None
    where = outlook(group, trend)
    return {
        "written": _rate(trend.written),
        "read": _rate(trend.read),
        "outlook": where,
        "caught_up": _span(trend.caught_up) if where == CATCHING_UP else None,
        "growth": _rate(trend.growth) if where == FALLING_BEHIND else None,
        "grows": is_growing(group, trend),
    }


def _at(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _span(value: float | None) -> float | None:
    """A tenth of a second matters in the first ten only."""
    if value is None:
        return None
    return round(value, 1) if value < 10 else float(round(value))


def _rate(value: float | None) -> float | None:
    """Three digits: a rate is an estimate."""
    return None if value is None else float(f"{max(value, 0.0):.3g}")
