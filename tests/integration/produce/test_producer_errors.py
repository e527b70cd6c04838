"""Delivery errors: each names its cause, and the producer stays usable."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow
import pytest

from headrace import LocalBroker, Producer
from headrace.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigError,
    HeadraceError,
    KafkaError,
    NetworkError,
    RequestTimeoutError,
)
from support.brokers.admin import Admin, unique
from support.brokers.fixtures import KAFKA_VERSION
from support.brokers.secured import SecuredBroker
from support.brokers.topic_contents import oracle_rows
from support.harness.producers import AnyProducer, MakeProducer
from support.harness.waiting import wait_for

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def mortal_broker() -> Iterator[LocalBroker]:
    """A broker that tests may pause."""
    properties = {"auto.create.topics.enable": False}
    with LocalBroker(properties=properties, version=KAFKA_VERSION, start_timeout=100.0) as broker:
        yield broker


@pytest.fixture(scope="module")
def mortal_admin(mortal_broker: LocalBroker) -> Iterator[Admin]:
    admin = Admin(mortal_broker.bootstrap_servers)
    yield admin
    admin.close()


@pytest.fixture
def resumed(mortal_broker: LocalBroker) -> Iterator[LocalBroker]:
    """The broker, resumed when the test ends."""
    yield mortal_broker
    mortal_broker.resume(1)


def timed(call: Callable[[], object], error: type[Exception], match: str) -> float:
    began = time.monotonic()
    with pytest.raises(error, match=match):
        call()
    return time.monotonic() - began


# -- topics and partitions --------------------------------------------------------------------------------------


def test_an_unknown_topic_is_named_after_max_block_ms(make_producer: MakeProducer, mortal_broker: LocalBroker) -> None:
    producer = make_producer(bootstrap_servers=mortal_broker.bootstrap_servers, max_block_ms=500)
    name = unique("nowhere")
    match = f"{name} .*max.block.ms=500.*UNKNOWN_TOPIC_OR_PARTITION"
    assert 0.5 <= timed(lambda: producer.send(name, b""), RequestTimeoutError, match) < 10


def test_a_topic_that_is_created_while_send_waits_gets_the_record(
    make_sync_producer: MakeProducer, mortal_broker: LocalBroker, mortal_admin: Admin
) -> None:
    producer = make_sync_producer(bootstrap_servers=mortal_broker.bootstrap_servers)
    name = unique("later")
    creating = threading.Timer(0.3, mortal_admin.create, ("",), {"name": name})
    creating.start()
    assert producer.send(name, b"").result(60).offset == 0
    creating.join()


def test_a_partition_that_does_not_exist_is_refused_at_once(
    make_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topic = admin.create("two", 2)
    producer = make_producer(bootstrap_servers=servers)
    for partition, match in (
        *((2, f"{topic} has no partition 2, only partitions 0 to 1: "), (2**31, "partition must be a number from 0 ")),
        *((2**62, "partition must be a number from 0 "), (-1, "partition must be a number from 0 ")),
    ):
        assert timed(lambda p=partition: producer.send(topic, b"", partition=p), ConfigError, match) < 10
        table = pyarrow.table({"value": [b""], "partition": [partition]})
        refused = f"partition {partition} does not exist: the topic has 2 partitions"
        assert timed(lambda t=table: producer.send_arrow(topic, t), ValueError, refused) < 10
    assert producer.send(topic, b"", partition=1).result(60).offset == 0


def test_records_go_to_added_partitions_at_once(make_producer: MakeProducer, servers: str, admin: Admin) -> None:
    topic = admin.create("growing", 1)
    producer = make_producer(bootstrap_servers=servers)
    assert producer.send(topic, b"").result(60).partition == 0
    admin.add_partitions(topic, 4)
    began = time.monotonic()
    assert producer.send(topic, b"", partition=3).result(60).partition == 3
    admin.add_partitions(topic, 6)
    producer.send_arrow(topic, pyarrow.table({"value": [b"a", b"b"], "partition": [0, 5]})).result(60)
    assert time.monotonic() - began < 10
    assert {row.partition for row in oracle_rows(servers, topic, 6)} == {0, 3, 5}


def test_a_recreated_topic_gets_the_following_records(
    make_sync_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topic = admin.create("recreated", 3)
    producer = make_sync_producer(bootstrap_servers=servers)
    for number in range(30):
        producer.send(topic, b"%d" % number, partition=number % 3)
    producer.flush(timeout=60)
    admin.delete(topic)
    admin.recreate(topic, 2)
    for number in range(20):
        producer.send(topic, b"%d" % number, partition=number % 2)
    producer.flush(timeout=60)
    assert [int(each.value or b"") for each in oracle_rows(servers, topic, 2)] == [*range(0, 20, 2), *range(1, 20, 2)]


def test_deliveries_to_a_deleted_topic_fail_and_name_the_cause(
    make_producer: MakeProducer, mortal_broker: LocalBroker, mortal_admin: Admin
) -> None:
    topic, other = mortal_admin.create("deleted"), mortal_admin.create("other")
    producer = make_producer(
        bootstrap_servers=mortal_broker.bootstrap_servers, request_timeout_ms=1000, delivery_timeout_ms=2000
    )
    producer.send(topic, b"").result(60)
    mortal_admin.delete(topic)
    wait_for("the deletion", lambda: not mortal_admin.is_there(topic))
    with pytest.raises(RequestTimeoutError, match=f"{topic}-0: .*delivery.timeout.ms=2000: .*UNKNOWN_TOPIC"):
        producer.send(topic, b"").result(60)
    assert producer.send(other, b"").result(60).offset == 0


def test_a_record_without_a_key_for_a_compacted_topic_fails_and_names_the_record(
    make_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topic = admin.create("compacted", cleanup_policy="compact")
    producer = make_producer(bootstrap_servers=servers)
    with pytest.raises(KafkaError, match=f"{topic}-0: INVALID_RECORD.*key.*record.* 0 of the batch"):
        producer.send(topic, b"value").result(60)
    assert producer.send(topic, b"value", b"key").result(60).offset == 0


# -- authorization -----------------------------------------------------------------------------------------------------


def test_a_topic_without_rights_is_named_and_others_are_written(
    make_producer: MakeProducer, secured: SecuredBroker
) -> None:
    allowed, hidden, visible = (secured.create(name) for name in ("allowed", "hidden", "visible"))
    secured.allow("writer", "topic", allowed, "write", "describe")
    secured.allow("writer", "topic", visible, "describe")
    producer = make_producer(secured.broker.config_of("writer"))
    with pytest.raises(AuthorizationError, match=f"{hidden}.*Write") as caught:
        producer.send(hidden, b"")
    assert caught.value.topics == {hidden}
    assert producer.send(allowed, b"").result(60).offset == 0
    with pytest.raises(AuthorizationError, match=f"{visible}-0.*Write") as caught:
        producer.send(visible, b"").result(60)
    assert caught.value.topics == {visible}
    assert producer.send(allowed, b"").result(60).offset == 1


def test_a_client_without_any_right_to_write_is_told_what_idempotence_needs(
    make_sync_producer: MakeProducer, secured: SecuredBroker
) -> None:
    topic = secured.create("no-writer")
    secured.allow("billing", "topic", topic, "describe")
    producer = make_sync_producer(secured.broker.config_of("billing"))
    with pytest.raises(HeadraceError, match=r"enable.idempotence.*IdempotentWrite"):
        producer.send(topic, b"").result(60)
    secured.allow("billing", "topic", topic, "write")
    assert producer.send(topic, b"").result(60).offset == 0, "the producer works once the ACL is granted"


def test_a_wrong_password_fails_send_at_once(make_producer: MakeProducer, secured: SecuredBroker) -> None:
    topic = secured.create("locked")
    config = secured.broker.config_of("reader") | {"sasl.password": "wrong"}
    producer = make_producer(config)
    for _ in range(2):
        assert timed(lambda: producer.send(topic, b""), AuthenticationError, "rejected|invalid") < 20


# -- unresponsive brokers -------------------------------------------------------------------------------------


def test_a_full_buffer_raises_after_max_block_ms_and_nothing_accepted_is_lost(
    make_producer: MakeProducer, resumed: LocalBroker, mortal_admin: Admin
) -> None:
    topic = mortal_admin.create("paused")
    producer = make_producer(bootstrap_servers=resumed.bootstrap_servers, buffer_memory=20_000, max_block_ms=500)
    accepted = [producer.send(topic, b"0")]
    accepted[0].result(60)
    resumed.pause(1)

    def fill() -> None:
        while True:
            accepted.append(producer.send(topic, b"%d" % len(accepted)))

    match = r"max.block.ms=500: buffer.memory=20000 is full"
    assert timed(fill, RequestTimeoutError, match) < 20
    assert timed(lambda: producer.flush(timeout=0.2), RequestTimeoutError, "records are not delivered within 0.2 s") < 5
    assert timed(lambda: accepted[-1].result(0.1), RequestTimeoutError, "within 0.1 s") < 5
    assert producer.metrics()["buffered_bytes"] <= 20_000
    resumed.resume(1)
    assert [each.result(60).offset for each in accepted] == list(range(len(accepted)))
    rows = oracle_rows(resumed.bootstrap_servers, topic)
    assert [int(each.value or b"") for each in rows] == list(range(len(accepted)))


def test_send_resumes_when_records_that_filled_the_buffer_expire(
    make_sync_producer: MakeProducer, resumed: LocalBroker, mortal_admin: Admin
) -> None:
    topic = mortal_admin.create("expiring")
    producer = make_sync_producer(
        bootstrap_servers=resumed.bootstrap_servers,
        buffer_memory=2_000,
        request_timeout_ms=500,
        delivery_timeout_ms=1000,
    )
    deliver_one(producer, topic)
    resumed.pause(1)
    lost = producer.send(topic, b"." * 1500)
    began = time.monotonic()
    kept = producer.send(topic, b"." * 1500)
    assert time.monotonic() - began < 20
    resumed.resume(1)
    with pytest.raises(RequestTimeoutError, match=r"delivery.timeout.ms=1000"):
        lost.result(60)
    with contextlib.suppress(RequestTimeoutError):  # it may also be delivered in time
        kept.result(60)
    deliver_one(producer, topic)


def deliver_one(producer: AnyProducer, topic: str) -> None:
    """Send until a record is delivered. A busy broker may take longer than the times of the test."""

    def is_delivered() -> bool:
        try:
            return producer.send(topic, b"").result(60).offset is not None
        except RequestTimeoutError:
            return False

    wait_for("a delivery", is_delivered)


class Gone:
    """A producer whose broker was killed after the first record."""

    def __init__(self, make: MakeProducer, **settings: int) -> None:
        with LocalBroker(version=KAFKA_VERSION, start_timeout=100.0) as broker:
            admin = Admin(broker.bootstrap_servers)
            self.topic = admin.create("gone")
            self.producer: AnyProducer = make(bootstrap_servers=broker.bootstrap_servers, **settings)
            deliver_one(self.producer, self.topic)
            admin.close()
            broker.kill(1)


def test_deliveries_fail_after_delivery_timeout_ms_when_the_broker_is_gone(make_producer: MakeProducer) -> None:
    gone = Gone(make_producer, request_timeout_ms=500, delivery_timeout_ms=1500)
    began = time.monotonic()
    deliveries = [gone.producer.send(gone.topic, b"") for _ in range(3)]
    for delivery in deliveries:
        with pytest.raises(RequestTimeoutError, match=r"delivery.timeout.ms=1500: .*(connect|closed|refused)"):
            delivery.result(60)
    assert 1.5 <= time.monotonic() - began < 20
    gone.producer.flush()


def test_a_flush_that_times_out_has_the_last_error_as_its_cause(make_producer: MakeProducer) -> None:
    gone = Gone(make_producer)
    gone.producer.send(gone.topic, b"")
    with pytest.raises(RequestTimeoutError, match="not delivered within 2") as raised:
        gone.producer.flush(timeout=2)
    assert isinstance(raised.value.__cause__, NetworkError)
    with pytest.raises(HeadraceError, match="closed before the record was delivered"):
        gone.producer.close(timeout=0)


def test_close_ends_within_its_timeout_when_the_broker_is_gone(make_producer: MakeProducer) -> None:
    gone = Gone(make_producer)
    delivery = gone.producer.send(gone.topic, b"")
    began = time.monotonic()
    with pytest.raises(HeadraceError, match="closed before the record was delivered"):
        gone.producer.close(timeout=0.5)
    assert 0.5 <= time.monotonic() - began < 10
    with pytest.raises(HeadraceError, match="closed before the record was delivered"):
        delivery.result(0)


# -- unchecked errors --------------------------------------------------------------------------------------


def test_flush_raises_the_error_of_a_record_that_nobody_asked_for_once(
    make_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topic = admin.create("unasked", cleanup_policy="compact")
    producer = make_producer(bootstrap_servers=servers)
    producer.send(topic, b"without a key")
    with pytest.raises(KafkaError, match="INVALID_RECORD"):
        producer.flush(timeout=60)
    producer.flush(timeout=60)
    producer.send(topic, b"without a key")
    with pytest.raises(KafkaError, match="INVALID_RECORD"):
        producer.close(timeout=60)
    producer.close()


def test_flush_and_close_do_not_raise_an_error_that_was_asked_for(
    make_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topic = admin.create("asked", cleanup_policy="compact")
    producer = make_producer(bootstrap_servers=servers)
    for end in (producer.flush, producer.close):
        delivery = producer.send(topic, b"without a key")
        with pytest.raises(KafkaError, match="INVALID_RECORD"):
            delivery.result(60)
        end(timeout=60)


def test_an_error_of_the_user_s_code_is_not_hidden_by_one_of_a_delivery(servers: str, admin: Admin) -> None:
    topic = admin.create("user-error", cleanup_policy="compact")
    with pytest.raises(ZeroDivisionError), Producer(bootstrap_servers=servers) as producer:
        _ = producer.send(topic, b"without a key").partition / 0
    with pytest.raises(KafkaError, match="INVALID_RECORD"), Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"without a key")
