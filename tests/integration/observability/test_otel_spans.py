"""Spans across a real topic: of the producer, and of the handlers of run(), linked by the headers of the records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer as ConfluentProducer
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from headrace import AcknowledgeType, Consumer, Producer, ProducerRecord, Record
from headrace.errors import HeadraceError, RecordTooLargeError
from support.brokers.admin import Admin, unique
from support.harness.consumers import KINDS
from support.harness.otel import Observed, observing
from support.harness.producers import PRODUCER_KINDS
from support.harness.run_kinds import Kind, until
from support.harness.share_consumers import SHARE_KINDS, share_group


@pytest.fixture
def observed() -> Iterator[Observed]:
    with observing() as found:
        yield found


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest, observed: Observed) -> Iterator[Kind]:
    kind = Kind(request.param)
    yield kind
    kind.close()


def context_of(span: Any) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def linked(span: Any) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def send(servers: str, topic: str, *values: bytes | None, **options: Any) -> None:
    with Producer(bootstrap_servers=servers, client_id="shop") as producer:
        for value in values:
            producer.send(topic, value, b"key", **options)


def handled(consumer: Any, count: int) -> dict[str, Any]:
    return until(consumer, lambda it: it.handled + it.dead_lettered >= count)


def test_a_handler_s_span_is_linked_to_the_span_of_its_record_s_producer(
    kind: Kind, observed: Observed, admin: Admin, servers: str
) -> None:
    topic, group = admin.create("spans", 1), unique("g")
    send(servers, topic, b"1", None)
    consumer = kind.member(servers, group, topic, client_id="billing")
    inside: list[tuple[int, int]] = []

    def look(record: Record) -> None:
        found = get_current_span().get_span_context()
        inside.append((found.trace_id, found.span_id))

    consumer.run(kind.handler(look, look), order="partition", **handled(consumer, 2))
    sent = observed.spans(f"send {topic}", 2)
    processed = observed.spans(f"process {topic}", 2)
    assert [linked(span) for span in processed] == [[context_of(span)] for span in sent]
    assert {span.context.trace_id for span in sent}.isdisjoint({span.context.trace_id for span in processed})
    assert [span.parent for span in (*sent, *processed)] == [None] * 4
    twice = [context_of(span) for span in processed for _ in range(2)]
    assert inside == twice, "the span is the current one, from the beginning of the handler to its end"

    host, port = servers.rsplit(":", 1)
    common = {"messaging.system": "kafka", "server.address": host, "server.port": int(port)}
    where = {"messaging.destination.name": topic, "messaging.destination.partition.id": "0"}
    for number, (first, second) in enumerate(zip(sent, processed, strict=True)):
        place = {"messaging.kafka.offset": number} | ({"messaging.kafka.message.tombstone": True} if number else {})
        assert dict(first.attributes or {}) == {
            **common, **where, **place, "messaging.client.id": "shop",
            "messaging.operation.name": "send", "messaging.operation.type": "send",
        }  # fmt: skip
        assert dict(second.attributes or {}) == {
            **common, **where, **place, "messaging.client.id": "billing", "messaging.consumer.group.name": group,
            "messaging.operation.name": "process", "messaging.operation.type": "process", "headrace.attempt": 1,
        }  # fmt: skip
        assert (first.kind, second.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert (first.status.status_code, second.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)
        scope = second.instrumentation_scope
        assert scope is not None
        assert (scope.name, scope.schema_url) == ("headrace", "https://opentelemetry.io/schemas/1.44.0")


def test_the_producer_s_span_is_a_child_of_the_program_s_and_its_baggage_arrives(
    kind: Kind, observed: Observed, admin: Admin, servers: str
) -> None:
    topic = admin.create("parents", 1)
    tracer = observed.tracers.get_tracer("program")
    with tracer.start_as_current_span("request") as request:
        token = attach(baggage.set_baggage("customer", "7"))
        send(servers, topic, b"1", headers={"mine": b"kept"})
        detach(token)
    consumer = kind.member(servers, unique("g"), topic)
    seen: list[Any] = []

    def look(record: Record) -> None:
        seen.append((baggage.get_baggage("customer"), record.headers[0]))

    consumer.run(kind.handler(look), **handled(consumer, 1))
    (sent,) = observed.spans(f"send {topic}", 1)
    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    assert seen == [("7", ("mine", b"kept"))]


def test_each_attempt_has_a_span_with_its_error_and_the_dead_letter_is_linked(
    kind: Kind, observed: Observed, admin: Admin, servers: str
) -> None:
    topic, letters = admin.create("failing", 1), admin.create("letters", 1)
    send(servers, topic, b"bad")
    (sent,) = observed.spans(f"send {topic}", 1)
    consumer = kind.member(servers, unique("g"), topic)

    def fail(record: Record) -> None:
        raise ValueError("nonsense")

    options = {"retries": 1, "retry_backoff": 0.01, "dead_letter": letters}
    progress = consumer.run(kind.handler(fail), **options, **handled(consumer, 1))
    assert (progress.retried, progress.dead_lettered) == (1, 1)
    attempts = observed.spans(f"process {topic}", 2)
    assert [(span.attributes or {})["headrace.attempt"] for span in attempts] == [1, 2]
    for span in attempts:
        assert linked(span) == [context_of(sent)]
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "nonsense")
        assert (span.attributes or {})["error.type"] == "ValueError"
        assert [event.name for event in span.events] == ["exception"]
    (buried,) = observed.spans(f"dead_letter {topic}", 1)
    assert (buried.kind, linked(buried)) == (SpanKind.INTERNAL, [context_of(sent)])
    assert (buried.attributes or {})["error.type"] == "ValueError"
    (written,) = observed.spans(f"send {letters}", 1)
    assert written.parent is not None
    assert written.parent.span_id == context_of(buried)[1]
    assert linked(written) == [context_of(sent)], "a dead letter keeps the headers of its record"


def test_a_record_without_trace_headers_has_a_span_without_a_link(
    kind: Kind, observed: Observed, admin: Admin, servers: str
) -> None:
    topic = admin.create("plain", 1)
    other = ConfluentProducer({"bootstrap.servers": servers})
    other.produce(topic, b"1", headers=[("traceparent", b"nonsense")])
    other.flush()
    consumer = kind.member(servers, unique("g"), topic)
    consumer.run(kind.handler(lambda record: None), **handled(consumer, 1))
    (span,) = observed.spans(f"process {topic}", 1)
    assert linked(span) == []


def test_continue_trace_makes_the_handler_s_span_a_child(admin: Admin, servers: str) -> None:
    topic = admin.create("continued", 1)
    with observing(continue_trace=True) as observed:
        send(servers, topic, b"1")
        with Consumer(
            bootstrap_servers=servers, group_id=unique("g"), auto_offset_reset="earliest", commit_mode="done"
        ) as consumer:
            consumer.subscribe([topic])
            consumer.run(lambda record: None, **handled(consumer, 1))
        (sent,), (processed,) = observed.spans(f"send {topic}", 1), observed.spans(f"process {topic}", 1)
    assert processed.parent is not None
    assert (processed.context.trace_id, processed.parent.span_id) == context_of(sent)
    assert linked(processed) == [context_of(sent)]


@pytest.mark.parametrize("name", list(SHARE_KINDS))
def test_a_share_consumer_s_spans_have_the_acknowledgement(
    name: str, observed: Observed, admin: Admin, servers: str
) -> None:
    topic, group = admin.create("shared", 1), share_group(servers)
    send(servers, topic, b"1", b"2")
    consumer = SHARE_KINDS[name](bootstrap_servers=servers, group_id=group)
    consumer.subscribe([topic])

    def plain(record: Record) -> AcknowledgeType | None:
        return AcknowledgeType.REJECT if record.offset else None

    async def coroutine(record: Record) -> AcknowledgeType | None:
        return plain(record)

    consumer.run(
        plain if name == "sync" else coroutine, **until(consumer, lambda it: it.accepted + it.rejected == 2)
    )  # fmt: skip
    consumer.close()
    spans = sorted(observed.spans(f"process {topic}", 2), key=lambda span: span.attributes["messaging.kafka.offset"])
    assert [(span.attributes or {}).get("headrace.acknowledgement") for span in spans] == [None, "reject"]
    assert {(span.attributes or {})["messaging.consumer.group.name"] for span in spans} == {group}
    assert [len(linked(span)) for span in spans] == [1, 1]


@pytest.mark.parametrize("is_future", [False, True], ids=["outputs", "future"])
def test_outputs_of_an_exactly_once_run_are_linked_to_the_handler_that_made_them(
    observed: Observed, admin: Admin, servers: str, is_future: bool
) -> None:
    source, target = admin.create("source", 1), admin.create("target", 1)
    send(servers, source, b"1")
    settings = {"bootstrap_servers": servers, "auto_offset_reset": "earliest", "commit_mode": "done"}
    with (
        Consumer(**settings, group_id=unique("g"), enable_auto_commit=False) as consumer,
        Producer(bootstrap_servers=servers, transactional_id=unique("t")) as producer,
        ThreadPoolExecutor(1) as pool,
    ):

        def handle(record: Record) -> Any:
            made = ProducerRecord(target, record.value)
            return pool.submit(lambda: made) if is_future else made

        consumer.subscribe([source])
        consumer.run(handle, producer=producer, **handled(consumer, 1))
    (first,) = observed.spans(f"process {source}", 1)
    with Consumer(**settings, group_id=unique("g"), isolation_level="read_committed") as consumer:
        consumer.subscribe([target])
        consumer.run(lambda record: None, **handled(consumer, 1))
    (second,) = observed.spans(f"process {target}", 1)
    assert linked(second) == [context_of(first)]


@pytest.mark.parametrize("name", list(PRODUCER_KINDS))
def test_a_span_ends_with_the_delivery_of_its_record_or_with_its_error(
    name: str, observed: Observed, admin: Admin, servers: str
) -> None:
    topic = admin.create("ends", 2)
    producer = PRODUCER_KINDS[name](bootstrap_servers=servers, linger_ms=60_000, max_request_size=1000)
    try:
        producer.send(topic, b"1", partition=1)
        with pytest.raises(RecordTooLargeError):
            producer.send(topic, b"x" * 2000)
        (refused,) = observed.spans(f"send {topic}", 1)
        assert refused.status.status_code is StatusCode.ERROR
        assert (refused.attributes or {})["error.type"] == "headrace.errors.RecordTooLargeError"
        producer.flush()
        spans = observed.spans(f"send {topic}", 2)
        (delivered,) = [span for span in spans if span.status.status_code is StatusCode.UNSET]
        assert (delivered.attributes or {})["messaging.destination.partition.id"] == "1"
        assert (delivered.attributes or {})["messaging.kafka.offset"] == 0
    finally:
        producer.close()


def test_the_spans_of_a_batch_that_is_split_end_when_its_parts_are_delivered(
    observed: Observed, admin: Admin, servers: str
) -> None:
    topic = admin.create("split", 1, **{"max.message.bytes": "3000"})
    with Producer(bootstrap_servers=servers, linger_ms=1000, batch_size=20_000) as producer:
        for _ in range(20):
            producer.send(topic, b"x" * 500)
        producer.flush()
    spans = observed.spans(f"send {topic}", 20)
    assert sorted((span.attributes or {})["messaging.kafka.offset"] for span in spans) == list(range(20))
    (point,) = observed.points("messaging.client.sent.messages")
    assert point.value == 20


def test_a_record_that_the_broker_rejects_has_a_span_with_the_error(
    observed: Observed, admin: Admin, servers: str
) -> None:
    topic = admin.create("lost", 1, **{"max.message.bytes": "1000"})
    with Producer(bootstrap_servers=servers) as producer:
        delivery = producer.send(topic, b"x" * 5000)
        with pytest.raises(HeadraceError):
            delivery.result()
    (span,) = observed.spans(f"send {topic}", 1)
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "MESSAGE_TOO_LARGE"
    (point,) = observed.points("messaging.client.sent.messages")
    assert (point.value, point.attributes["error.type"]) == (1, "MESSAGE_TOO_LARGE")


def test_send_arrow_has_one_span_and_adds_no_headers(observed: Observed, admin: Admin, servers: str) -> None:
    topic = admin.create("columns", 1)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_arrow(topic, pa.table({"value": [b"%d" % n for n in range(100)]})).result()
    (span,) = observed.spans(f"send {topic}", 1)
    assert (span.kind, (span.attributes or {})["messaging.batch.message_count"]) == (SpanKind.CLIENT, 100)
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert {record.headers for record in consumer.poll(10.0)} == {()}


def test_a_coroutine_s_span_stays_current_beside_others(observed: Observed, admin: Admin, servers: str) -> None:
    topic = admin.create("beside", 1)
    send(servers, topic, *(b"%d" % number for number in range(5)))
    kind = Kind("async")
    consumer = kind.member(servers, unique("g"), topic)
    seen: dict[int, set[int]] = {}

    async def handle(record: Record) -> None:
        for _ in range(3):
            found = get_current_span().get_span_context().span_id
            seen.setdefault(record.offset, set()).add(found)
            await asyncio.sleep(0)

    consumer.run(handle, order="none", **handled(consumer, 5))
    kind.close()
    assert [len(found) for found in seen.values()] == [1] * 5
    assert len(set().union(*seen.values())) == 5
