"""An iteration uses record objects again, and no program can tell: a record that somebody keeps never changes."""

from __future__ import annotations

import itertools
import threading
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.records import Batch, Record, Records, decode
from support.brokers.record_batches import Entry, encode_batch


def batch(count: int, base: int = 0) -> Batch:
    data = encode_batch([Entry(value=b"%d" % (base + n)) for n in range(count)], base_offset=base, leader_epoch=1)
    return decode(data, topic="t", partition=0, position=base)


def is_at(record: Record, offset: int) -> bool:
    return record.offset == offset and record.value == b"%d" % offset


def test_a_loop_that_keeps_no_record_uses_two_objects() -> None:
    assert len({id(record) for record in batch(100)}) == 2


@settings(deadline=None, max_examples=100)
@given(keeps=st.lists(st.integers(0, 6), max_size=40), sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_records_that_are_kept_for_a_while_keep_their_rows(keeps: list[int], sizes: list[int]) -> None:
    """Each record is kept until so many more have come."""
    starts = list(itertools.accumulate(sizes, initial=0))
    records = Records([batch(size, start) for size, start in zip(sizes, starts, strict=False)])
    kept: dict[int, list[Record]] = {}
    for number, record in enumerate(records):
        assert is_at(record, number)
        kept.pop(number, None)
        if number < len(keeps) and keeps[number]:
            kept.setdefault(number + keeps[number], []).append(record)
        offsets = [each.offset for group in kept.values() for each in group]
        assert len(set(offsets)) == len(offsets)
        assert all(is_at(each, each.offset) for group in kept.values() for each in group)


def test_records_in_collections_are_objects_of_their_own() -> None:
    records = Records([batch(5), batch(4, 5)])
    assert all(is_at(record, n) for n, record in enumerate(list(records)))
    assert all(is_at(record, n) for n, record in enumerate(tuple(records)))
    assert [record.offset for record in deque(records, maxlen=2)] == [7, 8]
    assert [(a.offset, b.offset) for a, b in itertools.pairwise(records)] == [(n, n + 1) for n in range(8)]
    assert max(records, key=lambda record: -record.offset).offset == 0
    assert [record.offset for record in sorted(records, key=lambda record: -record.offset)] == list(range(8, -1, -1))
    assert len({id(record) for record in [*records]}) == 9


def test_two_iterations_of_a_batch_do_not_disturb_each_other() -> None:
    several = batch(6)
    pairs = [(a.offset, b.offset) for a in several for b in several]
    assert pairs == list(itertools.product(range(6), repeat=2))


def test_a_record_given_to_a_thread_stays() -> None:
    found: list[int] = []
    may_look = threading.Event()

    def look(record: Record) -> None:
        may_look.wait(10)
        found.append(record.offset)

    threads = [threading.Thread(target=look, args=(record,)) for record in batch(5)]
    for thread in threads:
        thread.start()
    may_look.set()
    for thread in threads:
        thread.join(10)
    assert sorted(found) == list(range(5))


def test_a_method_of_a_record_keeps_it() -> None:
    getters = [record.__eq__ for record in batch(4)]
    assert [getter.__self__.offset for getter in getters] == list(range(4))  # type: ignore[attr-defined]


def test_an_iteration_that_is_left_and_resumed_continues() -> None:
    iterator = iter(batch(6))
    first = next(iterator)
    assert [record.offset for record in itertools.islice(iterator, 3)] == [1, 2, 3]
    assert is_at(first, 0)
    assert [record.offset for record in iterator] == [4, 5]
    assert next(iterator, None) is None
