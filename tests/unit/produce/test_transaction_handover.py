"""Transactions that a producer hands over to another process."""

from __future__ import annotations

import pytest

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.open_transaction import OpenTransaction, TransactionDescription
from headrace._machines.produce.transaction import TransactionManager
from headrace._machines.produce.transaction_errors import TransactionApi
from headrace._machines.produce.transaction_states import TransactionState
from headrace.errors import NetworkError, StateError, TransactionAbortableError
from headrace.types import TopicPartition

PARTITION = TopicPartition("orders", 0)


def begun(version: int = 2, epoch: int = 4) -> TransactionManager:
    machine = TransactionManager("an-id", 60_000)
    machine.init()
    request = machine.take_request(0)
    assert request is not None
    machine.answered(request, 0, ProducerIdentity(9, epoch))
    machine.end_call()
    machine.begin(version)
    return machine


def test_a_transaction_that_is_handed_over_stays_open() -> None:
    machine = begun()
    machine.add_partition(PARTITION)
    assert machine.hand_over() == ProducerIdentity(9, 4)
    assert machine.state is TransactionState.UNINITIALIZED
    assert machine.take_request(0) is None, "no EndTxn"
    assert not machine.needs_abort


def test_an_init_without_a_response_may_abort_the_transaction_later() -> None:
    assert not begun().has_stray_init
    machine = TransactionManager("an-id", 60_000)
    machine.init()
    for _ in range(2):
        request = machine.take_request(0)
        assert request is not None
        machine.failed(request, NetworkError("lost"))
    request = machine.take_request(0)
    assert request is not None
    machine.answered(request, 0, ProducerIdentity(9, 4))
    machine.end_call()
    machine.begin(2)
    assert machine.has_stray_init
    machine.add_partition(PARTITION)
    machine.hand_over()
    assert machine.has_stray_init, "it may still arrive"


def test_the_next_transaction_asks_for_a_new_epoch() -> None:
    machine = begun()
    machine.add_partition(PARTITION)
    machine.hand_over()
    with pytest.raises(StateError):
        machine.begin(2)
    machine.init()
    request = machine.take_request(0)
    assert request is not None
    assert request.api is TransactionApi.INIT_PRODUCER_ID
    assert request.fields["producer_id"] == -1, "the coordinator may have ended the transaction with another epoch"


def test_a_transaction_without_records_is_not_handed_over() -> None:
    assert begun().hand_over() is None


def test_a_failed_transaction_cannot_be_handed_over() -> None:
    machine = begun()
    machine.add_partition(PARTITION)
    machine.batch_failed(machine.identity, NetworkError("gone"))
    with pytest.raises(TransactionAbortableError, match="gone"):
        machine.hand_over()


def test_transactions_of_version_1_cannot_be_handed_over() -> None:
    with pytest.raises(StateError, match=r"transaction\.version is below 2"):
        begun(version=1).hand_over()


@pytest.mark.parametrize(
    ("state", "epoch", "expected"),
    [("Ongoing", 4, True), ("Ongoing", 6, False), ("CompleteAbort", 5, False), ("PrepareCommit", 4, False)],
)
def test_only_the_same_transaction_is_open(state: str, epoch: int, expected: bool) -> None:
    description = TransactionDescription(state, 9, epoch, 0, 1)
    assert description.has_open(OpenTransaction("an-id", 9, 4)) is expected


def test_transactions_without_a_timeout_are_asked_for_in_version_6() -> None:
    machine = TransactionManager("an-id", 60_000, is_two_phase=True)
    machine.init()
    request = machine.take_request(0)
    assert request is not None
    assert request.versions == (6, 6)
    assert request.fields["enable2_pc"] is True
    assert request.fields["keep_prepared_txn"] is False, "an open transaction of this id is aborted"
