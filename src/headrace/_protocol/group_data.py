"""The data that members of a classic consumer group exchange through the coordinator, which does not parse it.

    subscription   member to leader   topics, owned partitions with their generation, rack, the assignor's data
    assignment     leader to member   partitions, the assignor's data
    user data      part of both       sticky: the previous assignment; cooperative-sticky: its generation

A subscription or an assignment starts with its version. Versions 0 to 3 are read; a later version is read as version 3,
and the bytes after it are ignored. Version 3 is written, with sorted topics and partitions: a coordinator starts a
rebalance when a member rejoins with different bytes.

All `read_` functions raise ProtocolError, and nothing else, if the bytes are malformed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import struct
from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from kio.schema.consumer_protocol_assignment import v3 as assignment_v3

from ..errors import ProtocolError
from ..types import TopicPartition
from . import reader
from .writer import writer_of

NO_GENERATION = -1

_SUBSCRIPTION = "kio.schema.consumer_protocol_subscription"
_ASSIGNMENT = assignment_v3.ConsumerProtocolAssignment  # the same in all versions
_WRITTEN = 3

_VERSION = struct.Struct(">h")
_GENERATION = struct.Struct(">i")


@dataclasses.dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The subscription that a member sends to the group's leader."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    """The partitions that it keeps during the rebalance. Only members with a cooperative assignor keep any."""
    generation: int = NO_GENERATION
    """The generation in which they were assigned; -1 if unknown."""
    rack: str | None = None
    user_data: bytes | None = None
    """The data of its assignor."""


def write_subscription(subscription: MemberSubscription) -> bytes:
    return _versioned(
        _subscription(_WRITTEN),
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=_by_topic(subscription.owned),
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )


def read_subscription(blob: bytes) -> MemberSubscription:
    version = _version(blob, "a subscription")
    found = reader.read(_subscription(min(version, _WRITTEN)), memoryview(blob), _VERSION.size)
    return MemberSubscription(
        frozenset(found.topics),
        _partitions(found.owned_partitions) if version >= 1 else frozenset(),
        found.generation_id if version >= 2 else NO_GENERATION,
        found.rack_id if version >= 3 else None,
        found.user_data,
    )


def write_assignment(partitions: Collection[TopicPartition], user_data: bytes | None = None) -> bytes:
    return _versioned(_ASSIGNMENT, assigned_partitions=_by_topic(partitions), user_data=user_data)


def read_assignment(blob: bytes) -> tuple[frozenset[TopicPartition], bytes | None]:
    """The partitions and the assignor's data.

    If the leader's assignment does not contain a member, the coordinator sends it no bytes: it has no partitions.
    """
    if len(blob) < _VERSION.size:
        return frozenset(), None
    _version(blob, "an assignment")
    found = reader.read(_ASSIGNMENT, memoryview(blob), _VERSION.size)
    return _partitions(found.assigned_partitions), found.user_data


# -- the user data of the sticky assignors ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _StickyDataV0:
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = False
    previous_assignment: tuple[assignment_v3.data.TopicPartition, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _StickyDataV1(_StickyDataV0):
    __version__: ClassVar[int] = 1
    generation: int = dataclasses.field(metadata={"kafka_type": "int32"})


def write_sticky_data(previous: Collection[TopicPartition], generation: int) -> bytes:
    """The sticky assignor's data: the member's partitions before the rebalance, and the generation of that
    assignment."""
    out = bytearray()
    fields = {"previous_assignment": _by_topic(previous), "generation": generation}
    writer_of(_StickyDataV1)(out, fields)
    return bytes(out)


def read_sticky_data(blob: bytes | None) -> tuple[frozenset[TopicPartition], int]:
    """The previous assignment and its generation. Old clients omit the generation; members that never had an
    assignment send no data."""
    if not blob:
        return frozenset(), NO_GENERATION
    try:
        found = reader.read(_StickyDataV1, memoryview(blob))
    except ProtocolError:
        found = reader.read(_StickyDataV0, memoryview(blob))
        return _partitions(found.previous_assignment), NO_GENERATION
    return _partitions(found.previous_assignment), found.generation


def write_generation(generation: int) -> bytes:
    """The cooperative-sticky assignor's data, for leaders that read only subscriptions older than version 2."""
    return _GENERATION.pack(generation)


def read_generation(blob: bytes | None) -> int:
    if not blob:
        return NO_GENERATION
    if len(blob) < _GENERATION.size:
        raise ProtocolError(f"the generation has only {len(blob)} bytes")
    generation: int = _GENERATION.unpack_from(blob)[0]
    return generation


# -- parts ---------------------------------------------------------------------------------------------------------


@functools.cache
def _subscription(version: int) -> type[Any]:
    """Imported when it is needed: most groups use one version."""
    found: type[Any] = importlib.import_module(f"{_SUBSCRIPTION}.v{version}").ConsumerProtocolSubscription
    return found


def _versioned(entity: type[Any], **fields: Any) -> bytes:
    out = bytearray(_VERSION.pack(_WRITTEN))
    writer_of(entity)(out, fields)
    return bytes(out)


def _version(blob: bytes, what: str) -> int:
    if len(blob) < _VERSION.size:
        raise ProtocolError(f"{what} has only {len(blob)} bytes")
    version: int = _VERSION.unpack_from(blob)[0]
    if version < 0:
        raise ProtocolError(f"{what} has the invalid version {version}")
    return version


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partitions": [partition for _, partition in group]}
        for topic, group in itertools.groupby(sorted(partitions), lambda each: each[0])
    ]


def _partitions(topics: Iterable[Any]) -> frozenset[TopicPartition]:
    found = frozenset(TopicPartition(each.topic, number) for each in topics for number in each.partitions)
    if any(number < 0 for _, number in found):
        raise ProtocolError("a partition number is negative")
    return found
