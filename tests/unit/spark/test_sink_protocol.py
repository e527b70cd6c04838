"""The record of a batch decision, and the checks that depend on it."""

from __future__ import annotations

import dataclasses
import hashlib
import re

import pytest

pytest.importorskip("pyspark")

from headrace._machines.produce.open_transaction import OpenTransaction, TransactionDescription
from headrace.spark.sink.protocol import (
    PART_SIZE,
    BatchDecision,
    SinkError,
    TaskTransaction,
    decode_decision,
    driver_transactional_id,
    encode_decision,
    find_orphans,
    find_unusable,
    task_id_pattern,
    task_transactional_id,
)


def task(number: int, epoch: int = 4) -> TaskTransaction:
    process = hashlib.sha256(b"%d" % (number // 4)).hexdigest()[:16]
    name = task_transactional_id("a-sink", process, number % 4)
    return TaskTransaction(OpenTransaction(name, 2**40 + number, epoch), number, 10**6 + number)


def decision(batch: int, tasks: int = 0, query: str = "q") -> BatchDecision:
    return BatchDecision(7, query, batch, not tasks, tuple(task(number) for number in range(tasks)))


class TestRecord:
    @pytest.mark.parametrize("tasks", [0, 1, 30, 50, 51, 52, 53, 200, 5000])
    def test_a_decision_of_any_size_is_read_back(self, tasks: int) -> None:
        wanted = decision(12, tasks, "2f6ac1b1-6a2c-4fd4-a5a7-000000000000")
        parts = encode_decision(wanted)
        assert max(map(len, parts)) <= PART_SIZE
        assert len(parts) <= 50, "__consumer_offsets has 50 partitions"
        assert decode_decision(parts[::-1], "a-sink") == wanted

    def test_the_latest_decision_counts(self) -> None:
        older, newer = decision(1, 1000), decision(1, 1000).completed()
        parts = encode_decision(older)
        parts[0:1] = encode_decision(newer)  # its only part replaces the first part of the older one
        assert decode_decision(parts, "a-sink") == newer

    @pytest.mark.parametrize("run", [None, "8c5b3c6e-0000-4000-8000-000000000000"])
    @pytest.mark.parametrize("is_gapless", [False, True])
    def test_all_that_a_decision_says_is_read_back(self, run: str | None, is_gapless: bool) -> None:
        wanted = dataclasses.replace(decision(3, 2), run=run, is_gapless=is_gapless)
        assert decode_decision(encode_decision(wanted), "a-sink") == wanted

    def test_a_decision_of_version_0_1_0_is_read(self) -> None:
        head = '"sequence":9,"part":0,"parts":1,"query":"q","batch":3,"complete":true'
        text = f'{{"headrace.sink":1,{head},"transactions":""}}'
        assert decode_decision([text], "a-sink") == BatchDecision(9, "q", 3, True, is_gapless=False)

    def test_sequence_numbers_increase(self) -> None:
        first = decision(5, 2)
        assert first.sequence < first.completed().sequence
        assert first.sequence < first.withdrawn().sequence

    def test_a_withdrawn_decision_is_one_about_the_batch_before(self) -> None:
        assert decision(5, 2).withdrawn() == BatchDecision(8, "q", 4, True)
        assert decode_decision(encode_decision(decision(0, 2).withdrawn()), "a-sink") == BatchDecision(8, "q", -1, True)

    def test_no_decision_is_none(self) -> None:
        assert decode_decision([], "a-sink") is None

    def test_a_missing_part_is_an_error(self) -> None:
        parts = encode_decision(decision(1, 1000))
        with pytest.raises(SinkError, match="is incomplete: offsets of its group were deleted"):
            decode_decision(parts[:-1], "a-sink")
        with pytest.raises(SinkError, match="is incomplete"):
            decode_decision(parts[1:], "a-sink")

    @pytest.mark.parametrize("text", ["", "lag 5", "{}", '{"headrace.sink":2}', "[1]"])
    def test_offsets_of_consumers_are_an_error(self, text: str) -> None:
        with pytest.raises(SinkError, match="sinkId='a-sink' is the name of a consumer group"):
            decode_decision([text], "a-sink")


class TestTransactions:
    def description(self, state: str = "Ongoing", epoch: int = 4, producer_id: int = 2**40) -> TransactionDescription:
        return TransactionDescription(state, producer_id, epoch, 1_000_000, 60_000)

    @pytest.mark.parametrize(
        ("found", "now", "problem"),
        [
            ({}, 0, None),
            ({"state": "CompleteAbort", "epoch": 5}, 0, "is not open any more (CompleteAbort, epoch 5)"),
            ({"epoch": 6}, 0, "is not open any more (Ongoing, epoch 6)"),
            ({"producer_id": 1}, 0, "is not open any more (Ongoing, epoch 4)"),
            ({}, 50_000, None),
            ({}, 50_001, "is open for 50 s, and ends after 60 s (kafka.transaction.timeout.ms)"),
        ],
    )
    def test_transactions_that_cannot_be_committed_safely_are_found(
        self, found: dict[str, int], now: int, problem: str | None
    ) -> None:
        name = task(0).transaction.transactional_id
        problems = find_unusable([task(0)], {name: self.description(**found)}, 1_000_000 + now, 10_000)  # type: ignore[arg-type]
        assert problems == ([] if problem is None else [f"the transaction of task 0 {problem}"])

    def test_an_unknown_transaction_cannot_be_committed(self) -> None:
        assert find_unusable([task(0)], {}, 0, 0) == ["the transaction of task 0 is not open any more (unknown)"]

    def test_open_transactions_without_a_decision_are_orphans(self) -> None:
        described = {
            task(0).transaction.transactional_id: self.description(),
            "loser": self.description(epoch=9, producer_id=77),
            "ended": self.description("CompleteCommit"),
        }
        assert find_orphans(described, decision(1, 1)) == [OpenTransaction("loser", 77, 9)]


class TestNames:
    def test_the_pattern_finds_the_tasks_of_this_sink_only(self) -> None:
        pattern = task_id_pattern("a.sink")
        assert re.fullmatch(pattern, task_transactional_id("a.sink", "0123456789abcdef", 12))
        for sink in ("a.sink-task-b", "a.sink2", "axsink", "my-a.sink"):
            assert not re.fullmatch(pattern, task_transactional_id(sink, "0123456789abcdef", 12))
        assert not re.fullmatch(pattern, driver_transactional_id("a.sink"))
