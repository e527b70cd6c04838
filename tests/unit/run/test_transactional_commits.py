"""Transactions of an exactly-once run(), with a producer that fails at each of its calls in turn."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace import GroupMetadata, ProducerRecord, TopicPartition
from headrace._aio.run.transactional_commits import Calls, TransactionalCommits, outputs_of
from headrace._machines.run.outputs import Cut
from headrace._protocol.codes import kafka_error
from headrace.errors import (
    ProducerFencedError,
    RecordTooLargeError,
    RequestTimeoutError,
    TransactionAbortableError,
)

TP = TopicPartition("in", 0)
OUTPUT = ProducerRecord("out", b"value", b"key", partition=1)
CUT = Cut({TP: 7}, [OUTPUT])
ALL = ["begin", "send", "send_offsets", "commit"]


class Trial:
    """Performs the calls that the generator yields. Each of `failures` is raised once, by the call of its name."""

    def __init__(self, cut: Cut[ProducerRecord] = CUT, **failures: BaseException) -> None:
        self.failures = failures
        self.calls: list[str] = []
        self.committed: list[Cut[ProducerRecord]] = []
        group = GroupMetadata("g", 1, "member")
        self.commits = TransactionalCommits(None, lambda: cut, self.committed.append, lambda: group)

    def commit(self) -> list[str]:
        return self._perform(self.commits.steps())

    def initialize(self) -> list[str]:
        return self._perform(self.commits.initialize())

    def _perform(self, steps: Calls) -> list[str]:
        before = len(self.calls)
        failure: BaseException | None = None
        while True:
            try:
                call = steps.throw(failure) if failure is not None else next(steps)
            except StopIteration:
                return self.calls[before:]
            self.calls.append(call.method)
            failure = self.failures.pop(call.method, None)


def abortable(code: int) -> TransactionAbortableError:
    error = TransactionAbortableError("failed")
    error.__cause__ = kafka_error(code, "Produce")
    return error


def test_offsets_are_committed_as_the_member_that_had_the_records() -> None:
    """A member that leaves the group meanwhile must be rejected."""
    now = [GroupMetadata("g", 1, "member")]
    steps = TransactionalCommits(None, lambda: CUT, lambda _: None, lambda: now[0]).steps()
    assert next(steps).method == "begin"
    now[0] = GroupMetadata("g")
    sent = [next(steps), next(steps)][-1]
    assert sent.arguments[1] == GroupMetadata("g", 1, "member")


def test_transactions_are_initialized_until_that_succeeds() -> None:
    trial = Trial(init_transactions=RequestTimeoutError("late"))
    assert trial.initialize() == ["init_transactions"]
    assert not trial.commits.is_initialized
    assert trial.initialize() == ["init_transactions"]
    assert trial.commits.is_initialized


def test_transactions_that_cannot_be_initialized_end_run() -> None:
    trial = Trial(init_transactions=ProducerFencedError("fenced"))
    with pytest.raises(ProducerFencedError):
        trial.initialize()
    assert not trial.commits.is_initialized


def test_a_transaction_has_the_outputs_and_the_offsets() -> None:
    trial = Trial()
    assert trial.commit() == ALL
    assert trial.committed == [CUT]


def test_nothing_is_begun_without_new_offsets() -> None:
    assert Trial(Cut({}, [])).commit() == []


@pytest.mark.parametrize("call", ["send", "send_offsets", "commit"])
def test_a_transaction_that_failed_for_a_rebalance_is_aborted_and_repeated(call: str) -> None:
    trial = Trial(**{call: abortable(ErrorCode.illegal_generation)})
    assert trial.commit() == [*ALL[: ALL.index(call) + 1], "abort"]
    assert trial.committed == []
    assert trial.commit() == ALL
    assert trial.committed == [CUT]


def test_a_commit_that_timed_out_is_repeated_before_anything_else() -> None:
    trial = Trial(commit=RequestTimeoutError("late"))
    assert trial.commit() == ALL
    assert (trial.committed, trial.commits.unresolved_partitions) == ([], {TP})
    assert trial.commit()[0] == "commit"
    assert trial.committed[0] == CUT


def test_a_begin_that_timed_out_is_repeated() -> None:
    trial = Trial(begin=RequestTimeoutError("late"))
    assert trial.commit() == ["begin"]
    assert trial.commit() == ALL


@pytest.mark.parametrize("call", ["begin", "send", "send_offsets", "commit"])
def test_a_fenced_producer_ends_run(call: str) -> None:
    trial = Trial(**{call: ProducerFencedError("fenced")})
    with pytest.raises(ProducerFencedError):
        trial.commit()
    assert "abort" not in trial.calls
    assert trial.committed == []


@pytest.mark.parametrize("error", [RecordTooLargeError("large"), abortable(ErrorCode.topic_authorization_failed)])
def test_an_output_that_can_never_be_written_ends_run(error: Exception) -> None:
    trial = Trial(send=error)
    with pytest.raises(type(error)):
        trial.commit()
    assert trial.calls[-1] == "abort"


@pytest.mark.parametrize("call", ["send", "send_offsets"])
def test_an_interrupt_aborts_the_transaction(call: str) -> None:
    trial = Trial(**{call: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        trial.commit()
    assert trial.calls[-1] == "abort"
    assert trial.commit() == ALL


def test_an_interrupted_commit_is_repeated() -> None:
    trial = Trial(commit=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        trial.commit()
    assert trial.commit()[0] == "commit"
    assert trial.committed[0] == CUT


@pytest.mark.parametrize(
    ("result", "outputs"), [(None, []), (OUTPUT, [OUTPUT]), ([OUTPUT, OUTPUT], [OUTPUT, OUTPUT]), ((), [])]
)
def test_a_handler_returns_one_output_or_many_or_none(result: Any, outputs: list[ProducerRecord]) -> None:
    assert outputs_of(result) == outputs


@pytest.mark.parametrize("result", [b"bytes", "text", 5, [b"bytes"], {"topic": "t"}])
def test_other_results_are_refused(result: Any) -> None:
    with pytest.raises(TypeError, match="ProducerRecord"):
        outputs_of(result)
