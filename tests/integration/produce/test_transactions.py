"""Transactions with transaction.version 2 and 1: all or nothing, however they end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headrace import AsyncProducer, Consumer, GroupMetadata, LocalBroker, OffsetAndMetadata, Producer, TopicPartition
from headrace.errors import (
    ConfigError,
    HeadraceError,
    ProducerFencedError,
    RecordTooLargeError,
    StateError,
    TransactionAbortableError,
    TransactionError,
)
from support.brokers.admin import Admin, unique
from support.brokers.java_tool import java_tool
from support.brokers.topic_contents import oracle_rows
from support.brokers.transaction_versions import broker_with
from support.harness.waiting import wait_for

_TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=[2, 1])
def broker(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    """A broker with each transaction.version."""
    with broker_with(request.param) as broker:
        yield broker


@pytest.fixture(scope="module")
def servers(broker: LocalBroker) -> str:
    return broker.bootstrap_servers


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[Admin]:
    admin = Admin(servers)
    yield admin
    admin.close()


def transactional(servers: str, transactional_id: str | None = None, **settings: object) -> Producer:
    return Producer(
        {"transactional.id": transactional_id or unique("x"), "linger.ms": 0, **settings}, bootstrap_servers=servers
    )


def committed(servers: str, topic: str, partitions: int = 1) -> list[bytes | None]:
    return [row.value for row in oracle_rows(servers, topic, partitions, isolation="read_committed")]


def test_committed_records_are_visible_and_aborted_ones_are_not(admin: Admin, servers: str) -> None:
    topic = admin.create("t", 3)
    with transactional(servers) as producer:
        for number in range(6):
            producer.begin()
            producer.send_all(topic, [{"value": f"{number}", "partition": each} for each in (0, 1, 2)])
            if number % 2:
                producer.flush()  # so that there is a record to abort
                producer.abort()
            else:
                producer.commit()
    assert sorted(committed(servers, topic, 3), key=str) == [b"0"] * 3 + [b"2"] * 3 + [b"4"] * 3
    assert len(oracle_rows(servers, topic, 3)) == 18


def test_java_reads_what_was_committed(admin: Admin, servers: str) -> None:
    topic = admin.create("t")
    with transactional(servers, **{"compression.type": "lz4"}) as producer:
        with producer.transaction():
            producer.send_all(topic, ["one", "two"])
        with pytest.raises(KeyError), producer.transaction():
            raise KeyError(producer.send(topic, "never").result(30))
        with producer.transaction():
            producer.send(topic, "three")
    tool = java_tool(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", servers, "--topic", topic, "--from-beginning", "--max-messages", "3"),
        *("--timeout-ms", "30000", "--command-property", "isolation.level=read_committed"),
    )
    found = subprocess.run(tool, check=True, timeout=60, capture_output=True, text=True)
    assert found.stdout.split() == ["one", "two", "three"]


def test_records_are_sent_in_transactions_only(admin: Admin, servers: str) -> None:
    topic = admin.create("t")
    with transactional(servers) as producer:
        with pytest.raises(StateError, match=r"Call begin\(\) first"):
            producer.send(topic, b"")
        with producer.transaction():
            producer.send(topic, b"")
        with pytest.raises(StateError, match=r"Call begin\(\) first"):
            producer.send(topic, b"")
        with pytest.raises(StateError):
            producer.commit()
        producer.begin()
        with pytest.raises(StateError, match="a transaction is open"):
            producer.begin()
    with Producer(bootstrap_servers=servers) as plain, pytest.raises(ConfigError, match=r"transactional\.id"):
        plain.begin()


def test_a_newer_producer_fences_the_older_one(admin: Admin, servers: str) -> None:
    topic, name = admin.create("t"), unique("x")
    old, new = transactional(servers, name), transactional(servers, name)
    old.begin()
    old.send(topic, "old").result(30)
    with new.transaction():
        new.send(topic, "new")
    with pytest.raises(ProducerFencedError, match="fenced"):
        old.commit()
    with pytest.raises(TransactionError):
        old.send(topic, "zombie")
    old.close()
    new.close()
    assert committed(servers, topic) == [b"new"]


@pytest.mark.parametrize("end", ["abort", "close", "error in the block", "send, then close"])
def test_a_fenced_producer_does_not_abort_the_transaction_of_its_successor(
    admin: Admin, servers: str, end: str
) -> None:
    topic, name = admin.create("t"), unique("x")
    old, new = transactional(servers, name), transactional(servers, name)
    with old.transaction():  # after it, the refusal of an abort may only be too early
        old.send(topic, "before")

    def replace() -> None:
        old.send(topic, "old").result(30)
        new.begin()
        new.send(topic, "new").result(30)

    def replace_in_block() -> None:
        with old.transaction():
            replace()
            raise KeyError

    if end == "error in the block":
        with pytest.raises(KeyError):
            replace_in_block()
    else:
        old.begin()
        replace()
    if end == "abort":
        with pytest.raises(ProducerFencedError):
            old.abort()
    elif end == "send, then close":
        with pytest.raises(HeadraceError):
            old.send(topic, "zombie").result(30)
    old.close()
    new.send(topic, "too").result(30)
    new.commit()
    new.close()
    assert committed(servers, topic) == [b"before", b"new", b"too"]


def test_a_transaction_that_timed_out_is_not_committed(admin: Admin, servers: str) -> None:
    topic = admin.create("t")
    with transactional(servers, **{"transaction.timeout.ms": 500}) as producer:
        producer.begin()
        producer.send(topic, "late").result(30)
        with Consumer(bootstrap_servers=servers, isolation_level="read_committed") as reader:
            # Readers get past the record and the abort marker.
            wait_for("the abort", lambda: reader.end_offsets([(topic, 0)])[TopicPartition(topic, 0)] == 2)
        with pytest.raises(TransactionError):
            producer.commit()
    assert committed(servers, topic) == []


def test_offsets_are_committed_with_the_records(admin: Admin, servers: str) -> None:
    source, target, group = admin.create("in"), admin.create("out"), unique("g")
    place = TopicPartition(source, 0)
    with (
        transactional(servers) as producer,
        Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as consumer,
    ):
        producer.begin()
        producer.send(target, "aborted")
        producer.send_offsets({place: 5}, GroupMetadata(group))
        producer.abort()
        assert consumer.committed([place])[place] is None
        with producer.transaction():
            producer.send(target, "committed")
            producer.send_offsets({place: OffsetAndMetadata(7, "note")}, GroupMetadata(group))
        assert consumer.committed([place])[place] == OffsetAndMetadata(7, "note")
    assert committed(servers, target) == [b"committed"]


def test_the_offsets_of_somebody_who_is_no_member_abort_the_transaction(admin: Admin, servers: str) -> None:
    topic, group = admin.create("t"), unique("g")
    with (
        transactional(servers) as producer,
        Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as consumer,
    ):
        consumer.subscribe([topic])
        wait_for("the assignment", lambda: (consumer.poll(0.1), consumer.assignment())[1])
        zombie = GroupMetadata(group, 1, "somebody else")
        producer.begin()
        producer.send(topic, "zombie")
        with pytest.raises(TransactionAbortableError):
            producer.send_offsets({(topic, 0): 1}, zombie)
        with pytest.raises(TransactionAbortableError):
            producer.commit()
        producer.abort()
        with producer.transaction():
            producer.send(topic, "member")
            producer.send_offsets({(topic, 0): 1}, consumer.group_metadata())
    assert committed(servers, topic) == [b"member"]


def test_several_tasks_that_wait_for_the_same_call_get_its_result(admin: Admin, servers: str) -> None:
    topic = admin.create("t")

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=servers, transactional_id=unique("t")) as producer:

            async def thrice(call: Callable[..., Awaitable[None]]) -> None:
                await asyncio.gather(*(call(timeout=20) for _ in range(3)))

            await thrice(producer.init_transactions)
            for end, value in ((producer.abort, "no"), (producer.commit, "yes")):
                await producer.begin()
                await producer.send(topic, value)
                await thrice(end)
            with pytest.raises(StateError):
                await thrice(producer.commit)

    asyncio.run(main())
    assert committed(servers, topic) == [b"yes"]


def test_init_transactions_raises_what_prevents_a_transaction(admin: Admin, servers: str) -> None:
    topic, group = admin.create("t"), GroupMetadata(unique("g"), 1, "somebody")
    with transactional(servers) as producer:
        producer.init_transactions()
        producer.init_transactions()
        producer.begin()
        producer.init_transactions()
        with pytest.raises(TransactionAbortableError):
            producer.send_offsets({(topic, 0): 1}, group)
        with pytest.raises(TransactionAbortableError):
            producer.init_transactions()
        producer.abort()
        producer.init_transactions()


def test_a_record_that_the_broker_refuses_aborts_the_transaction(admin: Admin, servers: str) -> None:
    small, other = admin.create("t", max_message_bytes=500), admin.create("t")
    with transactional(servers) as producer:
        producer.begin()
        producer.send(other, "with it")
        delivery = producer.send(small, b"x" * 1000)
        with pytest.raises(TransactionAbortableError, match="MESSAGE_TOO_LARGE"):
            producer.commit()
        assert delivery.error is not None
        with pytest.raises(TransactionAbortableError):
            producer.send(other, "no more")
        producer.abort()
        with producer.transaction():
            producer.send(other, "after it")
    assert committed(servers, other) == [b"after it"]


def test_an_error_in_the_block_aborts_and_the_producer_goes_on(admin: Admin, servers: str) -> None:
    topic = admin.create("t")
    with transactional(servers) as producer:
        with pytest.raises(RecordTooLargeError), producer.transaction():
            producer.send_all(topic, ["one", b"x" * 2**21])
        with producer.transaction():
            pass  # an empty transaction
        with producer.transaction():
            producer.send(topic, "two")
    assert committed(servers, topic) == [b"two"]


def test_close_aborts_an_open_transaction(admin: Admin, servers: str) -> None:
    """Otherwise readers would wait for a minute."""
    topic = admin.create("t")
    with transactional(servers) as producer:
        producer.begin()
        producer.send(topic, "open").result(30)
    with Producer(bootstrap_servers=servers) as plain:
        plain.send(topic, "behind it").result(30)
    wait_for("the record behind it", lambda: committed(servers, topic) == [b"behind it"], timeout=10)


@pytest.mark.parametrize("step", ["begin", "send", "flush", "offsets", "commit", "none"])
def test_a_crash_between_two_steps_leaves_all_or_nothing(admin: Admin, servers: str, step: str) -> None:
    topic, source, name, group = admin.create("t"), admin.create("in"), unique("x"), unique("g")
    program = [sys.executable, "-m", "support.programs.transaction_steps", servers, source, topic, name, group, step]
    subprocess.run(program, cwd=_TESTS, timeout=60, check=False)
    with transactional(servers, name) as heir, heir.transaction():  # aborts the open transaction of the dead producer
        heir.send(topic, "heir")
    first, second = ([f"{which} {number}".encode() for number in range(10)] for which in ("first", "second"))
    assert committed(servers, topic) == [*first, *(second if step == "none" else ()), b"heir"]
    with Consumer(bootstrap_servers=servers, group_id=group) as consumer:
        found = consumer.committed([(source, 0)])[TopicPartition(source, 0)]
    assert (found is not None and found.offset == 10) == (step == "none")


def test_transactions_of_an_async_producer(admin: Admin, servers: str) -> None:
    topic = admin.create("t")

    async def write() -> None:
        async with AsyncProducer(bootstrap_servers=servers, transactional_id=unique("x"), linger_ms=0) as producer:
            async with producer.transaction():
                await producer.send_all(topic, ["one", "two"])
            with pytest.raises(KeyError):
                await write_in_vain(producer)
            async with producer.transaction():
                await producer.send(topic, "three")

    async def write_in_vain(producer: AsyncProducer) -> None:
        async with producer.transaction():
            raise KeyError(await (await producer.send(topic, "never")))

    asyncio.run(write())
    assert committed(servers, topic) == [b"one", b"two", b"three"]
