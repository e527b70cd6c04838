"""Renders a view as Prometheus text (format 0.0.4). Nothing here does I/O or reads a clock.

Names and labels are kafka_exporter's where it has them, so that its dashboards and alerts work. The others begin with
`kafka_sharegroup_` and `headrace_`. Unknown values have no line: there is no NaN, and no zero that nobody has read.

An outage must not resolve an alert. The lag, its age and the members of what cannot be read keep their last known
values: a partition without a leader is not written, and a group that reads nothing does not catch up. These values are
marked by `headrace_consumergroup_unread_partitions` and `…_read_timestamp_seconds`. Offsets of logs, whose rates are
computed from them, are left out instead: a constant one would be a rate of 0.

A partition with two lanes (KIP-333) has one line: `kafka_consumergroup_lag` is the lag of both, `headrace_backlog_lag`
the part of the backlog. A Spark checkpoint is a consumer group whose name is the path. If another group has this name,
the checkpoint is left out and counted as an error: Prometheus rejects a scrape with two lines for one series.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .._machines.lanes.lanes import BACKLOG
from .model import SHARE, SPARK, ClusterView, GroupView, PartitionView, TopicView, WatchStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()


_GROUP = ("consumergroup", "topic", "partition")
_SHARE = ("sharegroup", "topic", "partition")
_LOG = ("topic", "partition")
_UNREAD = (
    "Partitions of the topic whose lag the latest pass could not read. A lag that they have is the last known one."
)
_READ_AT = "When the oldest lag of the topic that is exported was read, in seconds since 1970."

_FAMILIES = (
    Family("kafka_brokers", "gauge", "Brokers of the cluster."),
    Family("kafka_broker_info", "gauge", "1 for each broker, with its address.", ("id", "address")),
    Family(
        "headrace_broker_up",
        "gauge",
        "1 if the broker answers; 0 if it does not, or has replicas and is not in the cluster.",
        ("id",),
    ),
    Family("kafka_topic_partitions", "gauge", "Partitions of the topic.", ("topic",)),
    Family("kafka_topic_partition_current_offset", "gauge", "End offset of the partition.", _LOG),
    Family("kafka_topic_partition_oldest_offset", "gauge", "First offset of the partition.", _LOG),
    Family("headrace_topic_leaderless_partitions", "gauge", "Partitions of the topic without a leader.", ("topic",)),
    Family(
        "headrace_topic_under_replicated_partitions",
        "gauge",
        "Partitions of the topic with a replica that is not in sync.",
        ("topic",),
    ),
    Family("kafka_consumergroup_current_offset", "gauge", "Committed offset of the group in the partition.", _GROUP),
    Family(
        "kafka_consumergroup_current_offset_sum",
        "gauge",
        "Sum of the committed offsets of the group in the topic.",
        _GROUP[:2],
    ),
    Family(
        "kafka_consumergroup_lag",
        "gauge",
        "Unprocessed records of the group in the partition, in both lanes. Deleted records are not among them.",
        _GROUP,
    ),
    Family("kafka_consumergroup_lag_sum", "gauge", "Unprocessed records of the group in the topic.", _GROUP[:2]),
    Family(
        "kafka_consumergroup_lag_seconds",
        "gauge",
        "Age of the oldest unprocessed record of the group in the partition; 0 without lag.",
        _GROUP,
    ),
    Family("kafka_consumergroup_members", "gauge", "Members of the group.", _GROUP[:1]),
    Family("headrace_consumergroup_unread_partitions", "gauge", _UNREAD, _GROUP[:2]),
    Family("headrace_consumergroup_read_timestamp_seconds", "gauge", _READ_AT, _GROUP[:2]),
    Family(
        "headrace_consumergroup_lost_records",
        "gauge",
        "Records of the topic that were deleted before the group processed them, counted from its commits.",
        _GROUP[:2],
    ),
    Family("headrace_backlog_lag", "gauge", "Unprocessed records of the backlog lane (KIP-333).", _GROUP),
    Family("headrace_backlog_lag_seconds", "gauge", "Age of the oldest record of the backlog lane.", _GROUP),
    Family("headrace_backlog_open_ranges", "gauge", "Ranges of offsets that the backlog lane has open.", _GROUP),
    Family("kafka_sharegroup_start_offset", "gauge", "Start offset of the share group in the partition.", _SHARE),
    Family(
        "kafka_sharegroup_lag",
        "gauge",
        "Records of the partition that are not done for the share group, without deleted ones.",
        _SHARE,
    ),
    Family("kafka_sharegroup_lag_sum", "gauge", "Records of the topic that are not done.", _SHARE[:2]),
    Family(
        "kafka_sharegroup_lag_seconds",
        "gauge",
        "Age of the record at the start offset of the share group; 0 without lag.",
        _SHARE,
    ),
    Family("kafka_sharegroup_members", "gauge", "Members of the share group.", _SHARE[:1]),
    Family("headrace_sharegroup_unread_partitions", "gauge", _UNREAD, _SHARE[:2]),
    Family("headrace_sharegroup_read_timestamp_seconds", "gauge", _READ_AT, _SHARE[:2]),
    Family("headrace_group_state", "gauge", "1 for each group, with its kind and state.", ("group", "kind", "state")),
    Family(
        "headrace_exporter_read_errors",
        "gauge",
        "Brokers, topics, partitions and groups that the latest pass could not read.",
        ("kind",),
    ),
    Family("headrace_exporter_pass_duration_seconds", "gauge", "Duration of the last complete pass."),
)
_OWN = (
    Family("headrace_exporter_up", "gauge", "Whether the latest pass over the cluster succeeded."),
    Family("headrace_exporter_age_seconds", "gauge", "Age of the values of the cluster."),
    Family("headrace_exporter_passes_total", "counter", "Passes over the cluster that succeeded."),
    Family("headrace_exporter_failures_total", "counter", "Passes over the cluster that failed."),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in (*_FAMILIES, *_OWN)}
_SUMS = {
    "consumergroup": ("kafka_consumergroup_lag_sum", "kafka_consumergroup_members"),
    "sharegroup": ("kafka_sharegroup_lag_sum", "kafka_sharegroup_members"),
}
# One entry for each thing that can have an error, so that a series does not appear with its first one.
_ERROR_KINDS = ("broker", "group", "partition", "topic")

Lines = defaultdict[str, list[str]]


def escape(value: str) -> str:
    """The text of a label's value. Names come from other clients, and may contain anything."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def render(view: ClusterView) -> bytes:
    lines: Lines = defaultdict(list)
    lines["kafka_brokers"].append(f"kafka_brokers {sum(not it.is_missing for it in view.brokers)}")
    for broker in view.brokers:
        lines["headrace_broker_up"].append(f'headrace_broker_up{{id="{broker.id}"}} {int(broker.error is None)}')
        if broker.is_missing:
            continue
        address = escape(f"{broker.host}:{broker.port}")
        lines["kafka_broker_info"].append(f'kafka_broker_info{{id="{broker.id}",address="{address}"}} 1')
    for topic in view.topics.values():
        _topic(lines, topic)
    named: set[tuple[str, str]] = set()
    for group in view.groups:  # checkpoints are last
        if (name := (_label(group), _readable(group.name))) not in named:
            named.add(name)
            _group(lines, group, view.at)
    errors = _errors(view)
    errors["group"] += len(view.groups) - len(named)
    for kind in _ERROR_KINDS:
        lines["headrace_exporter_read_errors"].append(f'headrace_exporter_read_errors{{kind="{kind}"}} {errors[kind]}')
    family = "headrace_exporter_pass_duration_seconds"
    lines[family].append(f"{family} {view.took:.3f}")
    return "".join(_blocks(_FAMILIES, lines)).encode(errors="replace")  # a checkpoint may name any topics


def _topic(lines: Lines, topic: TopicView) -> None:
    escaped = escape(topic.name)
    labels = f'{{topic="{escaped}"}} '
    ends, begins = lines["kafka_topic_partition_current_offset"], lines["kafka_topic_partition_oldest_offset"]
    for log in topic.partitions:
        text = f'topic="{escaped}",partition="{log.partition}"}} '
        if log.stale_since is not None:
            continue
        if log.end is not None:
            ends.append(f"kafka_topic_partition_current_offset{{{text}{log.end}")
        if log.begin is not None:
            begins.append(f"kafka_topic_partition_oldest_offset{{{text}{log.begin}")
    for family, count in (
        ("kafka_topic_partitions", len(topic.partitions)),
        ("headrace_topic_leaderless_partitions", sum(log.leader is None for log in topic.partitions)),
        ("headrace_topic_under_replicated_partitions", sum(log.is_under_replicated for log in topic.partitions)),
    ):
        lines[family].append(f"{family}{labels}{count}")


def _label(group: GroupView) -> str:
    return "sharegroup" if group.kind == SHARE else "consumergroup"


def _readable(name: str) -> str:
    """Paths may have bytes that are not UTF-8."""
    return name.encode(errors="replace").decode()


def _group(lines: Lines, group: GroupView, at: float) -> None:
    name = escape(_readable(group.name))
    state = group.state if group.stale_since is None else "Unknown"
    labels = f'{{group="{name}",kind="{escape(group.kind)}",state="{escape(state)}"}}'
    lines["headrace_group_state"].append(f"headrace_group_state{labels} 1")
    label = _label(group)
    lag_sum, members = _SUMS[label]
    if group.kind != SPARK and group.are_members_known:
        lines[members].append(f'{members}{{{label}="{name}"}} {len(group.members)}')
    head = f'{{{label}="{name}",'
    write = _share_rows if group.kind == SHARE else _consumer_rows
    write(lines, head, group.partitions)
    sums: dict[str, int] = {}
    for row in group.partitions:
        if row.lag is not None and not row.is_beyond:
            sums[row.tp.topic] = sums.get(row.tp.topic, 0) + row.lag
    for topic, total in sums.items():
        lines[lag_sum].append(f'{lag_sum}{head}topic="{escape(topic)}"}} {total}')
    _unread(lines, label, head, group.partitions, at)


def _unread(lines: Lines, label: str, head: str, rows: Sequence[PartitionView], at: float) -> None:
    unread: dict[str, set[int]] = {}
    read_at: dict[str, float] = {}
    for row in rows:
        topic = row.tp.topic
        found = unread.setdefault(topic, set())
        if row.is_unread:
            found.add(row.tp.partition)
        if row.lag is not None:
            read_at[topic] = min(read_at.get(topic, at), at if row.stale_since is None else row.stale_since)
    family = f"headrace_{label}_unread_partitions"
    lines[family] += (f'{family}{head}topic="{escape(topic)}"}} {len(found)}' for topic, found in unread.items())
    family = f"headrace_{label}_read_timestamp_seconds"
    lines[family] += (f'{family}{head}topic="{escape(topic)}"}} {since:.3f}' for topic, since in read_at.items())


def _consumer_rows(lines: Lines, head: str, rows: Sequence[PartitionView]) -> None:
    currents, lags = lines["kafka_consumergroup_current_offset"], lines["kafka_consumergroup_lag"]
    ages = lines["kafka_consumergroup_lag_seconds"]
    sums: dict[str, int] = {}
    lost: dict[str, int] = {}
    for row, backlog in _with_backlog(rows):
        topic = row.tp.topic
        text = f'{head}topic="{escape(row.tp.topic)}",partition="{row.tp.partition}"}} '
        if row.committed is not None:
            currents.append(f"kafka_consumergroup_current_offset{text}{row.committed}")
            sums[topic] = sums.get(topic, 0) + row.committed
        if row.lag is None or row.is_beyond:  # beyond the end of another log: the lag is unknown
            continue
        lag, seconds, gone = row.lag, row.seconds, row.lost
        if backlog is not None and backlog.lag is not None:
            lag, gone = lag + backlog.lag, gone + backlog.lost
            seconds = max((it for it in (seconds, backlog.seconds) if it is not None), default=None)
            _backlog(lines, text, backlog)
        lost[topic] = lost.get(topic, 0) + gone
        lags.append(f"kafka_consumergroup_lag{text}{lag}")
        if lag == 0:
            ages.append(f"kafka_consumergroup_lag_seconds{text}0")
        elif seconds is not None:
            ages.append(f"kafka_consumergroup_lag_seconds{text}{seconds:.3f}")
    for family, found in (
        ("kafka_consumergroup_current_offset_sum", sums),
        ("headrace_consumergroup_lost_records", lost),
    ):
        lines[family] += (f'{family}{head}topic="{escape(topic)}"}} {total}' for topic, total in found.items())


def _backlog(lines: Lines, text: str, backlog: PartitionView) -> None:
    lines["headrace_backlog_lag"].append(f"headrace_backlog_lag{text}{backlog.lag}")
    lines["headrace_backlog_open_ranges"].append(f"headrace_backlog_open_ranges{text}{len(backlog.open)}")
    if backlog.seconds is not None:
        lines["headrace_backlog_lag_seconds"].append(f"headrace_backlog_lag_seconds{text}{backlog.seconds:.3f}")


def _share_rows(lines: Lines, head: str, rows: Sequence[PartitionView]) -> None:
    for row in rows:
        text = f'{head}topic="{escape(row.tp.topic)}",partition="{row.tp.partition}"}} '
        if row.committed is not None:
            lines["kafka_sharegroup_start_offset"].append(f"kafka_sharegroup_start_offset{text}{row.committed}")
        if row.lag is None:
            continue
        lines["kafka_sharegroup_lag"].append(f"kafka_sharegroup_lag{text}{row.lag}")
        if row.lag == 0 or row.seconds is not None:
            seconds = f"{row.seconds:.3f}" if row.lag and row.seconds is not None else "0"
            lines["kafka_sharegroup_lag_seconds"].append(f"kafka_sharegroup_lag_seconds{text}{seconds}")


def render_own(status: WatchStatus, now: float) -> bytes:
    """The lines about the exporter itself, at the time of a scrape, on the clock for intervals."""
    values: dict[str, str] = {
        "headrace_exporter_up": str(int(status.view is not None and status.error is None)),
        "headrace_exporter_passes_total": str(status.passes),
        "headrace_exporter_failures_total": str(status.failures),
    }
    if status.view is not None:
        values["headrace_exporter_age_seconds"] = f"{max(0.0, now - status.view.steady_at):.3f}"
    lines = {name: [f"{name} {value}"] for name, value in values.items()}
    return "".join(_blocks(_OWN, lines)).encode()


def _with_backlog(rows: Iterable[PartitionView]) -> Iterable[tuple[PartitionView, PartitionView | None]]:
    """The rows with their backlog lanes: a backlog follows its live lane."""
    waiting: PartitionView | None = None
    for row in rows:
        if row.lane == BACKLOG and waiting is not None:
            yield waiting, row
            waiting = None
            continue
        if waiting is not None:
            yield waiting, None
        waiting = row
    if waiting is not None:
        yield waiting, None


def _errors(view: ClusterView) -> Counter[str]:
    found: Counter[str] = Counter()
    found["broker"] = sum(it.error is not None for it in view.brokers)
    found["group"] = sum(it.error is not None and not it.has_nothing for it in view.groups)
    found["topic"] = sum(it.error is not None for it in view.topics.values())
    found["partition"] = sum(log.error is not None for topic in view.topics.values() for log in topic.partitions) + sum(
        row.error is not None or row.is_beyond for group in view.groups for row in group.partitions
    )
    return found


def _blocks(families: Iterable[Family], lines: Mapping[str, Sequence[str]]) -> Iterable[str]:
    for family in families:
        yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.type}\n"
        if found := lines.get(family.name):
            yield "\n".join(found)
            yield "\n"
