"""Transactions of an exactly-once run(), with a producer that fails at each of its calls in turn."""

from __future__ import annotations

import contextlib
import logging
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
    StateError,
    TransactionAbortableError,
)

TP = TopicPartition("in", 0)
OUTPUT = ProducerRecord("out", b"value", b"key", partition=1)
CUT = Cut({TP: 7}, [OUTPUT])
INIT = ["_settle", "init_transactions"]
SEND = "_send_within"
ALL = ["begin", SEND, "send_offsets", "commit"]


class Trial:
    """Performs the calls that the generator yields. Each of `failures` is raised once, by the call of its name."""

    def __init__(
        self, cut: Cut[ProducerRecord] = CUT, *, is_initialized: bool = True, **failures: BaseException
    ) -> None:
        self.failures = failures
        self.calls: list[str] = []
        self.timeouts: list[float] = []
        self.sent: list[ProducerRecord] = []  # also those of calls that failed
        self.committed: list[Cut[ProducerRecord]] = []
        group = GroupMetadata("g", 1, "member")
        self.commits = TransactionalCommits(None, lambda: cut, self.committed.append, lambda: group)
        self.commits.is_initialized = is_initialized

    def commit(self, *, is_last: bool = False) -> list[str]:
        return self._perform(self.commits.steps(is_last=is_last))

    def _perform(self, steps: Calls) -> list[str]:
        before = len(self.calls)
        failure: BaseException | None = None
        while True:
            try:
                call = steps.throw(failure) if failure is not None else next(steps)
            except StopIteration:
                return self.calls[before:]
            self.calls.append(call.method)
            self.sent += call.arguments if call.method == SEND else ()
            self.timeouts.append(call.keywords["timeout"])
            failure = self.failures.pop(call.method, None)


def abortable(code: int) -> TransactionAbortableError:
    error = TransactionAbortableError("failed")
    error.__cause__ = kafka_error(code, "Produce")
    return error


def test_offsets_are_committed_as_the_member_that_had_the_records() -> None:
    """A member that leaves the group meanwhile must be rejected."""
    now = [GroupMetadata("g", 1, "member")]
    steps = TransactionalCommits(None, lambda: CUT, lambda _: None, lambda: now[0]).steps()
    assert [next(steps).method for _ in range(3)] == [*INIT, "begin"]
    now[0] = GroupMetadata("g")
    sent = [next(steps), next(steps)][-1]
    assert sent.arguments[1] == GroupMetadata("g", 1, "member")


def test_transactions_are_initialized_first() -> None:
    trial = Trial(is_initialized=False, init_transactions=RequestTimeoutError("late"))
    assert trial.commits.is_stalled
    assert trial.commit() == INIT
    assert trial.commits.is_stalled
    assert trial.commit() == [*INIT, *ALL]
    assert not trial.commits.is_stalled
    assert trial.commit() == ALL


def test_transactions_are_initialized_before_there_are_records() -> None:
    trial = Trial(Cut({}, []), is_initialized=False)
    assert trial.commit() == INIT
    assert not trial.commits.is_stalled


def test_a_run_that_ends_without_records_initializes_nothing() -> None:
    assert Trial(Cut({}, []), is_initialized=False).commit(is_last=True) == []
    assert Trial(is_initialized=False).commit(is_last=True) == [*INIT, *ALL]


def test_the_transaction_that_an_earlier_run_has_left_is_ended_first() -> None:
    trial = Trial(is_initialized=False, _settle=RequestTimeoutError("late"))
    assert trial.commit() == ["_settle"]
    assert trial.commit() == [*INIT, *ALL]
    failed = abortable(ErrorCode.illegal_generation)
    trial = Trial(is_initialized=False, _settle=failed, abort=RequestTimeoutError("late"))
    assert trial.commit() == ["_settle", "abort"]
    assert trial.commit() == ["abort", *INIT, *ALL]


def test_transactions_that_cannot_be_initialized_end_run() -> None:
    trial = Trial(is_initialized=False, init_transactions=ProducerFencedError("fenced"))
    with pytest.raises(ProducerFencedError):
        trial.commit()
    assert trial.commits.is_stalled


def test_a_transaction_has_the_outputs_and_the_offsets() -> None:
    trial = Trial()
    assert trial.commit() == ALL
    assert trial.committed == [CUT]


def test_nothing_is_begun_without_new_offsets() -> None:
    assert Trial(Cut({}, [])).commit() == []


@pytest.mark.parametrize("call", [SEND, "send_offsets", "commit"])
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


@pytest.mark.parametrize(
    ("call", "again"),
    [("begin", ALL), ("send_offsets", ["send_offsets", "commit"]), ("commit", ["commit", *ALL])],
)
def test_a_call_that_timed_out_is_repeated(call: str, again: list[str]) -> None:
    trial = Trial(**{call: RequestTimeoutError("late")})
    assert trial.commit() == ALL[: ALL.index(call) + 1]
    assert trial.commits.is_stalled
    assert trial.commit() == again
    assert not trial.commits.is_stalled
    assert trial.committed == [CUT] * again.count("commit")


def test_an_output_that_could_not_be_sent_in_time_is_sent_first_in_the_next_attempt() -> None:
    outputs = [ProducerRecord("out", b"first"), ProducerRecord("missing", b"second"), ProducerRecord("out", b"third")]
    trial = Trial(Cut({TP: 7}, outputs))
    trial.failures["begin"] = RequestTimeoutError("late")
    trial.commit()
    steps = trial.commits.steps()
    assert [next(steps).method for _ in range(3)] == ["begin", SEND, SEND]
    with contextlib.suppress(StopIteration):
        steps.throw(RequestTimeoutError("topic missing is not there yet"))
    assert trial.commits.is_stalled
    assert trial.commit() == [SEND, SEND, "send_offsets", "commit"]
    assert trial.sent == outputs[1:]
    assert len(trial.committed) == 1


def test_a_last_attempt_aborts_a_transaction_whose_outputs_are_not_sent() -> None:
    trial = Trial(**{SEND: RequestTimeoutError("topic missing is not there yet")})
    with pytest.raises(RequestTimeoutError, match="topic missing"):
        trial.commit(is_last=True)
    assert trial.calls == ["begin", SEND, "abort"]
    assert trial.timeouts[-1] > 0, "the request has to be sent"


def test_outputs_that_are_sent_bit_by_bit_are_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """They exceed buffer.memory."""
    caplog.set_level(logging.INFO)
    now = 0.0
    cut = Cut({TP: 7}, [OUTPUT] * 100)
    commits = TransactionalCommits(None, lambda: cut, lambda cut: None, lambda: GroupMetadata("g"), lambda: now)
    commits.is_initialized = True
    for _ in range(40):
        steps = commits.steps()
        next(steps)
        next(steps)
        now += 1.0
        with contextlib.suppress(StopIteration):
            steps.throw(RequestTimeoutError("no room for a record"))
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    for _ in range(10):  # no progress
        steps = commits.steps()
        next(steps)
        now += 1.0
        with contextlib.suppress(StopIteration):
            steps.throw(RequestTimeoutError("no room for a record to topic out"))
    assert "topic out" in next(each for each in caplog.records if each.levelno >= logging.WARNING).getMessage()


@pytest.mark.parametrize(
    ("call", "error"),  # an interrupted commit is repeated, and not aborted
    [
        *((call, abortable(ErrorCode.illegal_generation)) for call in (SEND, "send_offsets", "commit")),
        *((call, KeyboardInterrupt()) for call in (SEND, "send_offsets")),
    ],
)
def test_an_abort_that_timed_out_is_repeated_before_the_next_transaction(call: str, error: BaseException) -> None:
    trial = Trial(**{call: error, "abort": RequestTimeoutError("late")})
    with contextlib.suppress(KeyboardInterrupt):
        trial.commit()
    assert trial.calls[-1] == "abort"
    assert trial.commits.is_stalled
    assert trial.commit() == ["abort", *ALL]


def test_an_attempt_is_short_because_run_does_not_poll_meanwhile() -> None:
    trial = Trial()
    trial.commit()
    assert 0 < max(trial.timeouts) <= 1


@pytest.mark.parametrize(
    ("call", "calls"),
    [("begin", ["begin"]), ("send_offsets", [*ALL[:3], "abort"]), ("commit", ALL)],
)
def test_a_last_attempt_that_fails_raises(call: str, calls: list[str]) -> None:
    trial = Trial(**{call: RequestTimeoutError("late")})
    with pytest.raises(RequestTimeoutError):
        trial.commit(is_last=True)
    assert trial.calls == calls, "an open transaction would make readers wait"


def test_a_last_transaction_that_is_aborted_is_repeated_at_once() -> None:
    trial = Trial(send_offsets=abortable(ErrorCode.illegal_generation))
    assert trial.commit(is_last=True) == [*ALL[:3], "abort", *ALL]
    assert trial.committed == [CUT]


def test_an_interrupted_begin_leaves_no_transaction_open() -> None:
    for has_begun in (True, False):
        trial = Trial(begin=KeyboardInterrupt(), **({} if has_begun else {"abort": StateError("no transaction")}))
        with pytest.raises(KeyboardInterrupt):
            trial.commit()
        assert trial.calls == ["begin", "abort"]
        assert trial.commit() == ALL


@pytest.mark.parametrize("count", [1, 2])
def test_a_transaction_that_was_left_between_two_calls_is_aborted(count: int) -> None:
    """Ctrl-C can come where the caller has left the generator."""
    trial = Trial()
    steps = trial.commits.steps()
    for _ in range(count):
        next(steps)
    steps.close()
    assert trial.commit() == ["abort", *ALL]


@pytest.mark.parametrize("error", [StateError("a transaction is open"), abortable(ErrorCode.illegal_generation)])
def test_a_transaction_of_the_user_is_not_aborted(error: Exception) -> None:
    trial = Trial(begin=error)
    with pytest.raises(type(error)):
        trial.commit()
    assert trial.calls == ["begin"]


@pytest.mark.parametrize("call", ["begin", SEND, "send_offsets", "commit"])
def test_a_fenced_producer_ends_run(call: str) -> None:
    trial = Trial(**{call: ProducerFencedError("fenced")})
    with pytest.raises(ProducerFencedError):
        trial.commit()
    assert "abort" not in trial.calls
    assert trial.committed == []


@pytest.mark.parametrize("error", [RecordTooLargeError("large"), abortable(ErrorCode.topic_authorization_failed)])
def test_an_output_that_can_never_be_written_ends_run(error: Exception) -> None:
    trial = Trial(**{SEND: error})
    with pytest.raises(type(error)):
        trial.commit()
    assert trial.calls[-1] == "abort"


@pytest.mark.parametrize("call", [SEND, "send_offsets"])
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
