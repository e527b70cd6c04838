"""Which calls of the user are allowed in which state, and the errors that they raise."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.transaction import TransactionManager
from headrace._machines.produce.transaction_states import TransactionState
from headrace._protocol.codes import kafka_error
from headrace.errors import (
    HeadraceError,
    ProducerFencedError,
    StateError,
    TransactionAbortableError,
    TransactionFatalError,
)
from support.harness.transactions import (
    CALLS,
    FIRST,
    T0,
    TIMEOUT,
    A,
    S,
    abortable,
    aborting,
    begun,
    committed_late,
    committing,
    fatal,
    initializing,
    is_quiet,
    new,
    not_initialized,
    ready,
    take,
    take_init,
)

# -- every state and every call ------------------------------------------------------------------------------------

W, X, F = StateError, TransactionAbortableError, TransactionFatalError
# fmt: off
TABLE = {  #         init            begin             check_open        add_offsets       commit        abort
    new:             (S.INITIALIZING, W,                W,                W,                W,            W),
    initializing:    (S.INITIALIZING, W,                W,                W,                W,            W),
    ready:           (W,              S.IN_TRANSACTION, W,                W,                W,            W),
    begun:           (W,              W,                S.IN_TRANSACTION, S.IN_TRANSACTION, S.COMMITTING, S.ABORTING),
    committing:      (W,              W,                W,                W,                S.COMMITTING, W),
    aborting:        (W,              W,                W,                W,                W,            S.ABORTING),
    abortable:       (X,              X,                X,                X,                X,            S.ABORTING),
    not_initialized: (S.INITIALIZING, X,                X,                X,                X,            S.ABORTING),
    fatal:           (F,              F,                F,                F,                F,            F),
    committed_late:  (W,              W,                W,                W,                S.READY,      W),
}
# fmt: on


@pytest.mark.parametrize("state", TABLE, ids=lambda state: state.__name__)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_allowed_or_raises(state: Callable[[], TransactionManager], call: str) -> None:
    manager = state()
    before = manager.state
    expected = TABLE[state][list(CALLS).index(call)]
    if isinstance(expected, TransactionState):
        CALLS[call](manager)
        assert manager.state is expected
    else:
        with pytest.raises(expected, match=r"[Cc](all [a-z_]+\(\)|lose this producer)") as raised:
            CALLS[call](manager)
        assert manager.state is before
        assert isinstance(raised.value, HeadraceError)
        assert not raised.value.retriable


def test_the_table_has_every_state() -> None:
    assert {make().state for make in TABLE} == set(S)


# -- pending calls ---------------------------------------------------------------------------------------------------


def test_a_commit_that_timed_out_is_joined_by_the_next_one() -> None:
    manager = committing()
    request = take(manager, A.END)
    manager.commit()
    assert not manager.is_call_done
    assert is_quiet(manager)
    manager.answered(request, E.none, ProducerIdentity(7, 1))
    assert manager.is_call_done
    manager.commit()
    manager.end_call()
    manager.begin(2)


def test_an_init_that_timed_out_and_ended_later_is_called_again() -> None:
    manager = initializing()
    manager.answered(take(manager, A.INIT_PRODUCER_ID), E.none, FIRST)
    assert manager.state is S.READY
    assert not manager.is_initialized
    manager.init()
    manager.end_call()
    assert manager.is_initialized
    manager.begin(2)


def test_a_manager_with_an_identity_and_no_pending_call_is_initialized() -> None:
    assert {make for make in TABLE if make().is_initialized} == {ready, begun}
    assert {make for make in TABLE if make().is_ending} == {committing, aborting, committed_late}


def test_an_abort_that_timed_out_is_joined_while_the_epoch_is_raised() -> None:
    manager = abortable(version=1)
    manager.abort()
    manager.answered(take(manager, A.END), E.none)
    assert manager.state is S.INITIALIZING
    manager.abort()
    with pytest.raises(StateError, match=r"Call abort\(\) again"):
        manager.init()
    manager.answered(take_init(manager), E.none, ProducerIdentity(7, 1))
    manager.end_call()
    assert manager.state is S.READY


def test_a_commit_that_timed_out_and_failed_later_raises_its_error_when_it_is_called_again() -> None:
    manager = committing()
    manager.batch_failed(FIRST, TIMEOUT)
    with pytest.raises(StateError, match=r"Call commit\(\) again"):
        manager.abort()
    manager.commit()
    with pytest.raises(TransactionAbortableError, match="delivery timed out") as raised:
        manager.end_call()
    assert raised.value.__cause__ is TIMEOUT
    manager.abort()


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_late_failure_of_an_earlier_transaction_changes_nothing() -> None:
    manager = abortable()
    manager.abort()
    manager.answered(take(manager, A.END), E.none, ProducerIdentity(7, 1))
    manager.end_call()
    manager.batch_failed(None, TIMEOUT)
    manager.begin(2)
    manager.batch_failed(FIRST, kafka_error(E.producer_fenced, "Produce"))
    assert manager.state is S.IN_TRANSACTION


def test_close_aborts_only_what_the_coordinator_may_have() -> None:
    expected = {begun: False, abortable: True, committing: False, ready: False, fatal: False, not_initialized: False}
    assert {make: make().needs_abort for make in expected} == expected
    assert begun(2, T0).needs_abort
    assert begun(1, T0).needs_abort


def test_errors_say_what_to_do_and_survive_pickling() -> None:
    with pytest.raises(TransactionAbortableError, match=r"'id'.*Call abort\(\)") as raised:
        abortable().commit()
    assert raised.value.abortable
    assert pickle.loads(pickle.dumps(raised.value)).abortable
    with pytest.raises(ProducerFencedError, match=r"PRODUCER_FENCED.*create a new one"):
        fatal().abort()
