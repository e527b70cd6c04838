"""Transaction managers in each of their states."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.open_transaction import TransactionDescription
from headrace._machines.produce.transaction import TransactionManager
from headrace._machines.produce.transaction_errors import TransactionApi
from headrace._machines.produce.transaction_requests import TransactionRequest
from headrace._machines.produce.transaction_states import NextStep, TransactionState
from headrace._protocol.codes import kafka_error
from headrace.errors import (
    RequestTimeoutError,
    TransactionAbortableError,
)
from headrace.types import GroupMetadata, OffsetAndMetadata, TopicPartition

S, A = TransactionState, TransactionApi
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = GroupMetadata("g", 5, "member", "instance")
OFFSETS = {T0: OffsetAndMetadata(10, "m", 3), T1: OffsetAndMetadata(20)}
FIRST = ProducerIdentity(7, 0)
TIMEOUT = RequestTimeoutError("delivery timed out")


def take(manager: TransactionManager, api: TransactionApi, unanswered: int = 0) -> TransactionRequest:
    request = manager.take_request(unanswered)
    assert request is not None
    assert request.api is api
    assert manager.take_request(unanswered) is None, "one request is in flight at a time"
    return request


def describe(manager: TransactionManager, state: str, identity: ProducerIdentity | None = None) -> NextStep:
    """Answer DescribeTransactions with this state, and the manager's identity or another one."""
    found = TransactionDescription(state, *(identity or manager.identity or FIRST), -1, 60_000)
    return manager.answered_description(take(manager, A.DESCRIBE), E.none, found)


def take_init(manager: TransactionManager) -> TransactionRequest:
    """InitProducerId with an identity, which follows a description of the transactional id."""
    assert describe(manager, "Empty") is NextStep.CONTINUE
    return take(manager, A.INIT_PRODUCER_ID)


def is_quiet(manager: TransactionManager, unanswered: int = 0) -> bool:
    return manager.take_request(unanswered) is None


def new() -> TransactionManager:
    return TransactionManager("id", 60_000)


def initializing() -> TransactionManager:
    manager = new()
    manager.init()
    return manager


def ready() -> TransactionManager:
    manager = initializing()
    manager.answered(take(manager, A.INIT_PRODUCER_ID), E.none, FIRST)
    manager.end_call()
    return manager


def begun(version: int = 2, *partitions: TopicPartition) -> TransactionManager:
    """A manager in a transaction with these partitions."""
    manager = ready()
    manager.begin(version)
    for partition in partitions:
        manager.add_partition(partition)
    if version == 1 and partitions:
        manager.answered_partitions(take(manager, A.ADD_PARTITIONS), dict.fromkeys(partitions, E.none))
    return manager


def committing(version: int = 2) -> TransactionManager:
    manager = begun(version, T0)
    manager.commit()
    return manager


def aborting(version: int = 2) -> TransactionManager:
    manager = begun(version, T0)
    manager.abort()
    return manager


def abortable(version: int = 2) -> TransactionManager:
    manager = begun(version, T0)
    manager.batch_failed(FIRST, TIMEOUT)
    return manager


def not_initialized() -> TransactionManager:
    """A manager whose first InitProducerId was denied."""
    manager = initializing()
    manager.answered(take(manager, A.INIT_PRODUCER_ID), E.transactional_id_authorization_failed)
    with pytest.raises(TransactionAbortableError, match=r"Call begin\(\) again"):
        manager.end_call()
    return manager


def fatal() -> TransactionManager:
    manager = begun(2, T0)
    manager.batch_failed(FIRST, kafka_error(E.producer_fenced, "Produce"))
    return manager


def committed_late() -> TransactionManager:
    """A manager whose transaction was committed after the user's commit() had timed out."""
    manager = committing()
    manager.answered(take(manager, A.END), E.none, ProducerIdentity(7, 1))
    return manager


CALLS: dict[str, Callable[[TransactionManager], None]] = {
    "init": TransactionManager.init,
    "begin": lambda manager: manager.begin(2),
    "check_open": TransactionManager.check_open,
    "add_offsets": lambda manager: manager.add_offsets(GROUP, OFFSETS),
    "commit": TransactionManager.commit,
    "abort": TransactionManager.abort,
}


def waiting(api: TransactionApi) -> tuple[TransactionManager, TransactionRequest]:
    """A manager with this request in flight."""
    if api is A.INIT_PRODUCER_ID:
        manager = initializing()
    elif api is A.END:
        manager = committing()
    else:
        manager = begun(2 if api is A.COMMIT_OFFSETS else 1)
        if api is A.ADD_PARTITIONS:
            manager.add_partition(T0)
        else:
            manager.add_offsets(GROUP, {T0: OffsetAndMetadata(1)})
    return manager, take(manager, api)


def answer(manager: TransactionManager, request: TransactionRequest, code: int) -> NextStep:
    if request.partitions:
        return manager.answered_partitions(request, dict.fromkeys(request.partitions, code))
    return manager.answered(request, code)


REQUESTS = [each for each in A if each not in (A.PRODUCE, A.DESCRIBE)]
