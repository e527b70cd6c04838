"""Records and batches that are larger than the topic or the client allows."""

from __future__ import annotations

import random

import pytest

from headrace.errors import HeadraceError, RecordTooLargeError
from support.brokers.admin import Admin
from support.brokers.topic_contents import oracle_rows
from support.harness.producers import MakeProducer

pytestmark = pytest.mark.timeout(120)

RECORDS = 2_000


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_batches_above_max_message_bytes_are_split_and_delivered_once_and_in_order(
    make_producer: MakeProducer, servers: str, admin: Admin, codec: str
) -> None:
    topic = admin.create("split", 2, max_message_bytes=20_000)
    producer = make_producer(bootstrap_servers=servers, batch_size=200_000, linger_ms=100, compression_type=codec)
    dice = random.Random(5)
    values = [b"%05d" % number + dice.randbytes(dice.randrange(200)) for number in range(RECORDS)]
    headers = [("n", b"1"), ("null", None)]
    deliveries = [
        producer.send(topic, value, b"k", partition=number % 2, headers=headers) for number, value in enumerate(values)
    ]
    producer.flush(timeout=60)
    assert [each.offset for each in deliveries] == [number // 2 for number in range(RECORDS)]
    rows = oracle_rows(servers, topic, 2)
    assert [each.value for each in rows] == [*values[::2], *values[1::2]]
    assert {(each.key, each.headers) for each in rows} == {(b"k", tuple(headers))}
    assert [each.timestamp for each in rows] == [each.timestamp for each in (*deliveries[::2], *deliveries[1::2])]
    assert producer.metrics()["buffered_bytes"] == 0


def test_a_record_above_max_message_bytes_fails_alone_and_the_following_are_delivered(
    make_producer: MakeProducer, servers: str, admin: Admin
) -> None:
    topic = admin.create("one-too-large", max_message_bytes=5_000)
    producer = make_producer(bootstrap_servers=servers, batch_size=100_000, linger_ms=50)
    large = {7, 100, 101}
    deliveries = [producer.send(topic, b"." * (6_000 if number in large else 100)) for number in range(200)]
    offsets = iter(range(200))
    for number, delivery in enumerate(deliveries):
        if number in large:
            with pytest.raises(HeadraceError, match=f"{topic}-0.*max.message.bytes"):
                delivery.result(60)
        else:
            assert delivery.result(60).offset == next(offsets)
    producer.flush()
    assert producer.send(topic, b"after").result(60).offset == 197


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"max_request_size": 1000}, "max.request.size"), ({"buffer_memory": 1000}, "buffer.memory")],
)
def test_a_record_above_the_limit_of_the_client_is_refused_by_send(
    make_producer: MakeProducer, servers: str, admin: Admin, settings: dict[str, int], name: str
) -> None:
    topic = admin.create("refused")
    producer = make_producer(bootstrap_servers=servers, **settings)
    for _ in range(2):  # without and with an open batch
        with pytest.raises(RecordTooLargeError, match=rf"{name}=1000"):
            producer.send(topic, b"." * 1000)
        with pytest.raises(RecordTooLargeError, match=rf"{name}=1000"):
            producer.send(topic, b"", headers=[("h", b"." * 1000)])
        producer.send(topic, b"fits")
    producer.flush(timeout=60)
    assert [each.value for each in oracle_rows(servers, topic)] == [b"fits", b"fits"]
