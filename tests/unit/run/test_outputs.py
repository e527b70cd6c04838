"""Outputs of an exactly-once run(): each is in the transaction that commits its record's offset."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace import TopicPartition
from headrace._machines.run.outputs import PendingOutputs

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def outputs_from(offset: int = 0) -> PendingOutputs[str]:
    outputs: PendingOutputs[str] = PendingOutputs()
    outputs.begin(A, offset)
    return outputs


def test_a_cut_has_the_outputs_before_the_first_offset_that_is_not_done() -> None:
    outputs = outputs_from()
    for offset in (2, 0, 3):
        outputs.put(A, offset, [f"{offset}a", f"{offset}b"])
    cut = outputs.cut({A: 3})
    assert (dict(cut.offsets), list(cut.outputs)) == ({A: 3}, ["0a", "0b", "2a", "2b"])


def test_outputs_stay_until_their_transaction_is_committed() -> None:
    outputs = outputs_from()
    outputs.put(A, 0, ["0"])
    assert outputs.cut({A: 1}) == outputs.cut({A: 1})
    outputs.committed(outputs.cut({A: 1}))
    assert not outputs.cut({A: 1}).offsets
    assert outputs.unwritten() == {}


def test_offsets_without_outputs_are_committed_as_well() -> None:
    outputs = outputs_from(5)
    assert dict(outputs.cut({A: 9}).offsets) == {A: 9}
    assert not outputs.cut({A: 5}).offsets
    assert not outputs.cut({B: 9}).offsets, "the partition has delivered nothing"


def test_a_partition_that_is_lost_takes_its_outputs_along() -> None:
    outputs = outputs_from()
    outputs.put(A, 0, ["0"])
    outputs.keep([B])
    outputs.begin(A, 0)
    assert not outputs.cut({A: 1}).outputs
    outputs.keep([])
    outputs.put(A, 0, ["late"])
    assert outputs.unwritten() == {}
    outputs.begin(A, 0)
    assert not outputs.cut({A: 1}).outputs, "the record is delivered again, with outputs of its own or without any"


def test_what_was_not_written_is_read_again_from_the_last_commit_on() -> None:
    outputs = outputs_from(3)
    outputs.committed(outputs.cut({A: 4}))
    outputs.put(A, 6, ["6"])
    assert outputs.unwritten() == {A: 4}


@given(st.data())
def test_every_output_is_written_once_and_in_order_however_records_end(data: Any) -> None:
    count = data.draw(st.integers(1, 12))
    order = data.draw(st.permutations(range(count)))
    outputs, done, written, committed = outputs_from(), set[int](), list[str](), 0
    for offset in order:
        outputs.put(A, offset, [str(offset)])
        done.add(offset)
        low = next(each for each in range(count + 1) if each not in done)
        if data.draw(st.booleans()):
            cut = outputs.cut({A: low})
            if data.draw(st.booleans()):  # otherwise the transaction is aborted
                written += cut.outputs
                outputs.committed(cut)
                committed = cut.offsets.get(A, committed)
                assert written == [str(each) for each in range(committed)]
    written += outputs.cut({A: count}).outputs
    assert written == [str(each) for each in range(count)]
