"""A fenced producer does not harm its successor: DescribeTransactions tells whether it is fenced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.transaction import TransactionManager
from headrace._machines.produce.transaction_states import NextStep
from headrace._protocol.messages import DESCRIBE_TRANSACTIONS, encode_request
from headrace.errors import NetworkError, ProducerFencedError, TransactionAbortableError, UnsupportedVersionError
from support.harness.transactions import (
    FIRST,
    GROUP,
    OFFSETS,
    T0,
    A,
    S,
    aborting,
    begun,
    committing,
    describe,
    is_quiet,
    take,
    take_init,
)

SECOND, THIRD = ProducerIdentity(7, 1), ProducerIdentity(7, 2)
NEW_ID = ProducerIdentity(8, 0)


def second_transaction(following: ProducerIdentity = SECOND) -> TransactionManager:
    """A manager in its second transaction. The coordinator may not have completed the first one."""
    manager = committing()
    manager.answered(take(manager, A.END), E.none, following)
    manager.end_call()
    manager.begin(2)
    manager.add_partition(T0)
    return manager


def refused_abort() -> TransactionManager:
    manager = second_transaction()
    manager.abort()
    assert manager.answered(take(manager, A.END), E.producer_fenced) is NextStep.CONTINUE
    return manager


# -- EndTxn(abort) -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Ongoing"])
def test_an_abort_that_came_too_early_is_repeated(state: str) -> None:
    manager = refused_abort()
    assert describe(manager, state) is NextStep.RETRY
    request = take(manager, A.END)
    assert (request.fields["producer_epoch"], request.fields["committed"]) == (1, False)
    manager.answered(request, E.none, THIRD)
    manager.end_call()
    assert (manager.state, manager.identity) == (S.READY, THIRD)


@pytest.mark.parametrize("state", ["Empty", "Ongoing", "PrepareCommit", "CompleteAbort"])
def test_a_fenced_producer_sends_nothing_after_its_abort_was_refused(state: str) -> None:
    manager = refused_abort()
    describe(manager, state, THIRD)
    assert is_quiet(manager)
    with pytest.raises(ProducerFencedError, match="EndTxn"):
        manager.end_call()


@pytest.mark.parametrize("make", [aborting, lambda: aborting(version=1)])
def test_the_first_abort_after_init_producer_id_cannot_be_too_early(make: Callable[[], TransactionManager]) -> None:
    manager = make()
    manager.answered(take(manager, A.END), E.producer_fenced)
    assert is_quiet(manager)
    with pytest.raises(ProducerFencedError):
        manager.end_call()


def test_a_description_is_repeated_until_it_is_answered() -> None:
    manager = refused_abort()
    assert manager.failed(take(manager, A.DESCRIBE), NetworkError("lost")) is NextStep.FIND_COORDINATOR
    request = take(manager, A.DESCRIBE)
    assert encode_request(DESCRIBE_TRANSACTIONS, 0, 1, None, request.fields)
    assert manager.answered_description(request, E.not_coordinator, None) is NextStep.FIND_COORDINATOR
    assert manager.answered_description(request, E.none, None) is NextStep.CONTINUE, "an old response"
    assert manager.answered_description(take(manager, A.DESCRIBE), E.transactional_id_not_found, None)
    assert manager.state is S.FATAL_ERROR, "the id has expired, or belongs to somebody else"


# -- InitProducerId ----------------------------------------------------------------------------------------------------


def needs_epoch_after_error() -> TransactionManager:
    """Version 1: an abort has followed an error."""
    manager = begun(1, T0)
    manager.batch_failed(FIRST, NetworkError("lost"))
    manager.abort()
    manager.answered(take(manager, A.END), E.none)
    return manager


def needs_epoch_after_upgrade() -> TransactionManager:
    manager = committing(version=1)
    manager.answered(take(manager, A.END), E.none)
    manager.end_call()
    manager.begin(2)
    manager.add_partition(T0)
    return manager


NEEDS_EPOCH = pytest.mark.parametrize("make", [needs_epoch_after_error, needs_epoch_after_upgrade])


@NEEDS_EPOCH
def test_an_open_transaction_of_a_newer_producer_is_not_aborted(make: Callable[[], TransactionManager]) -> None:
    manager = make()
    describe(manager, "Ongoing", SECOND)
    assert manager.state is S.FATAL_ERROR
    assert is_quiet(manager)
    with pytest.raises(ProducerFencedError, match="epoch 1"):
        manager.check_open()


@NEEDS_EPOCH
def test_each_attempt_of_init_producer_id_follows_a_description(make: Callable[[], TransactionManager]) -> None:
    """The process may have been stopped between two attempts, and replaced."""
    manager = make()
    manager.failed(take_init(manager), NetworkError("lost"))
    assert manager.answered(take_init(manager), E.concurrent_transactions) is NextStep.RETRY
    describe(manager, "Ongoing", THIRD)
    assert manager.state is S.FATAL_ERROR


@NEEDS_EPOCH
@pytest.mark.parametrize(("state", "identity"), [("Ongoing", FIRST), ("Empty", SECOND), ("PrepareAbort", SECOND)])
def test_the_coordinator_compares_epochs_if_no_other_transaction_is_open(
    make: Callable[[], TransactionManager], state: str, identity: ProducerIdentity
) -> None:
    manager = make()
    assert describe(manager, state, identity) is NextStep.CONTINUE
    manager.answered(take(manager, A.INIT_PRODUCER_ID), E.none, THIRD)
    assert manager.identity == THIRD


@NEEDS_EPOCH
def test_brokers_that_cannot_describe_get_init_producer_id(make: Callable[[], TransactionManager]) -> None:
    manager = make()
    assert manager.failed(take(manager, A.DESCRIBE), UnsupportedVersionError("x")) is NextStep.CONTINUE
    take(manager, A.INIT_PRODUCER_ID)


def test_a_denied_description_aborts_as_a_denied_init_producer_id_does() -> None:
    manager = needs_epoch_after_error()
    code = E.transactional_id_authorization_failed
    manager.answered_description(take(manager, A.DESCRIBE), code, None)
    with pytest.raises(TransactionAbortableError):
        manager.end_call()
    manager.abort()
    take_init(manager)


# -- another producer id -----------------------------------------------------------------------------------------------


def test_a_new_producer_id_is_used_when_the_coordinator_knows_it() -> None:
    manager = second_transaction(NEW_ID)
    assert not manager.may_send(T0)
    assert describe(manager, "PrepareCommit", SECOND) is NextStep.RETRY_SOON
    assert not manager.may_send(T0)
    assert describe(manager, "CompleteCommit", NEW_ID) is NextStep.CONTINUE
    assert manager.may_send(T0)
    assert is_quiet(manager)


def test_offsets_wait_for_a_new_producer_id() -> None:
    manager = second_transaction(NEW_ID)
    manager.add_offsets(GROUP, OFFSETS)
    describe(manager, "CompleteCommit", NEW_ID)
    assert take(manager, A.COMMIT_OFFSETS).fields["producer_id"] == 8


def test_partitions_wait_for_a_new_producer_id_after_a_downgrade() -> None:
    manager = committing()
    manager.answered(take(manager, A.END), E.none, NEW_ID)
    manager.end_call()
    manager.begin(1)
    assert is_quiet(manager)
    manager.add_partition(T0)
    describe(manager, "CompleteCommit", NEW_ID)
    take(manager, A.ADD_PARTITIONS)


@pytest.mark.parametrize(("state", "identity"), [("Empty", THIRD), ("PrepareAbort", THIRD), ("Ongoing", (9, 0))])
def test_a_newer_producer_can_come_before_the_new_producer_id(state: str, identity: tuple[int, int]) -> None:
    manager = second_transaction(NEW_ID)
    describe(manager, state, ProducerIdentity(*identity))
    assert manager.state is S.FATAL_ERROR


def test_nothing_has_to_be_aborted_before_a_new_producer_id_is_known() -> None:
    manager = second_transaction(NEW_ID)
    manager.abort()
    assert is_quiet(manager)
    manager.end_call()
    assert manager.state is S.READY
