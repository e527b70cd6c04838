"""Subscriptions and assignments of classic groups: exact bytes, kio as an oracle for every version, hostile bytes."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.consumer_protocol_assignment import v0 as assignment_v0
from kio.schema.consumer_protocol_subscription import v0, v1, v2, v3
from kio.serial import entity_reader, entity_writer

from headrace._protocol.group_data import (
    MemberSubscription,
    read_assignment,
    read_generation,
    read_sticky_data,
    read_subscription,
    write_assignment,
    write_generation,
    write_sticky_data,
    write_subscription,
)
from headrace.errors import ProtocolError
from headrace.types import TopicPartition

STEADY = settings(deadline=None, derandomize=True, max_examples=50)

TOPICS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
INTEGERS = st.integers(-(2**31), 2**31 - 1)
PARTITIONS = st.frozensets(st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), max_size=8)
DATA = st.none() | st.binary(max_size=20)
SUBSCRIPTIONS = st.builds(
    MemberSubscription, st.frozensets(TOPICS, max_size=5), PARTITIONS, INTEGERS, st.none() | TOPICS, DATA
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def ints(*values: int) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


def test_a_subscription_is_written_as_exact_bytes() -> None:
    subscription = MemberSubscription(frozenset({"b", "a"}), frozenset({B0, A1, A0}), 7, "rack", b"xy")
    parts = [
        b"\x00\x03" + ints(2) + text("a") + text("b"),
        ints(2) + b"xy",
        ints(2) + text("a") + ints(2, 0, 1) + text("b") + ints(1, 0),
        ints(7) + text("rack"),
    ]
    assert write_subscription(subscription) == b"".join(parts)


def test_a_first_subscription_is_written_as_exact_bytes() -> None:
    blob = b"\x00\x03" + ints(1) + text("a") + ints(-1) + ints(0) + ints(-1) + b"\xff\xff"
    assert write_subscription(MemberSubscription(frozenset({"a"}))) == blob


def test_an_assignment_is_written_as_exact_bytes() -> None:
    assert write_assignment([B0, A1, A0]) == b"\x00\x03" + ints(2) + text("a") + ints(2, 0, 1) + text("b") + ints(
        1, 0, -1
    )
    assert write_assignment([], b"xy") == b"\x00\x03" + ints(0, 2) + b"xy"


@STEADY
@given(SUBSCRIPTIONS)
def test_a_subscription_is_parsed_as_written(subscription: MemberSubscription) -> None:
    assert read_subscription(write_subscription(subscription)) == subscription


@STEADY
@given(version=st.integers(4, 2**15 - 1), subscription=SUBSCRIPTIONS, partitions=PARTITIONS, tail=st.binary(max_size=8))
def test_additions_of_later_subscription_and_assignment_versions_are_ignored(
    version: int, subscription: MemberSubscription, partitions: frozenset[TopicPartition], tail: bytes
) -> None:
    later = struct.pack(">h", version)
    assert read_subscription(later + write_subscription(subscription)[2:] + tail) == subscription
    assert read_assignment(later + write_assignment(partitions)[2:] + tail) == (partitions, None)


def with_kio(entity: Any, version: int) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return struct.pack(">h", version) + out.getvalue()


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@STEADY
@given(subscription=SUBSCRIPTIONS)
def test_subscriptions_of_all_versions_are_read(version: int, subscription: MemberSubscription) -> None:
    module: Any = (v0, v1, v2, v3)[version]
    fields: dict[str, Any] = {"topics": tuple(subscription.topics), "user_data": subscription.user_data}
    if version >= 1:
        fields["owned_partitions"] = tuple(
            module.data.TopicPartition(topic=topic, partitions=(number,)) for topic, number in subscription.owned
        )
    if version >= 2:
        fields["generation_id"] = subscription.generation
    if version >= 3:
        fields["rack_id"] = subscription.rack
    assert read_subscription(with_kio(module.ConsumerProtocolSubscription(**fields), version)) == MemberSubscription(
        subscription.topics,
        subscription.owned if version >= 1 else frozenset(),
        subscription.generation if version >= 2 else -1,
        subscription.rack if version >= 3 else None,
        subscription.user_data,
    )


@STEADY
@given(SUBSCRIPTIONS)
def test_kio_parses_a_written_subscription(subscription: MemberSubscription) -> None:
    blob = write_subscription(subscription)
    entity, size = entity_reader(v3.ConsumerProtocolSubscription)(blob, 2)
    assert size == len(blob) - 2
    assert entity.topics == tuple(sorted(subscription.topics))
    owned = [TopicPartition(each.topic, number) for each in entity.owned_partitions for number in each.partitions]
    assert owned == sorted(subscription.owned)
    assert (entity.generation_id, entity.rack_id) == (subscription.generation, subscription.rack)
    assert entity.user_data == subscription.user_data


@STEADY
@given(version=st.integers(0, 3), partitions=PARTITIONS, user_data=DATA)
def test_assignments_of_all_versions_are_read(
    version: int, partitions: frozenset[TopicPartition], user_data: bytes | None
) -> None:
    assert read_assignment(write_assignment(partitions, user_data)) == (partitions, user_data)
    found = tuple(assignment_v0.data.TopicPartition(topic=topic, partitions=(number,)) for topic, number in partitions)
    entity = assignment_v0.ConsumerProtocolAssignment(assigned_partitions=found, user_data=user_data)
    assert read_assignment(with_kio(entity, version)) == (partitions, user_data)


@pytest.mark.parametrize("blob", [b"", b"\x00"])
def test_an_empty_assignment_is_parsed_as_no_partitions(blob: bytes) -> None:
    assert read_assignment(blob) == (frozenset(), None)


# -- user data -----------------------------------------------------------------------------------------------------


def test_sticky_user_data_is_written_as_exact_bytes() -> None:
    assert write_sticky_data([B0, A1, A0], 7) == ints(2) + text("a") + ints(2, 0, 1) + text("b") + ints(1, 0, 7)
    assert write_generation(7) == ints(7)


@STEADY
@given(partitions=PARTITIONS, generation=INTEGERS)
def test_sticky_user_data_is_read_as_written(partitions: frozenset[TopicPartition], generation: int) -> None:
    blob = write_sticky_data(partitions, generation)
    assert read_sticky_data(blob) == (partitions, generation)
    assert read_sticky_data(blob[:-4]) == (partitions, -1), "version 0 has no generation"
    assert read_generation(write_generation(generation)) == generation


@pytest.mark.parametrize("blob", [None, b""])
def test_empty_sticky_user_data_is_parsed_as_no_partitions(blob: bytes | None) -> None:
    assert read_sticky_data(blob) == (frozenset(), -1)
    assert read_generation(blob) == -1


# -- hostile bytes --------------------------------------------------------------------------------------------------

READERS = [read_subscription, read_assignment, read_sticky_data, read_generation]
SMALL = st.integers(-2, 4)


@st.composite
def nearly_right(draw: st.DrawFn) -> bytes:
    """Valid bytes with some of them changed or cut off."""
    blob = bytearray(draw(SUBSCRIPTIONS.map(write_subscription) | st.builds(write_sticky_data, PARTITIONS, INTEGERS)))
    for _ in range(draw(st.integers(0, 3))):
        blob[draw(st.integers(0, len(blob) - 1))] = draw(st.integers(0, 255))
    return bytes(blob[: draw(st.integers(0, len(blob)))])


@settings(STEADY, max_examples=400)
@given(st.binary(max_size=60) | nearly_right() | st.lists(SMALL).map(lambda values: ints(*values)[2:]))
def test_parsers_of_group_data_raise_only_protocol_errors(blob: bytes) -> None:
    for read in READERS:
        with contextlib.suppress(ProtocolError):
            read(blob)


@pytest.mark.parametrize(
    "blob",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x00", id="half a version"),
        pytest.param(b"\xff\xff" + ints(0, -1), id="a negative version"),
        pytest.param(b"\x00\x00" + ints(-1, -1), id="no topics at all"),
        pytest.param(b"\x00\x00" + ints(1) + b"\xff\xff" + ints(-1), id="a topic without a name"),
        pytest.param(b"\x00\x00" + ints(1) + b"\x00\x02\xff\xfe" + ints(-1), id="not UTF-8"),
        pytest.param(b"\x00\x00" + ints(0, -2), id="a length of -2"),
        pytest.param(b"\x00\x01" + ints(0, -1, 1) + text("a") + ints(1, -5), id="a partition of -5"),
        pytest.param(b"\x00\x03" + ints(0, -1, 0, 7), id="the rack is missing"),
    ],
)
def test_malformed_subscriptions_are_protocol_errors(blob: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_subscription(blob)


@pytest.mark.parametrize("read", READERS[:3])
@pytest.mark.parametrize("count", [2**31 - 1, 1 << 24])
def test_a_huge_count_in_group_data_allocates_little_memory(read: Any, count: int) -> None:
    blob = b"\x00\x03" + ints(count) + bytes(1000)
    if read is read_sticky_data:
        blob = blob[2:]
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="exceeds the"):
            read(blob)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
