"""Producers in a secured cluster: every kind of login, renewal while records are sent, and missing ACLs."""

from __future__ import annotations

import time

import pytest

from headrace import Consumer, Producer
from headrace.errors import AuthenticationError, AuthorizationError, TransactionError
from support.brokers.admin import unique
from support.brokers.secured import SESSION, SecuredBroker, unsigned_token
from support.harness.consumers import poll_until


def contents(secured: SecuredBroker, topic: str, count: int) -> list[bytes | None]:
    with Consumer(secured.broker.mutual_config, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        return [record.value for record in poll_until(consumer, count)]


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "mutual TLS"])
def test_a_producer_authenticates_by_every_mechanism(secured: SecuredBroker, way: str) -> None:
    if way == "OAUTHBEARER":
        config = secured.oauth_config | {"sasl.oauthbearer.token.callback": lambda: unsigned_token("admin")}
    elif way == "mutual TLS":
        config = secured.broker.mutual_config
    else:
        config = secured.broker.config_of("admin", way)
    topic = secured.create("t")
    large = b"x" * 500_000  # several TLS records
    with Producer(config) as producer:
        producer.send_all(topic, [b"small", large])
    assert contents(secured, topic, 2) == [b"small", large]


def test_records_are_delivered_once_and_in_order_while_the_login_is_renewed(secured: SecuredBroker) -> None:
    """Requests are in flight during a renewal; requests that were held back are sent afterwards."""
    topic = secured.create("t")
    until, count = time.monotonic() + 1.5 * SESSION, 0
    with Producer(secured.broker.config_of("admin", "SCRAM-SHA-256"), linger_ms=0, batch_size=200) as producer:
        while time.monotonic() < until:
            for _ in range(20):
                producer.send(topic, b"%d" % count)
                count += 1
            producer.flush()
    assert contents(secured, topic, count) == [b"%d" % number for number in range(count)]


def test_single_records_are_delivered_by_the_loop_with_tls(secured: SecuredBroker) -> None:
    """The bytes of the socket are encrypted: it is not lent to the threads that send."""
    topic = secured.create("t")
    with Producer(secured.broker.config_of("admin", "PLAIN"), linger_ms=0) as producer:
        assert [producer.send(topic, b"x").result(20).offset for _ in range(20)] == list(range(20))
        runtime = producer._parts.lifecycle.runtime
        assert runtime is not None
        assert runtime.sender.direct.sender is None


def test_a_wrong_password_is_an_error_of_send_and_not_tried_again(secured: SecuredBroker) -> None:
    config = secured.broker.config_of("admin", "PLAIN") | {"sasl.password": "wrong"}
    producer = Producer(config)
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            producer.send("t", b"")
    producer.close()


def test_a_missing_right_to_write_is_an_error_that_names_the_topic(secured: SecuredBroker) -> None:
    topic = secured.create("t")
    secured.allow("writer", "topic", topic, "describe")
    with Producer(secured.broker.config_of("writer", "PLAIN"), enable_idempotence=False, acks=1) as producer:
        with pytest.raises(AuthorizationError, match=topic) as caught:
            producer.send(topic, b"").result(30)
        assert caught.value.topics == {topic}
        secured.allow("writer", "topic", topic, "write")
        producer.send(topic, b"allowed").result(30)
    assert contents(secured, topic, 1) == [b"allowed"]


def test_a_topic_that_may_not_be_described_is_an_error_of_send(secured: SecuredBroker) -> None:
    topic = secured.create("t")
    with (
        Producer(secured.broker.config_of("writer", "PLAIN"), max_block_ms=20_000) as producer,
        pytest.raises(AuthorizationError, match="Write and Describe"),
    ):
        producer.send(topic, b"")


def test_a_missing_right_to_transactions_is_fatal_or_abortable_with_its_cause(secured: SecuredBroker) -> None:
    topic, name = secured.create("t"), unique("x")
    secured.allow("writer", "topic", topic, "describe", "write")
    with (
        Producer(secured.broker.config_of("writer", "PLAIN"), transactional_id=name) as producer,
        pytest.raises(TransactionError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ):
        producer.begin()
