"""The answers of a survey, as data."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from ...types import Node, TopicPartition


class FoundLog(NamedTuple):
    """A partition, in the metadata."""

    tp: TopicPartition
    leader: int
    """-1 while there is none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


class FoundTopic(NamedTuple):
    name: str
    id: uuid.UUID | None
    is_internal: bool
    logs: tuple[FoundLog, ...]
    """By partition."""
    code: int
    """The error code of the topic, or 0."""


class FoundCluster(NamedTuple):
    id: str
    brokers: tuple[Node, ...]
    controller: int
    topics: tuple[FoundTopic, ...]


class FoundGroup(NamedTuple):
    """`kind`: classic, consumer (KIP-848), share or streams. `node` is the coordinator that lists the group."""

    name: str
    kind: str
    state: str
    node: int


class FoundMember(NamedTuple):
    id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: frozenset[TopicPartition]
    target: frozenset[TopicPartition] | None = None
    """The partitions that the member will have after the rebalance, where the coordinator tells."""


class FoundMembers(NamedTuple):
    state: str
    assignor: str
    members: tuple[FoundMember, ...]


class FoundShareOffset(NamedTuple):
    start: int
    lag: int | None
    """None where the broker does not report it."""
