"""Partitioners: by key, and sticky for records without a key."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._machines.produce.partitioner import KeyPartitioner, StickyPartitioner
from headrace._record_batch import crc32, positive_murmur2

ALL = range(4)


def sticky(*throws: float, batch_size: int = 100, is_adaptive: bool = True) -> StickyPartitioner:
    dice = iter(throws)
    return StickyPartitioner(batch_size, lambda: next(dice), is_adaptive=is_adaptive)


# -- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "partition"),
    # Utils.toPositive(Utils.murmur2(key)) % 12 in Kafka 4.3.1, with hashes observed by writing to it.
    [(b"", 275646681 % 12), (b"a", (-1563381124 & 0x7FFFFFFF) % 12), (b"21", (-973932308 & 0x7FFFFFFF) % 12)],
)
def test_a_key_goes_where_java_puts_it(key: bytes, partition: int) -> None:
    assert KeyPartitioner(positive_murmur2).partition(key, 12) == partition


def test_a_key_goes_where_librdkafka_puts_it() -> None:
    partitioner = KeyPartitioner(crc32, ignores_empty=True)
    assert partitioner.partition(b"123456789", 1000) == 0xCBF43926 % 1000
    assert partitioner.partition(b"", 12) is None


def test_a_record_without_a_key_has_no_partition_by_key() -> None:
    assert KeyPartitioner(positive_murmur2).partition(None, 12) is None
    assert KeyPartitioner(positive_murmur2).partition(b"", 12) is not None, "an empty key is a key"


@given(key=st.binary(max_size=30), count=st.integers(1, 1000))
def test_the_partition_of_a_key_is_one_of_the_topic(key: bytes, count: int) -> None:
    for partitioner in (KeyPartitioner(positive_murmur2), KeyPartitioner(crc32, ignores_empty=True)):
        found = partitioner.partition(key, count)
        assert found is None or 0 <= found < count


# -- no key --------------------------------------------------------------------------------------------------------


def test_the_sticky_partition_stays_until_a_full_batch_ends() -> None:
    partitioner = sticky(0.5, 0.0)
    assert partitioner.partition(ALL, 4) == 2
    partitioner.appended(60, ALL, 4, is_batch_full=True)
    assert partitioner.partition(ALL, 4) == 2, "below batch.size"
    partitioner.appended(60, ALL, 4, is_batch_full=False)
    assert partitioner.partition(ALL, 4) == 2, "the batch is not full yet"
    partitioner.appended(20, ALL, 4, is_batch_full=True)
    assert partitioner.partition(ALL, 4) == 0


def test_the_sticky_partition_changes_after_twice_the_size_of_a_batch() -> None:
    partitioner = sticky(0.0, 0.99)
    assert partitioner.partition(ALL, 4) == 0
    partitioner.appended(199, ALL, 4, is_batch_full=False)
    assert partitioner.partition(ALL, 4) == 0
    partitioner.appended(1, ALL, 4, is_batch_full=False)
    assert partitioner.partition(ALL, 4) == 3


def test_partitions_without_a_leader_are_drawn_only_if_there_is_no_other() -> None:
    assert sticky(0.99).partition([0, 2], 4) == 2
    assert sticky(0.99).partition([], 4) == 3


def test_a_sticky_partition_that_no_longer_exists_is_drawn_anew() -> None:
    partitioner = sticky(0.99, 0.0)
    assert partitioner.partition(ALL, 4) == 3
    assert partitioner.partition([0, 1], 2) == 0, "the topic was recreated with fewer partitions"


def drawn(queue_lengths: dict[int, int], available: list[int], *, is_adaptive: bool = True) -> Counter[int]:
    dice = random.Random(1)
    partitioner = StickyPartitioner(1, dice.random, is_adaptive=is_adaptive)
    partitioner.queues_changed(queue_lengths, available)
    found: Counter[int] = Counter()
    for _ in range(6000):
        found[partitioner.partition(available, 4)] += 1
        partitioner.appended(1, available, 4, is_batch_full=True)
    return found


def test_longer_queues_are_drawn_less_often() -> None:
    found = drawn({0: 0, 1: 2, 2: 0, 3: 1}, [0, 1, 2, 3])  # weights 3, 1, 3, 2
    assert [round(found[each] / 6000 * 9) for each in range(4)] == [3, 1, 3, 2]


@pytest.mark.parametrize(
    ("queue_lengths", "is_adaptive"),
    [({0: 0, 1: 9, 2: 0, 3: 0}, False), ({0: 3, 1: 3, 2: 3, 3: 3}, True), ({0: 0, 1: 9}, True)],
    ids=["not adaptive", "all alike", "some have had no batch yet"],
)
def test_otherwise_all_partitions_are_drawn_alike(queue_lengths: dict[int, int], is_adaptive: bool) -> None:
    found = drawn(queue_lengths, [0, 1, 2, 3], is_adaptive=is_adaptive)
    assert [round(found[each] / 6000 * 4) for each in range(4)] == [1, 1, 1, 1]


def test_a_partition_that_lost_its_leader_is_not_drawn_by_its_queue() -> None:
    found = drawn({0: 0, 1: 2, 2: 0, 3: 1}, [0, 3])
    assert set(found) == {0, 3}
