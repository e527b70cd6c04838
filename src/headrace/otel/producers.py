"""What a producer reports: batches that were delivered or have failed, and a span for each record of send().

- The span of a record lasts until its delivery. Its context is written into the headers of the record, unless they have
  one already: then the span is linked to that one.
- send_arrow() has one span, and writes no headers: they would cost more than all other columns together.
- Spans start on the user's thread, and end on the producer's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sized
from typing import Any

from opentelemetry.context import get_current
from opentelemetry.metrics import Histogram
from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context

from .._record_batch import Delivery, ProducerBatch
from . import conventions as names
from .consumers import fail
from .message_counts import MessageCounts
from .trace_headers import TraceHeaders, links_to


class ProducerReports:
    """Implements `ProducerTelemetry`. `tracer` is None without traces, the instruments are None without metrics."""

    def __init__(
        self,
        common: names.Attributes,
        client_id: str,
        tracer: Tracer | None,
        headers: TraceHeaders,
        sent: MessageCounts | None,
        operation_duration: Histogram | None,
    ) -> None:
        self.traces_records = tracer is not None
        self._client_id = client_id
        self._tracer = tracer
        self._headers = headers
        self._operation_duration = operation_duration
        self._send = common | names.operation("send", "send")
        self._sent = None if sent is None else sent.sums(self._send)
        self._watched: dict[ProducerBatch, _WatchedBatch] = {}

    def send(self, topic: str, value: Any, headers: list[tuple[str, Any]] | None) -> TracedRecord:
        assert self._tracer is not None
        given = headers or []
        attributes = {**self._send, names.CLIENT_ID: self._client_id, names.DESTINATION: topic}
        if value is None:
            attributes[names.TOMBSTONE] = True
        created = self._headers.extract(given)
        span = self._tracer.start_span(
            f"send {topic}",
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            links=links_to(created),
            record_exception=False,
            set_status_on_exception=False,
        )
        return TracedRecord(self, span, self._headers.inject(given, set_span_in_context(span, get_current())))

    def send_columns(
        self, topic: str | None, sent: Sized, steps: Generator[Any, Any, None]
    ) -> Generator[Any, Any, None]:
        if self._tracer is None:
            yield from steps
            return
        where = {} if topic is None else {names.DESTINATION: topic}
        attributes = {**self._send, names.CLIENT_ID: self._client_id, **where}
        name = "send" if topic is None else f"send {topic}"
        span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
        try:
            yield from steps
        except BaseException as error:
            fail(span, error)
            raise
        finally:
            span.set_attribute(names.MESSAGE_COUNT, len(sent))
            span.end()

    # -- batches -------------------------------------------------------------------------------------------------

    def watch(self, batch: ProducerBatch) -> None:
        self._watch(batch, None)

    def _watch(self, batch: ProducerBatch, whole: _WatchedBatch | None) -> None:
        watched = self._watched[batch] = _WatchedBatch(self, batch, whole)
        batch.add_waiter(watched)  # type: ignore[arg-type]  # it only needs set()

    def watched(self, batch: ProducerBatch) -> _WatchedBatch | None:
        return self._watched.get(batch)

    def ended(self, batch: ProducerBatch, whole: _WatchedBatch) -> None:
        """On the producer's thread. A batch that was too large is replaced by its parts."""
        self._watched.pop(batch, None)
        if parts := batch.parts:
            for part in parts:
                self._watch(part, whole)
            return
        failed = None if batch.error is None else names.error_type(batch.error)
        if self._sent is not None:
            self._sent.add((batch,), failed)
        if self._operation_duration is not None:
            where: names.Attributes = {names.DESTINATION: batch.topic, names.PARTITION: str(batch.partition)}
            failure: names.Attributes = {} if failed is None else {names.ERROR_TYPE: failed}
            self._operation_duration.record(time.monotonic() - batch.created, self._send | where | failure)


class TracedRecord:
    """A call of send()."""

    def __init__(self, reports: ProducerReports, span: Span, headers: list[tuple[str, Any]]) -> None:
        self.headers: list[tuple[str, Any]] | None = headers or None
        self._reports = reports
        self._span = span

    def accepted(self, delivery: Delivery) -> None:
        watched = self._reports.watched(delivery._batch)
        if watched is None or not self._span.is_recording():
            _end(self._span, delivery)
        else:
            watched.add(self._span, delivery)

    def rejected(self, error: BaseException) -> None:
        fail(self._span, error)
        self._span.end()


class _WatchedBatch:
    """Takes the place of a flag in a batch, which is set when the batch is done or split. `_lock` guards the spans of
    its records: users' threads add them, perhaps after the batch is done."""

    def __init__(self, reports: ProducerReports, batch: ProducerBatch, whole: _WatchedBatch | None) -> None:
        self._reports = reports
        self._batch = batch
        self._whole = whole or self  # of which this is a part
        self._lock = threading.Lock()
        self._spans: list[tuple[Span, Delivery]] = []

    def add(self, span: Span, delivery: Delivery) -> None:
        with self._lock:
            self._spans.append((span, delivery))
        if delivery.is_done:
            self._end_spans()

    def set(self) -> None:
        self._reports.ended(self._batch, self._whole)
        self._whole._end_spans()

    def _end_spans(self) -> None:
        with self._lock:
            done: list[tuple[Span, Delivery]] = []
            waiting: list[tuple[Span, Delivery]] = []
            for each in self._spans:
                (done if each[1].is_done else waiting).append(each)
            self._spans = waiting
        for span, delivery in done:
            _end(span, delivery)


def _end(span: Span, delivery: Delivery) -> None:
    if span.is_recording():
        span.set_attribute(names.PARTITION, str(delivery.partition))
        if delivery.offset is not None:
            span.set_attribute(names.OFFSET, delivery.offset)
        if delivery.error is not None:
            fail(span, delivery.error)
    span.end()
