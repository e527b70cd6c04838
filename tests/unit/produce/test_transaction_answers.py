"""Responses to transactional requests and the state changes they cause."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.transaction_errors import TransactionApi
from headrace._machines.produce.transaction_states import NextStep
from headrace.errors import (
    HeadraceError,
    NetworkError,
    ProducerFencedError,
    ProtocolError,
    TransactionAbortableError,
    TransactionFatalError,
)
from support.harness.transactions import (
    CALLS,
    REQUESTS,
    T0,
    T1,
    TIMEOUT,
    A,
    S,
    abortable,
    aborting,
    answer,
    committing,
    is_quiet,
    not_initialized,
    take,
    take_init,
    waiting,
)

# -- responses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.value)
@pytest.mark.parametrize(
    ("code", "step"),
    [
        (E.coordinator_load_in_progress, NextStep.RETRY),
        (E.not_coordinator, NextStep.FIND_COORDINATOR),
        (E.coordinator_not_available, NextStep.FIND_COORDINATOR),
    ],
)
def test_a_request_is_repeated_after_a_retriable_error(api: TransactionApi, code: int, step: NextStep) -> None:
    manager, request = waiting(api)
    state = manager.state
    assert answer(manager, request, code) is step
    assert manager.state is state
    again = take(manager, api)
    assert (again.fields, again.versions, again.group) == (request.fields, request.versions, request.group)


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.value)
def test_a_request_is_repeated_if_it_is_not_answered(api: TransactionApi) -> None:
    manager, request = waiting(api)
    assert manager.failed(request, NetworkError("lost")) is NextStep.FIND_COORDINATOR
    assert take(manager, api).fields == request.fields
    assert manager.failed(request, NetworkError("lost")) is NextStep.CONTINUE, "an old request"


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.value)
def test_an_abortable_error_ends_the_transaction_and_keeps_the_first_cause(api: TransactionApi) -> None:
    manager, request = waiting(api)
    assert answer(manager, request, E.transaction_abortable) is NextStep.CONTINUE
    assert manager.state is S.ABORTABLE_ERROR
    cause = manager.cause
    assert is_quiet(manager)
    manager.batch_failed(None, TIMEOUT)
    assert manager.cause is cause
    assert "TRANSACTION_ABORTABLE" in str(cause)


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.value)
@pytest.mark.parametrize(
    ("code", "kind"),
    [(E.producer_fenced, ProducerFencedError), (E.unsupported_version, TransactionFatalError)],
)
def test_a_fatal_error_ends_the_producer(api: TransactionApi, code: int, kind: type[HeadraceError]) -> None:
    manager, request = waiting(api)
    answer(manager, request, code)
    assert manager.state is S.FATAL_ERROR
    assert is_quiet(manager)
    if manager.is_call_done:
        with pytest.raises(kind):
            manager.end_call()
    for call in CALLS.values():
        with pytest.raises(kind) as raised:
            call(manager)
        assert type(raised.value) is kind
        assert not raised.value.abortable  # type: ignore[attr-defined]


def test_the_first_addition_is_retried_soon_while_the_last_transaction_is_completed() -> None:
    manager, request = waiting(A.ADD_PARTITIONS)
    assert answer(manager, request, E.concurrent_transactions) is NextStep.RETRY_SOON
    answer(manager, take(manager, A.ADD_PARTITIONS), E.none)
    manager.add_partition(T1)
    assert answer(manager, take(manager, A.ADD_PARTITIONS), E.concurrent_transactions) is NextStep.RETRY


def test_an_answer_that_lacks_partitions_is_no_success() -> None:
    manager, request = waiting(A.ADD_PARTITIONS)
    assert manager.answered_partitions(request, {}) is NextStep.RETRY
    assert not manager.may_send(T0)


@pytest.mark.parametrize("code", [E.transaction_abortable, E.unknown_producer_id])
def test_an_abort_that_fails_is_fatal(code: int) -> None:
    manager = aborting()
    manager.answered(take(manager, A.END), code)
    assert manager.state is S.FATAL_ERROR


@pytest.mark.parametrize("identity", [None, ProducerIdentity(-1, -1)])
@pytest.mark.parametrize("api", [A.INIT_PRODUCER_ID, A.END])
def test_an_answer_without_an_identity_is_fatal(api: TransactionApi, identity: ProducerIdentity | None) -> None:
    manager, request = waiting(api)
    manager.answered(request, E.none, identity)
    assert manager.state is S.FATAL_ERROR
    assert isinstance(manager.cause, ProtocolError)


def test_a_fatal_error_of_a_commit_says_whether_the_outcome_is_unknown() -> None:
    for is_lost in (False, True):
        manager = committing()
        if is_lost:
            manager.failed(take(manager, A.END), NetworkError("lost"))
        manager.answered(take(manager, A.END), E.producer_fenced)
        with pytest.raises(ProducerFencedError) as raised:
            manager.end_call()
        assert ("It is unknown whether" in str(raised.value)) is is_lost


def test_initialization_can_be_tried_again_after_an_abortable_error() -> None:
    manager = not_initialized()
    manager.abort()
    assert is_quiet(manager)
    manager.end_call()
    assert manager.state is S.UNINITIALIZED
    manager.init()
    assert take(manager, A.INIT_PRODUCER_ID).fields["producer_id"] == -1


def test_an_abort_can_be_called_again_after_the_new_epoch_was_denied() -> None:
    manager = abortable(version=1)
    manager.abort()
    manager.answered(take(manager, A.END), E.none)
    manager.answered(take_init(manager), E.transactional_id_authorization_failed)
    with pytest.raises(TransactionAbortableError):
        manager.end_call()
    manager.abort()
    assert take_init(manager).fields["producer_id"] == 7, "the transaction has ended already"
