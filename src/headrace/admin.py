"""What `Admin` and `AsyncAdmin` return: topics, groups, their members, offsets and settings."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping

from .types import OffsetAndMetadata, PartitionInfo, TopicPartition

OffsetRange = tuple[int, int]
"""The first offset, and the one after the last."""


@dataclasses.dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions. `internal`: Kafka uses it itself, as `__consumer_offsets`."""

    name: str
    internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class GroupListing:
    """The name, kind and state of a group. `kind`: classic, consumer (KIP-848), share or streams."""

    group: str
    kind: str
    state: str


@dataclasses.dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group, and the partitions that it owns.

    `instance_id` is the `group.instance.id` of a static member, else None.
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: frozenset[TopicPartition]
    topics: frozenset[str] = frozenset()
    """The topics that it has subscribed, whether or not they exist."""
    pattern: str | None = None
    """The pattern that it has subscribed, if the coordinator evaluates it (KIP-848)."""

    def __str__(self) -> str:
        return f"{self.client_id} at {self.host.lstrip('/')} ({self.member_id})"


@dataclasses.dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, the assignor that it uses, and its members."""

    listing: GroupListing
    assignor: str
    members: tuple[MemberDescription, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ShareOffset:
    """The start offset of a share group in a partition, and its lag; None where the brokers do not report it."""

    start: int
    lag: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class GroupSetting:
    """A setting of a group, such as share.auto.offset.reset. `is_default`: it was not set for this group."""

    name: str
    value: str | None
    is_default: bool


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetChange:
    """What a reset does to one partition.

    `current` is the committed offset, or None. In a share group it is the start offset, which brokers move late: later
    records may be processed already. `new` is the offset from which all records are delivered, or None if the partition
    stays as it is. `note` says why `new` is not what was asked for, and what else happens.

    `open_ranges` are the ranges below `new` that are not processed yet (KIP-333, `commit.mode=done`). `commit` is what
    is written.
    """

    partition: TopicPartition
    current: int | None
    new: int | None
    note: str = ""
    open_ranges: tuple[OffsetRange, ...] = ()
    commit: OffsetAndMetadata | None = None

    @property
    def change(self) -> int | None:
        """How many offsets are skipped; negative: how many are delivered again."""
        return None if self.new is None or self.current is None else self.new - self.current

    @property
    def open_records(self) -> int:
        """The number of offsets in `open_ranges`."""
        return sum(end - start for start, end in self.open_ranges)


@dataclasses.dataclass(frozen=True, slots=True)
class ResetPlan:
    """The changes of a reset, for `apply_reset`. Nothing is changed before that.

    `backlog` is "keep", "drop", or None while it is undecided what happens to open ranges.
    """

    group: str
    kind: str
    changes: tuple[OffsetChange, ...]
    backlog: str | None = None
    topic_ids: Mapping[str, uuid.UUID | None] = dataclasses.field(default_factory=dict, repr=False)
    found: Mapping[TopicPartition, OffsetAndMetadata] = dataclasses.field(default_factory=dict, repr=False)
    """The commits on which the plan is based."""
    progress: Mapping[TopicPartition, OffsetAndMetadata] = dataclasses.field(default_factory=dict, repr=False)
    """What the backlog's group had committed for them (KIP-333)."""

    @property
    def commits(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The commits that `apply_reset` writes."""
        return {each.partition: each.commit for each in self.changes if each.commit is not None}

    @property
    def needs_decision(self) -> bool:
        """Whether ranges are open below the new offsets, and `backlog` is None."""
        return self.backlog is None and any(each.open_ranges for each in self.changes)
