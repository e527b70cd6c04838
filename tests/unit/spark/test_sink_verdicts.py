"""The tables of `verdicts.py`: which decision counts, which batch is written, and what becomes of a decided batch."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("pyspark")

from kio.schema.errors import ErrorCode

from headrace._machines.produce.open_transaction import OpenTransaction, TransactionDescription
from headrace._protocol.codes import kafka_error
from headrace.spark.sink.protocol import BatchDecision, SinkError, TaskTransaction, encode_decision
from headrace.spark.sink.verdicts import (
    Batch,
    CompletionVerdict,
    FoundDecisions,
    State,
    check_job,
    described_state,
    ended_state,
    judge_batch,
    judge_ends,
    judge_found,
    should_commit,
)

INTERNAL = "__consumer_offsets"


def decision(batch: int, query: str = "q", sequence: int = 7, tasks: int = 0, **changes: object) -> BatchDecision:
    transactions = tuple(TaskTransaction(OpenTransaction(f"s-{n}", n, 4), n, 10) for n in range(tasks))
    return BatchDecision(sequence, query, batch, not tasks, transactions, **changes)  # type: ignore[arg-type]


class TestFound:
    def found(self, **by_topic: BatchDecision) -> FoundDecisions:
        return FoundDecisions({topic: tuple(encode_decision(each)) for topic, each in by_topic.items()})

    def test_the_decision_under_the_topic_of_the_options_counts(self) -> None:
        assert judge_found(self.found(mine=decision(3)), "s", "mine") == decision(3)
        older = decision(2, sequence=5)
        assert judge_found(self.found(former=older, mine=decision(3)), "s", "mine") == decision(3)

    def test_a_changed_topic_is_refused(self) -> None:
        older = decision(2, sequence=5)
        for found in (self.found(former=decision(3)), self.found(mine=older, former=decision(3))):
            with pytest.raises(
                SinkError, match="stored under the topic former, but the decisionTopic is mine"
            ) as caught:
                judge_found(found, "s", "mine")
            assert "Set decisionTopic=former" in str(caught.value)

    def test_a_topic_that_may_not_be_read_is_no_absence(self) -> None:
        with pytest.raises(SinkError, match=f"not allowed to read the topic {INTERNAL}") as caught:
            judge_found(FoundDecisions({}, can_read_topic=False, group_exists=True), "s", INTERNAL)
        assert f"Allow it Read on the topic {INTERNAL}. Do not change the decisionTopic" in str(caught.value)
        with pytest.raises(SinkError, match="Or set decisionTopic to a topic that it may read: there is no decision"):
            judge_found(FoundDecisions({}, can_read_topic=False), "s", INTERNAL)

    def test_a_group_without_visible_offsets_is_no_absence(self) -> None:
        with pytest.raises(SinkError, match="the group s exists, but none of its offsets is visible"):
            judge_found(FoundDecisions({}, group_exists=True), "s", "mine")

    def test_nothing_is_hidden_without_a_group_or_without_rights(self) -> None:
        assert judge_found(FoundDecisions({}), "s", "mine") is None
        assert judge_found(FoundDecisions({}, group_exists=True, checks_rights=False), "s", "mine") is None


class TestBatch:
    @pytest.mark.parametrize(
        ("decided", "expected"),
        [
            (decision(4), True),
            (decision(5), False),
            (decision(5).withdrawn(), True),
            (decision(3, is_gapless=False), True),  # of a version that did not record batches without rows
            (decision(5, is_gapless=False), False),
        ],
    )
    def test_a_batch_is_written_after_the_one_before_it(self, decided: BatchDecision, expected: bool) -> None:
        assert judge_batch(decided, Batch("q", 5), "s") is expected

    @pytest.mark.parametrize("decided", [None, decision(0, "job-1")])
    def test_without_a_decision_only_the_first_batch_is_written(self, decided: BatchDecision | None) -> None:
        assert judge_batch(decided, Batch("q", 0), "s")
        assert judge_batch(decided, Batch("q", 5), "s", first_batch=5)
        for first in (None, 4, 6):
            with pytest.raises(SinkError, match="Batch 5 cannot be written exactly once: sinkId='s' has no decision"):
                judge_batch(decided, Batch("q", 5), "s", first)

    def test_a_gap_is_refused(self) -> None:
        # sinkId=s wrote batches up to 3, another one batch 4.
        with pytest.raises(SinkError, match="the latest decision of sinkId='s' is about batch 3") as caught:
            judge_batch(decision(3), Batch("q", 5), "s")
        assert "set firstBatchId=5" in str(caught.value)
        assert judge_batch(decision(3), Batch("q", 5), "s", first_batch=5)

    @pytest.mark.parametrize("number", range(8))
    @pytest.mark.parametrize("first", [None, 0, 5])
    def test_the_sink_of_another_query_is_refused_always(self, number: int, first: int | None) -> None:
        with pytest.raises(
            SinkError, match="belongs to another query, other, which has written batch 5; this query is q"
        ):
            judge_batch(decision(5, "other"), Batch("q", number), "s", first)

    def test_an_old_checkpoint_is_refused(self) -> None:
        for first in (None, 5):
            with pytest.raises(
                SinkError, match="Batch 5 cannot be written: batch 6 of the same query was written already"
            ):
                judge_batch(decision(6), Batch("q", 5), "s", first)

    @pytest.mark.parametrize("decided", [None, decision(3)])
    def test_a_function_that_skips_batches_is_told_to_write_them(self, decided: BatchDecision | None) -> None:
        with pytest.raises(SinkError, match="let it write every batch, also one without rows") as caught:
            judge_batch(decided, Batch("q", 5, run="r"), "s")
        assert "set firstBatchId=5" in str(caught.value)
        with pytest.raises(SinkError) as caught:
            judge_batch(decided, Batch("q", 5), "s")
        assert "foreachBatch" not in str(caught.value)

    def test_two_writes_of_one_function_are_refused(self) -> None:
        decided = decision(5, run="this run")
        assert not judge_batch(decided, Batch("q", 5, "after a restart"), "s")
        assert not judge_batch(decided, Batch("q", 5), "s")
        with pytest.raises(SinkError, match="foreachBatch has already written batch 5 with sinkId='s'"):
            judge_batch(decided, Batch("q", 5, "this run"), "s")
        assert judge_batch(decided, Batch("q", 6, "this run"), "s")

    def test_a_job_uses_no_sink_of_a_query(self) -> None:
        check_job(None, "s")
        check_job(decision(0, "job-1"), "s")
        with pytest.raises(SinkError, match="belongs to the query q, which has written batch 5"):
            check_job(decision(5), "s")


class TestCompletion:
    @pytest.mark.parametrize(
        ("state", "producer_id", "epoch", "expected"),
        [
            ("Ongoing", 9, 4, State.OPEN),
            ("PrepareCommit", 9, 5, State.COMMITTED),
            ("CompleteCommit", 9, 5, State.COMMITTED),
            ("PrepareAbort", 9, 5, State.ABORTED),
            ("CompleteAbort", 9, 5, State.ABORTED),
            ("CompleteCommit", 9, 6, State.UNKNOWN),  # a later transaction of the same id
            ("CompleteAbort", 9, 6, State.UNKNOWN),
            ("Ongoing", 9, 6, State.UNKNOWN),
            ("Empty", 9, 6, State.UNKNOWN),
            ("CompleteCommit", 8, 5, State.UNKNOWN),
        ],
    )
    def test_a_transaction_is_known_by_its_producer_and_epoch(
        self, state: str, producer_id: int, epoch: int, expected: State
    ) -> None:
        description = TransactionDescription(state, producer_id, epoch, 0, 60_000)
        assert described_state(OpenTransaction("s-0", 9, 4), description) is expected

    def test_an_expired_id_is_unknown(self) -> None:
        assert described_state(OpenTransaction("s-0", 9, 4), None) is State.UNKNOWN

    def test_every_combination_is_complete_withdrawn_or_lost(self) -> None:
        """EndTxn changes open transactions only, so the verdict follows from what really happened to each of them."""
        for before in itertools.product(State, repeat=3):
            decided = decision(5, tasks=3)
            described = {
                task.transaction.transactional_id: self.description(task.transaction, state)
                for task, state in zip(decided.transactions, before, strict=True)
            }
            found = {name: each for name, each in described.items() if each is not None}
            commits = should_commit(decided, found)
            ended = State.COMMITTED if commits else State.ABORTED
            after = [ended if state is State.OPEN else state for state in before]
            assert [ended_state(self.answer(state, commits), commits=commits) for state in after] == after
            verdict = judge_ends(after)
            assert verdict is {
                frozenset({State.COMMITTED}): CompletionVerdict.COMPLETE,
                frozenset({State.ABORTED}): CompletionVerdict.WITHDRAWN,
            }.get(frozenset(after), CompletionVerdict.LOST)
            # Only what ended before its decision was carried out can make the result a loss.
            is_torn_before = State.UNKNOWN in before or {State.COMMITTED, State.ABORTED} <= set(before)
            assert (verdict is CompletionVerdict.LOST) == is_torn_before

    def description(self, transaction: OpenTransaction, state: State) -> TransactionDescription | None:
        if state is State.UNKNOWN:
            return None
        name = {State.OPEN: "Ongoing", State.COMMITTED: "CompleteCommit", State.ABORTED: "CompleteAbort"}[state]
        epoch = transaction.epoch + (state is not State.OPEN)
        return TransactionDescription(name, transaction.producer_id, epoch, 0, 60_000)

    def answer(self, state: State, commits: bool) -> Exception | None:  # of EndTxn, for this state
        if state is State.UNKNOWN:
            return kafka_error(ErrorCode.producer_fenced, "EndTxn")
        return None if (state is State.COMMITTED) == commits else kafka_error(ErrorCode.invalid_txn_state, "EndTxn")
