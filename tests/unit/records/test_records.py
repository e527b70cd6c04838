"""`Records`, `Batch` and `Record` as sequences and values."""

from __future__ import annotations

import pickle
import time
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import Batch, Record, Records, decode
from headrace.types import TopicPartition
from support.brokers.record_batches import Entry, encode_batch


def batch(count: int, *, topic="t", partition=0, base_offset=0, lane=None, tail=0, leader_epoch=7) -> Batch:
    """A batch of `count` records, followed by `tail` offsets that compaction has removed."""
    data = encode_batch(
        [Entry(key=b"k", value=b"%s-%d-%d" % (topic.encode(), partition, base_offset + i)) for i in range(count)],
        base_offset=base_offset,
        last_offset_delta=max(count - 1, 0) + tail,
        leader_epoch=leader_epoch,
    )
    return decode(data, topic=topic, partition=partition, position=base_offset, lane=lane)


def offsets(records) -> list[int]:
    return [r.offset for r in records]


class TestBatch:
    def test_a_batch_is_a_sequence(self):
        b = batch(5, base_offset=10)
        assert len(b) == 5
        assert offsets(b) == [10, 11, 12, 13, 14]
        assert (b[0].offset, b[4].offset, b[-1].offset, b[-5].offset) == (10, 14, 14, 10)
        assert offsets(reversed(b)) == [14, 13, 12, 11, 10]
        assert bisect_left(b, 13, key=lambda r: r.offset) == 3
        for index in (5, -6, -11, 10**18):
            with pytest.raises(IndexError):
                b[index]

    def test_iterators_of_a_batch_are_independent_and_end_for_good(self):
        b = batch(3)
        first, second = iter(b), iter(b)
        assert next(first).offset == next(second).offset == 0
        assert offsets(first) == [1, 2]
        assert list(first) == []
        assert first.__length_hint__() == 0
        assert second.__length_hint__() == 2

    @given(st.integers(0, 12), st.integers(0, 15), st.integers(0, 15), st.integers(0, 15), st.integers(0, 15))
    def test_slices_of_slices_of_a_batch_are_slices(self, count, start, length, start2, length2):
        b = batch(count, base_offset=100, tail=5)
        plain = list(b)
        once = b.slice(start, length)
        twice = once.slice(start2, length2)
        assert list(once) == plain[start:][:length]
        assert list(twice) == plain[start:][:length][start2:][:length2]

    def test_a_slice_of_a_batch_knows_its_next_offset(self):
        b = batch(4, base_offset=10, tail=6)
        assert b.next_offset == 20
        assert b.slice(0, 2).next_offset == 12
        assert b.slice(1, 3).next_offset == 20
        assert b.slice(1, 3).slice(0, 2).next_offset == 13
        assert b.slice(1, 3).slice(2, 1).next_offset == 20
        assert b.slice(0, 2).slice(1, 1).next_offset == 12
        assert b.slice(2, 0).next_offset == 12
        assert b.slice(4, 0).next_offset == 20

    def test_negative_slices_of_a_batch_are_refused(self):
        for start, length in ((-1, 1), (0, -1)):
            with pytest.raises(ValueError, match="must not be negative"):
                batch(3).slice(start, length)

    def test_each_record_has_its_leader_epoch(self):
        data = encode_batch([Entry()] * 2, leader_epoch=3) + encode_batch([Entry()] * 2, base_offset=2, leader_epoch=4)
        b = decode(data, topic="t", partition=0, position=0)
        assert b.leader_epoch == 4
        assert b.slice(0, 2).leader_epoch == 3
        assert b.slice(0, 3).leader_epoch == 4
        assert [r.leader_epoch for r in b] == [3, 3, 4, 4]

    def test_the_bytes_of_a_batch_are_divided_among_its_slices(self):
        b = batch(1000)
        assert 1000 * (8 + 8 + 4 + 4 + 5) < b.nbytes < 80_000
        halves = b.slice(0, 500).nbytes + b.slice(500, 500).nbytes
        assert b.nbytes - 1 <= halves <= b.nbytes
        assert b.slice(0, 0).nbytes == 0

    def test_a_batch_has_a_first_and_a_last_offset(self):
        b = batch(5, base_offset=10, tail=2)
        assert (b.first_offset, b.last_offset) == (10, 14)
        assert (b.slice(2, 2).first_offset, b.slice(2, 2).last_offset) == (12, 13)

    def test_the_repr_of_a_batch_has_its_offsets(self):
        assert repr(batch(3, base_offset=5)) == "<Batch t-0: 3 records, offsets 5 to 7>"
        assert repr(batch(0, base_offset=5)) == "<Batch t-0: no records, next offset 6>"


class TestRecord:
    FIELDS = "topic partition offset timestamp timestamp_type key value headers lane leader_epoch".split()  # noqa: SIM905
    RECORD = Record(
        "t",
        1,
        2,
        timestamp=3,
        timestamp_type=1,
        key=b"k",
        value=b"v",
        headers=[("h", b"1"), ("h", None)],
        lane="live",
        leader_epoch=4,
    )

    def test_records_are_equal_by_value(self):
        data = encode_batch(
            [Entry(b"k", b"v", (("h", b"1"), ("h", None)))],
            base_offset=2,
            max_timestamp=3,
            log_append_time=True,
            leader_epoch=4,
        )
        decoded = decode(data, topic="t", partition=1, position=2, lane="live")[0]
        assert decoded == self.RECORD
        assert hash(decoded) == hash(self.RECORD)
        assert len({decoded, self.RECORD}) == 1

    @pytest.mark.parametrize(
        "change",
        [
            {"topic": "u"},
            {"partition": 2},
            {"offset": 3},
            {"timestamp": 4},
            {"timestamp_type": 0},
            {"key": None},
            {"key": b""},
            {"value": b"w"},
            {"headers": ()},
            {"headers": [("h", None), ("h", b"1")]},
            {"lane": None},
            {"leader_epoch": -1},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_every_field_of_a_record_counts_for_equality(self, change):
        fields = {name: getattr(self.RECORD, name) for name in self.FIELDS}
        assert Record(**fields) == self.RECORD
        assert Record(**fields | change) != self.RECORD

    def test_a_record_does_not_equal_other_types(self):
        assert self.RECORD != ("t", 1, 2)
        assert self.RECORD != None  # noqa: E711

    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_a_record_can_be_pickled(self, protocol):
        assert pickle.loads(pickle.dumps(self.RECORD, protocol)) == self.RECORD

    def test_a_pickled_record_does_not_contain_its_batch(self):
        assert len(pickle.dumps(batch(10_000)[0])) < 300

    def test_a_record_cannot_be_changed(self):
        with pytest.raises(AttributeError):
            self.RECORD.value = b"other"
        with pytest.raises(AttributeError):
            self.RECORD.other = 1

    def test_a_record_has_defaults(self):
        r = Record("t", 0, 5)
        assert (r.timestamp, r.timestamp_type, r.key, r.value, r.headers, r.lane) == (-1, 0, None, None, (), None)
        with pytest.raises(ValueError, match="timestamp_type"):
            Record("t", 0, 5, timestamp_type=2)

    def test_the_repr_of_a_record_is_short(self):
        assert repr(self.RECORD) == (
            'Record(topic="t", partition=1, offset=2, timestamp=3, key=b"k", value=b"v", '
            'headers=[("h", b"1"), ("h", None)], lane="live")'
        )
        long = repr(Record("t", 0, 1, value=b"\xff" * 10_000_000))
        assert len(long) < 400
        assert "10000000 bytes" in long

    def test_a_record_outlives_its_batch(self):
        record = batch(3)[1]
        assert record.value == b"t-0-1"


class TestRecords:
    A, B = TopicPartition("t", 0), TopicPartition("u", 1)

    def records(self) -> Records:
        return Records(
            [
                batch(3, base_offset=10),
                batch(0, base_offset=13),
                batch(2, topic="u", partition=1),
                batch(4, base_offset=14),
            ]
        )

    def test_records_may_be_empty(self):
        assert len(Records()) == len(Records.EMPTY) == 0
        assert not Records.EMPTY
        assert list(Records.EMPTY) == []
        assert Records.EMPTY.partitions == ()
        assert Records.EMPTY.nbytes == 0
        with pytest.raises(IndexError):
            Records.EMPTY[0]

    def test_records_are_a_sequence(self):
        records = self.records()
        plain = list(records)
        assert len(records) == len(plain) == 9
        assert records
        assert [records[i] for i in range(9)] == plain
        assert [records[i] for i in range(-9, 0)] == plain
        assert list(reversed(records)) == plain[::-1]
        assert plain[8] in records
        for index in (9, -10):
            with pytest.raises(IndexError):
                records[index]

    @given(st.none() | st.integers(-12, 12), st.none() | st.integers(-12, 12))
    def test_slices_of_records_are_records(self, start, stop):
        records = self.records()
        assert list(records[start:stop]) == list(records)[start:stop]
        assert isinstance(records[start:stop], Records)

    def test_slices_of_records_with_steps_are_refused(self):
        with pytest.raises(ValueError, match="step"):
            self.records()[::2]

    @pytest.mark.parametrize("key", ["t", 1.5, None, b"", ("t",), ("t", 0, 0), ("t", "0"), (0, "t"), (None, 0), [1]])
    def test_wrong_keys_of_records_are_refused(self, key):
        with pytest.raises(TypeError, match=r"^records .* not .*"):
            self.records()[key]

    def test_records_can_be_indexed_by_partition(self):
        records = self.records()
        assert records.partitions == (self.A, self.B)
        assert offsets(records[self.A]) == [10, 11, 12, 14, 15, 16, 17]
        assert offsets(records[self.B]) == [0, 1]
        assert not records[TopicPartition("t", 7)]
        assert not records[TopicPartition("other", 0)]

    def test_nbytes_of_records_is_that_of_their_batches(self):
        records = self.records()
        assert records.nbytes == sum(b.nbytes for b in records._batches)

    def test_the_repr_of_records_has_their_counts(self):
        assert repr(self.records()) == "<Records: 9 (t-0: 7, u-1: 2)>"
        assert repr(Records()) == "<Records: 0>"

    def test_records_do_not_change_with_the_list_they_were_made_from(self):
        batches = [batch(2)]
        records = Records(batches)
        batches.clear()
        assert len(list(records)) == len(records) == 2

    def test_making_records_of_a_slice_takes_microseconds(self):
        whole = batch(2_000)
        best = 1.0
        for _ in range(500):
            start = time.perf_counter()
            records = Records([whole.slice(500, 500)])
            assert len(records) == 500
            best = min(best, time.perf_counter() - start)
        assert best < 50e-6


@pytest.mark.parametrize("name", ["partition", "offset", "timestamp", "timestamp_type", "leader_epoch"])
def test_a_bool_is_not_a_number_of_a_record(name: str) -> None:
    """As in the arguments of all clients."""
    numbers: dict[str, Any] = {"partition": 0, "offset": 0, name: True}
    with pytest.raises(TypeError, match="whole number"):
        Record("t", **numbers)
    assert getattr(Record("t", **numbers | {name: 1}), name) == 1
