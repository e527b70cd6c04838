"""What one pass over a cluster saw, as data. Nothing here does I/O or reads a clock.

    ClusterView            one pass
      brokers              BrokerView
      topics               TopicView      with a LogView for each partition
      groups               GroupView      with a MemberView for each member, and a PartitionView for each lane

Whatever could not be read has an `error`, a text for people. Its numbers are the last known ones, with `stale_since`,
the time of the pass that read them; or None if no pass has. None never means zero.
Times are seconds since 1970, spans are seconds, ranges of offsets are half-open.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..types import TopicPartition

Range = tuple[int, int]

CLASSIC = "classic"
CONSUMER = "consumer"
SHARE = "share"
STREAMS = "streams"
SPARK = "spark"
KINDS = (CLASSIC, CONSUMER, SHARE, STREAMS, SPARK)


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerView:
    id: int
    host: str
    port: int
    rack: str | None = None
    is_controller: bool = False
    error: str | None = None
    """Why the broker did not answer in this pass."""
    is_missing: bool = False
    """Whether it has replicas, but is not part of the cluster now. Its host is empty if no pass has seen it."""


@dataclasses.dataclass(frozen=True, slots=True)
class LogView:
    """One partition of a topic."""

    partition: int
    leader: int | None
    """The id of the leader's broker; None while the partition has no leader."""
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    begin: int | None = None
    end: int | None = None
    """The offset of the next record. With isolation.level=read_committed, the last stable offset."""
    size: int | None = None
    """Bytes on the leader's disk; None if this client may not ask for it."""
    error: str | None = None
    stale_since: float | None = None
    """When `begin` and `end` were read, if not in this pass."""

    @property
    def is_leaderless(self) -> bool:
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        return len(self.in_sync) < len(self.replicas)


@dataclasses.dataclass(frozen=True, slots=True)
class TopicView:
    name: str
    partitions: tuple[LogView, ...]
    is_internal: bool = False
    rate: float | None = None
    """Records written per second, over the last minute. None until there are two passes."""
    error: str | None = None

    @property
    def records(self) -> int | None:
        """The distance between beginnings and ends: an upper bound if the topic is compacted or has transactions. None
        if it is unknown for all partitions."""
        # Records that are deleted between the two requests move the beginning beyond the end.
        known = [max(0, it.end - it.begin) for it in self.partitions if it.end is not None and it.begin is not None]
        return sum(known) if known or not self.partitions else None

    @property
    def size(self) -> int | None:
        """Bytes on the leaders' disks, of the partitions whose size is known."""
        known = [it.size for it in self.partitions if it.size is not None]
        return sum(known) if known else None

    @property
    def unread(self) -> int:
        """The number of partitions whose beginning or end could not be read. The sums are then lower bounds."""
        return sum(it.error is not None for it in self.partitions)


@dataclasses.dataclass(frozen=True, slots=True)
class MemberView:
    id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: frozenset[TopicPartition]
    target: frozenset[TopicPartition] | None = None
    """The partitions that the member will have when the rebalance is over. Those that it still has beyond them are
    pending revokes. None in groups whose coordinator does not plan ahead: classic and share groups."""

    @property
    def owner(self) -> str:
        """The member for people. Several members may have the same client id and host."""
        return f"{self.client_id}@{self.host}"


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition of a group, or one lane of it (KIP-333): a partition with a backlog has two."""

    tp: TopicPartition
    lane: str = ""
    """live, backlog, or empty if there is only one lane."""
    committed: int | None = None
    """The committed offset as the broker has it; of a share group, the start offset. None without a commit."""
    next: int | None = None
    """The first unprocessed offset that the log still has; without a commit, the first offset of the log."""
    begin: int | None = None
    """The first offset of the log."""
    end: int | None = None
    """The end of the log; of a backlog lane, the end of the backlog."""
    lag: int | None = None
    """Records between `next` and `end` that are not processed. Records that retention has deleted are not among
    them."""
    seconds: float | None = None
    """The age of the oldest unprocessed record; None without lag, or if it is unknown."""
    open: tuple[Range, ...] = ()
    """The ranges that are not processed, in ascending order: one, unless records are completed out of order or the
    partition has a backlog."""
    lost: int = 0
    """Records that retention deleted before they were processed."""
    lost_ranges: tuple[Range, ...] = ()
    owner: str | None = None
    """The member that has the partition (client id and host), or the name of a checkpoint. None if nobody has it."""
    member: str | None = None
    """The member's id."""
    is_leaderless: bool = False
    completed: int | None = None
    """Share groups: records behind the start offset that are done, accepted or given up, while an earlier one is not.
    None if the broker does not report it. No broker tells which records are locked."""
    error: str | None = None
    stale_since: float | None = None
    """When the values were read, if not in this pass: at least the end of the log may have changed since."""

    @property
    def topic(self) -> str:
        return self.tp.topic

    @property
    def partition(self) -> int:
        return self.tp.partition

    @property
    def is_committed(self) -> bool:
        return self.committed is not None

    @property
    def is_unread(self) -> bool:
        """Whether this pass could not read the lag: it is the last known one, or None."""
        return self.error is not None or self.stale_since is not None

    @property
    def is_beyond(self) -> bool:
        """Whether the next offset is beyond the end: the offsets belong to another cluster, or the topic was
        recreated."""
        return self.next is not None and self.end is not None and self.next > self.end


class GroupKey(NamedTuple):
    """A Spark checkpoint may have the name of a group."""

    is_checkpoint: bool
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class GroupView:
    name: str
    kind: str
    """One of KINDS. A directory of Spark checkpoints is a group of kind spark, and its name is the path."""
    state: str
    """As the broker names it: Stable, Empty, PreparingRebalance, … Empty text if unknown."""
    members: tuple[MemberView, ...] = ()
    partitions: tuple[PartitionView, ...] = ()
    """Sorted by topic, partition and lane: the live lane is before the backlog."""
    assignor: str = ""
    coordinator: int | None = None
    error: str | None = None
    """Why the group, or a part of it, could not be read, or has nothing to show."""
    has_nothing: bool = False
    """Whether everything could be read, and `error` only says why there is nothing to show."""
    stale_since: float | None = None
    """When members or commits were read, if not in this pass."""

    @property
    def key(self) -> GroupKey:
        return GroupKey(self.kind == SPARK, self.name)

    @property
    def lag(self) -> int | None:
        """The sum of what is known, or was last known; None if nothing is. A lower bound if some are `unread`."""
        known = [it.lag for it in self.partitions if it.lag is not None]
        return sum(known) if known else None

    @property
    def seconds(self) -> float | None:
        return max((it.seconds for it in self.partitions if it.seconds is not None), default=None)

    @property
    def are_members_known(self) -> bool:
        """After an error, only an earlier pass or a state without members tells who they are."""
        is_read = self.error is None or self.stale_since is not None or self.state in ("Empty", "Dead")
        return is_read or bool(self.members)

    @property
    def unread(self) -> int:
        """The number of partitions whose lag this pass could not read."""
        return len({it.tp for it in self.partitions if it.is_unread})

    @property
    def unread_since(self) -> float | None:
        """When the oldest of the values was read; None if all are current, or nothing was ever read."""
        found = [it.stale_since for it in self.partitions if it.stale_since is not None]
        return min([*found, *(() if self.stale_since is None else (self.stale_since,))], default=None)

    @property
    def lost(self) -> int:
        return sum(it.lost for it in self.partitions)

    @property
    def backlog(self) -> int | None:
        """The lag of the backlog lanes; None without one."""
        known = [it.lag for it in self.partitions if it.lane == "backlog" and it.lag is not None]
        return sum(known) if known else None


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterView:
    at: float
    """When the ends of the logs were read."""
    took: float
    """The duration of the pass."""
    cluster_id: str
    brokers: tuple[BrokerView, ...]
    topics: Mapping[str, TopicView]
    """Sorted by name."""
    groups: tuple[GroupView, ...]
    """Sorted by name, checkpoints last."""
    problems: tuple[str, ...] = ()
    """What could not be read and belongs to no row: an unreachable broker, a list that is denied."""
    steady: float | None = None
    """`at` on the clock for intervals, `steady_clock.py`. None: `at` never jumps."""

    @property
    def steady_at(self) -> float:
        return self.at if self.steady is None else self.steady

    def group(self, key: GroupKey) -> GroupView | None:
        return next((it for it in self.groups if it.key == key), None)


@dataclasses.dataclass(frozen=True, slots=True)
class WatchStatus:
    """What is known now: the last complete view, and what has happened since."""

    view: ClusterView | None
    """None until the first pass succeeds."""
    error: str | None = None
    """Why the latest pass failed: the cluster is unreachable, or refuses this client. The view is then an older one."""
    failing_since: float | None = None
    is_final: bool = False
    """Whether no later pass can succeed, because the brokers reject the login."""
    passes: int = 0
    failures: int = 0


# -- history -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class LagPoint:
    at: float
    lag: int | None
    seconds: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Trend:
    """The trend over the watched time, in records per second, of the partitions whose lag is known."""

    written: float
    read: float
    caught_up: float | None
    """Seconds from now; None if the lag does not fall, or is unknown for some partitions."""
    growth: float = 0.0
    """How fast the lag grows: 0 if it only follows the steps in which commits come, negative if it falls."""
    is_partial: bool = False
    """Whether the lag of some partitions is unknown now. Then there is no forecast."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rebalance:
    """A change of the members or of the assignment, as the passes saw it. Times are exact to the interval of the
    passes; a partition that had another owner in the next pass was without one for less than that, and counts as 0."""

    at: float
    until: float | None
    """None while partitions have no owner, or the group is not stable."""
    joined: tuple[str, ...]
    """The members that came, as client id and host."""
    left: tuple[str, ...]
    moved: int
    """How many partitions changed their owner."""
    unowned: int
    """How many partitions had no owner in at least one pass."""
    unowned_seconds: float
    """How long the partition that waited longest had no owner."""


@dataclasses.dataclass(frozen=True, slots=True)
class GroupHistory:
    """The last hour of one group."""

    points: Sequence[LagPoint]
    trend: Trend | None
    rebalances: Sequence[Rebalance]
    """The latest last."""
