"""Producers, transactions and exactly-once runs in virtual time: see `simulation/writing`. `make soak` runs more seeds.

The last tests break the machines: the simulation must notice each of these bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace._machines.produce.idempotence import PartitionBatches, SentBatch
from headrace._machines.produce.transaction import TransactionManager
from headrace._machines.produce.transaction_errors import TransactionApi
from headrace._machines.produce.transaction_ownership import TransactionOwnership
from headrace._machines.produce.transaction_requests import TransactionRequest
from headrace._machines.produce.transaction_states import NextStep
from headrace._machines.run.outputs import Cut, PendingOutputs
from headrace.errors import HeadraceError
from simulation.writing import exactly_once, idempotence, transactions
from simulation.writing.world import Violation


@pytest.mark.parametrize("part", range(2))
def test_each_acknowledged_record_is_written_once_and_in_order(part: int) -> None:
    for seed in range(part, 140, 2):
        idempotence.run(seed)


@pytest.mark.parametrize("part", range(2))
def test_committed_transactions_are_visible_whole_and_others_not_at_all(part: int) -> None:
    for seed in range(part, 80, 2):
        transactions.run(seed)


@pytest.mark.parametrize("part", range(2))
def test_each_record_of_an_exactly_once_run_has_its_outputs_once(part: int) -> None:
    for seed in range(part, 50, 2):
        exactly_once.run(seed)


@pytest.mark.parametrize("kind", [idempotence, transactions, exactly_once])
def test_a_seed_gives_the_same_simulation_again(kind: ModuleType) -> None:
    assert kind.run(7) == kind.run(7)


# -- bugs that the simulation must find --------------------------------------------------------------------------------


def first_violation(run: Callable[[int], Any], seeds: int = 300) -> str:
    for seed in range(seeds):
        try:
            run(seed)
        except Violation as violation:
            return str(violation).partition("\n")[0]
    raise AssertionError(f"{seeds} simulations have not found the bug")


def test_a_retry_with_new_sequence_numbers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unanswered(self: PartitionBatches[Any], sent: SentBatch[Any]) -> None:
        sent.is_on_wire = False
        sent.sequence = self._reserve(sent.batch)

    monkeypatch.setattr(PartitionBatches, "unanswered", unanswered)
    assert "twice" in first_violation(idempotence.run)


def test_new_batches_that_overtake_a_retry_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They get the numbers of a batch without a response, which is sent again behind them."""

    def unanswered(self: PartitionBatches[Any], sent: SentBatch[Any]) -> None:
        sent.is_on_wire = False
        if sent is self._sent[-1]:
            self._sent.pop()
            self._next = sent.sequence
            self._pending.append(sent.batch)

    monkeypatch.setattr(PartitionBatches, "unanswered", unanswered)
    assert first_violation(idempotence.run)


def test_a_commit_without_a_response_that_is_not_repeated_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = TransactionManager.failed

    def forgets(self: TransactionManager, request: TransactionRequest, error: HeadraceError) -> NextStep:
        step = failed(self, request, error)
        if request.api is TransactionApi.END and step in (NextStep.RETRY, NextStep.FIND_COORDINATOR):
            self._complete()
            return NextStep.CONTINUE
        return step

    monkeypatch.setattr(TransactionManager, "failed", forgets)
    assert first_violation(transactions.run)


def test_a_fenced_producer_that_aborts_the_transaction_of_its_successor_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered_with_error = TransactionManager._answered_with_error

    def initializes(self: TransactionManager, request: TransactionRequest, code: int, detail: str | None) -> NextStep:
        if code == ErrorCode.producer_fenced and request.api is TransactionApi.END:
            self._needs_epoch = True
            self._complete()
            return NextStep.RETRY
        return answered_with_error(self, request, code, detail)

    monkeypatch.setattr(TransactionManager, "_answered_with_error", initializes)
    monkeypatch.setattr(TransactionOwnership, "take_init", lambda self, identity: True)
    assert "successor" in first_violation(transactions.run)


def test_an_abort_that_is_too_early_and_taken_for_a_fenced_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionOwnership, "refused", lambda self, error: False)
    assert "without a reason" in first_violation(transactions.run)


def test_a_new_producer_id_that_is_used_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionOwnership, "ended", lambda self, identity, following: None)
    assert "without a reason" in first_violation(transactions.run)


def test_a_commit_before_all_records_are_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_request = TransactionManager.take_request
    monkeypatch.setattr(TransactionManager, "take_request", lambda self, unanswered: take_request(self, 0))
    assert first_violation(transactions.run)


def test_outputs_that_are_written_with_every_transaction_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def committed(self: PendingOutputs[Any], cut: Cut[Any]) -> None:
        self._committed.update(cut.offsets)

    monkeypatch.setattr(PendingOutputs, "committed", committed)
    assert "twice" in first_violation(exactly_once.run)


def test_outputs_of_partitions_that_were_lost_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingOutputs, "keep", lambda self, partitions: None)
    assert first_violation(exactly_once.run)
