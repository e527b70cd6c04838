"""Transactions that one producer leaves open and another client ends, with a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import Producer
from headrace._aio.produce.transaction_admin import TransactionAdmin
from headrace._machines.produce.open_transaction import NOT_OPEN, OpenTransaction
from headrace.errors import KafkaError, StateError
from headrace.spark.producer_access import ask_coordinators, hand_over
from headrace.types import OffsetAndMetadata, TopicPartition
from support.brokers.admin import Admin, unique
from support.brokers.topic_contents import oracle_rows

pytestmark = pytest.mark.kafka("4.0")  # transaction.version=2


@pytest.fixture
def other(servers: str) -> Iterator[Producer]:
    """Another client, without its own transactions."""
    with Producer(bootstrap_servers=servers) as producer:
        yield producer


@pytest.fixture
def name() -> str:
    return unique("left-open")


def write(servers: str, topic: str, name: str, *values: str) -> OpenTransaction:
    """An open transaction of a producer that was closed."""
    with Producer(bootstrap_servers=servers, transactional_id=name) as producer:
        producer.begin()
        for value in values:
            producer.send(topic, value)
        producer.flush()
        found = hand_over(producer)
    assert found is not None
    return found


def visible(servers: str, topic: str) -> list[bytes | None]:
    return [row.value for row in oracle_rows(servers, topic, isolation="read_committed")]


def end(other: Producer, transaction: OpenTransaction, *, commits: bool) -> int:
    """End the transaction; return the error code."""
    try:
        ask_coordinators(other, lambda admin: admin.end(transaction, commits=commits))
    except KafkaError as error:
        return error.code
    return 0


def test_a_closed_producer_leaves_its_transaction_to_others(
    servers: str, admin: Admin, other: Producer, name: str
) -> None:
    topic = admin.create("left-open")
    transaction = write(servers, topic, name, "a", "b")
    assert visible(servers, topic) == []
    found = ask_coordinators(other, lambda admin: admin.describe([name, "nobody"]))
    assert found.keys() == {name}
    assert found[name].has_open(transaction)
    assert found[name].timeout_ms == 60_000
    assert ask_coordinators(other, lambda admin: admin.list_open(f"{name}.*")) == [name]
    for _ in range(2):
        assert end(other, transaction, commits=True) == 0
    assert visible(servers, topic) == [b"a", b"b"]
    assert end(other, transaction, commits=False) in NOT_OPEN
    assert ask_coordinators(other, lambda admin: admin.list_open(f"{name}.*")) == []


def test_a_transaction_that_was_aborted_cannot_be_committed(
    servers: str, admin: Admin, other: Producer, name: str
) -> None:
    topic = admin.create("left-open")
    transaction = write(servers, topic, name, "a")
    assert end(other, transaction, commits=False) == 0
    assert end(other, transaction, commits=True) in NOT_OPEN
    results = ask_coordinators(other, lambda admin: admin.end_all([transaction], commits=True))
    error = results[transaction]
    assert error is not None
    assert error.code in NOT_OPEN
    assert visible(servers, topic) == []


def test_a_producer_continues_after_its_transaction_was_ended_elsewhere(
    servers: str, admin: Admin, other: Producer, name: str
) -> None:
    topic = admin.create("left-open")
    with Producer(bootstrap_servers=servers, transactional_id=name) as producer:
        for number, commits in enumerate((True, False, True)):
            producer.begin()
            producer.send(topic, str(number))
            with pytest.raises(StateError, match="before its records are delivered"):
                hand_over(producer)
            producer.flush()
            transaction = hand_over(producer)
            assert transaction is not None
            with pytest.raises(StateError):
                producer.send(topic, "outside of a transaction")
            assert end(other, transaction, commits=commits) == 0
        producer.begin()
        assert hand_over(producer) is None, "nothing was sent"
    assert visible(servers, topic) == [b"0", b"2"]


def test_offsets_are_committed_with_a_fenced_identity(servers: str, admin: Admin, other: Producer, name: str) -> None:
    topic = admin.create("left-open", 2)
    offsets = {TopicPartition(topic, number): OffsetAndMetadata(7, f"part {number}") for number in (0, 1)}

    async def record(admin: TransactionAdmin, transaction: OpenTransaction) -> None:
        await admin.commit_offsets(transaction, name, offsets)
        await admin.end(transaction, commits=True)

    older = OpenTransaction(name, *ask_coordinators(other, lambda admin: admin.init(name, 60_000)))
    newer = OpenTransaction(name, *ask_coordinators(other, lambda admin: admin.init(name, 60_000)))
    with pytest.raises(KafkaError) as caught:
        ask_coordinators(other, lambda admin: record(admin, older))
    assert caught.value.code in NOT_OPEN
    assert ask_coordinators(other, lambda admin: admin.committed(name)) == {}
    ask_coordinators(other, lambda admin: record(admin, newer))
    # The broker responds to EndTxn before the group has the offsets; the next InitProducerId waits for them.
    ask_coordinators(other, lambda admin: admin.init(name, 60_000))
    assert ask_coordinators(other, lambda admin: admin.committed(name)) == offsets
    assert ask_coordinators(other, lambda admin: admin.transaction_version(name)) == 2


def test_offsets_of_an_internal_topic_can_be_committed(servers: str, other: Producer, name: str) -> None:
    offsets = {TopicPartition("__consumer_offsets", 0): OffsetAndMetadata(1, "x" * 4000)}
    driver = OpenTransaction(name, *ask_coordinators(other, lambda admin: admin.init(name, 60_000)))
    ask_coordinators(other, lambda admin: admin.commit_offsets(driver, name, offsets))
    ask_coordinators(other, lambda admin: admin.end(driver, commits=True))
    ask_coordinators(other, lambda admin: admin.init(name, 60_000))
    assert ask_coordinators(other, lambda admin: admin.committed(name)) == offsets
