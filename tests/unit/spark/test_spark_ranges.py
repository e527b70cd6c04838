"""How offsets are divided among partitions and tasks. The names are those of Spark's KafkaOffsetRangeCalculatorSuite.

tests/spark/test_spark_scenarios_beside_jvm.py compares random ranges with Spark's own calculator.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from headrace.spark.driver.ranges import distribute, split_ranges
from headrace.spark.offset_range import OffsetRange
from headrace.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
sizes = st.lists(st.integers(0, 1000), min_size=1, max_size=20)


class TestShares:
    @given(sizes, st.integers(1, 2000), st.integers(0, 10_000))
    def test_fair_portions_add_up_to_the_cap(self, wanted: list[int], most: int, so_far: int) -> None:
        there = {TopicPartition("t", number): size for number, size in enumerate(wanted)}
        found = distribute(there, most, "fair", so_far)
        assert sum(found.values()) == min(most, sum(wanted))
        assert all(0 <= taken <= there[tp] for tp, taken in found.items())
        assert distribute(there, most, "fair", so_far) == found, "planning must be repeatable"

    def test_fair_portions_starve_nobody(self) -> None:
        done = dict.fromkeys([TopicPartition("t", number) for number in range(7)], 0)
        for _ in range(7):
            for tp, taken in distribute(dict.fromkeys(done, 10), 3, "fair", sum(done.values())).items():
                done[tp] += taken
        assert min(done.values()) > 0

    def test_portions_in_proportion_are_spark_s(self) -> None:
        assert distribute({T0: 900, T1: 100}, 100, "proportional", 0) == {T0: 90, T1: 10}
        assert distribute({T0: 100_000, T1: 1}, 100, "proportional", 0) == {T0: 99, T1: 1}


# Each range is (first, last) of one partition; minPartitions, maxRecordsPerPartition; the edges of each partition.
Edges = list[list[int]]
SPARK: dict[str, tuple[list[tuple[int, int]], int | None, int | None, Edges]] = {
    "with no minPartition: N TopicPartitions to N offset ranges": ([(1, 2)], None, None, [[1, 2]]),
    "with no minPartition: empty ranges ignored": ([(1, 2), (1, 1)], None, None, [[1, 2], []]),
    "N TopicPartitions to N offset ranges": ([(1, 2)] * 3, 3, None, [[1, 2]] * 3),
    "1 TopicPartition to N offset ranges": ([(1, 5)], 4, None, [[1, 2, 3, 4, 5]]),
    "N skewed TopicPartitions to M offset ranges": ([(1, 5), (1, 21)], 4, None, [[1, 5], [1, 7, 14, 21]]),
    "SPARK-30656: ignore empty ranges and split the rest": ([(1, 1), (1, 21)], 4, None, [[], [1, 6, 11, 16, 21]]),
    "SPARK-30656: N very skewed TopicPartitions to M offset ranges": (
        [(1, 2), (1, 1001)],
        *(4, None),
        [[1, 2], [1, 334, 667, 1001]],
    ),
    "SPARK-30656: minPartitions less than the length of topic partitions": (
        [(1, 5), (1, 21)],
        *(1, None),
        [[1, 5], [1, 21]],
    ),
    "range inexact multiple of minPartitions": ([(1, 11)], 3, None, [[1, 4, 7, 11]]),
    "empty ranges ignored": ([(1, 5), (1, 21), (1, 1)], 4, None, [[1, 5], [1, 7, 14, 21], []]),
    "SPARK-28489: never drop offsets": (
        [(0, 10), (0, 10), (0, 1)],
        *(6, None),
        [[0, 3, 6, 10], [0, 3, 6, 10], [0, 1]],
    ),
    "SPARK-36576: 0 small unsplit ranges and 3 large split ranges": (
        [(0, 10_000), (0, 15_000), (0, 20_000)],
        *(9, None),
        [[0, 5000, 10_000], [0, 5000, 10_000, 15_000], [0, 5000, 10_000, 15_000, 20_000]],
    ),
    "SPARK-36576: 1 small unsplit range and 2 large split ranges": (
        [(0, 500), (0, 12_000), (0, 15_001)],
        *(6, None),
        [[0, 500], [0, 6000, 12_000], [0, 5000, 10_000, 15_001]],
    ),
    "SPARK-36576: 2 small unsplit ranges and 1 large split range": (
        [(0, 1), (0, 1), (0, 10_000)],
        *(6, None),
        [[0, 1], [0, 1], [0, 2500, 5000, 7500, 10_000]],
    ),
    "SPARK-49259: 1 TopicPartition to N offset ranges": (
        [(1, 5), (1, 2), (1, 6)],
        *(None, 4),
        [[1, 5], [1, 2], [1, 3, 6]],
    ),
    "SPARK-49259: N TopicPartition to N offset ranges": (
        [(1, 40), (1, 50), (1, 60)],
        *(None, 20),
        [[1, 20, 40], [1, 17, 33, 50], [1, 20, 40, 60]],
    ),
    "SPARK-49259: 1 TopicPartition with low minPartitions value": ([(1, 40)], 1, 20, [[1, 20, 40]]),
    "SPARK-49259: 1 TopicPartition with high minPartitions value": ([(1, 40)], 4, 20, [[1, 10, 20, 30, 40]]),
    # Not in Spark's suite, but the results of its calculator.
    "a half is rounded up": ([(0, 5), (0, 5)], 5, None, [[0, 1, 3, 5], [0, 1, 3, 5]]),
    "a part that is just too small to be split": ([(0, 10), (0, 4)], 3, None, [[0, 5, 10], [0, 4]]),
}


class TestSplit:
    @pytest.mark.parametrize("name", SPARK)
    def test_ranges_are_split_as_by_spark_s_calculator(self, name: str) -> None:
        ranges, least, longest, edges = SPARK[name]
        given_ranges = [OffsetRange(TopicPartition("t", number), *each) for number, each in enumerate(ranges)]
        found: Edges = [[] for _ in ranges]
        for each in split_ranges(given_ranges, least, longest):
            own = found[each.tp.partition]
            assert not own or own[-1] == each.start
            own += [each.end] if own else [each.start, each.end]
        assert found == edges

    @given(sizes, st.none() | st.integers(1, 50), st.none() | st.integers(1, 300))
    def test_split_ranges_cover_the_whole(self, wanted: list[int], least: int | None, longest: int | None) -> None:
        ranges = [OffsetRange(TopicPartition("t", number), 5, 5 + size) for number, size in enumerate(wanted)]
        pieces = split_ranges(ranges, least, longest)
        for whole in ranges:
            own = [piece for piece in pieces if piece.tp == whole.tp]
            assert [o for piece in own for o in range(piece.start, piece.end)] == list(range(whole.start, whole.end))
        assert all(piece.size > 0 for piece in pieces)
        if longest is not None:
            assert all(piece.size <= longest for piece in pieces)

    @given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(1, 50))
    def test_the_number_of_tasks_differs_from_min_partitions_by_rounding_only(
        self, wanted: list[int], least: int
    ) -> None:
        """Spark promises an approximate number: each partition may round its share up or down by half a task."""
        ranges = [OffsetRange(TopicPartition("t", number), 0, size) for number, size in enumerate(wanted)]
        assert len(split_ranges(ranges, least, None)) >= min(least, sum(wanted)) - len(wanted) / 2
