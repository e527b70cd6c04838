"""What a consumer or share consumer reports: polls, commits, and a span for each call of run()'s handler.

- A process span is the root of a trace, and linked to the span in which the record was produced. With `continue_trace`
  it is also the child of that span.
- A record that is retried has a span for each attempt.
- poll() has no span. A poll may return records of thousands of traces.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.metrics import Histogram
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from ..records import Record, Records
from ..types import AcknowledgeType
from . import conventions as names
from .message_counts import MessageCounts
from .trace_headers import TraceHeaders, links_to


class ConsumerReports:
    """Implements `ConsumerTelemetry`. `tracer` is None without traces, the instruments are None without metrics."""

    def __init__(
        self,
        common: names.Attributes,
        client_id: str,
        tracer: Tracer | None,
        headers: TraceHeaders,
        consumed: MessageCounts | None,
        operation_duration: Histogram | None,
        process_duration: Histogram | None,
        *,
        continue_trace: bool,
    ) -> None:
        self._client_id = client_id
        self._tracer = tracer
        self._headers = headers
        self._operation_duration = operation_duration
        self._process_duration = process_duration
        self._continues = continue_trace
        self._poll = common | names.operation("poll", "receive")
        self._commit = common | names.operation("commit", "settle")
        self._process = common | names.operation("process", "process")
        self._consumed = None if consumed is None else consumed.sums(self._poll)

    # -- polls and commits ---------------------------------------------------------------------------------------

    def polled(self, records: Records, waited: float | None) -> None:
        batches = records._batches
        if self._consumed is not None:
            self._consumed.add(batches)
        if waited is not None and batches and self._operation_duration is not None:
            topics = {batch.topic for batch in batches}
            where: names.Attributes = {names.DESTINATION: topics.pop()} if len(topics) == 1 else {}
            self._operation_duration.record(waited, self._poll | where)

    def poll_failed(self, error: BaseException, seconds: float) -> None:
        if self._operation_duration is not None:
            self._operation_duration.record(seconds, self._poll | {names.ERROR_TYPE: names.error_type(error)})

    def committed(self, seconds: float, error: BaseException | None) -> None:
        if self._operation_duration is not None:
            failure: names.Attributes = {} if error is None else {names.ERROR_TYPE: names.error_type(error)}
            self._operation_duration.record(seconds, self._commit | failure)

    # -- handlers ------------------------------------------------------------------------------------------------

    def call_handler(self, handler: Callable[[Record], Any], record: Record, attempt: int) -> Any:
        call = _ProcessCall(self, record)
        if self._tracer is not None:
            self._begin(call, "process", SpanKind.CONSUMER, record, {names.ATTEMPT: attempt})
        return call.run(lambda: handler(record))

    def call_dead_letter(self, write: Callable[[], Any], record: Record, error: BaseException) -> Any:
        if self._tracer is None:
            return write()
        call = _Call()
        failure: names.Attributes = {names.ERROR_TYPE: names.error_type(error)}
        self._begin(call, "dead_letter", SpanKind.INTERNAL, record, failure)
        return call.run(write)

    def _begin(self, call: _Call, name: str, kind: SpanKind, record: Record, more: names.Attributes) -> None:
        """Starts the span of a call. Its context also has what else the producer has propagated, such as baggage."""
        assert self._tracer is not None
        produced = self._headers.extract(record.headers)
        attributes = {
            **self._process,
            **names.operation(name, "process"),
            names.CLIENT_ID: self._client_id,
            names.DESTINATION: record.topic,
            names.PARTITION: str(record.partition),
            names.OFFSET: record.offset,
            **more,
        }
        if record.raw_value is None:
            attributes[names.TOMBSTONE] = True
        if record.lane is not None:
            attributes[names.LANE] = record.lane
        call.span = self._tracer.start_span(
            f"{name} {record.topic}",
            produced if self._continues else Context(),
            kind,
            attributes,
            links_to(produced),
            record_exception=False,
            set_status_on_exception=False,
        )
        call.context = set_span_in_context(call.span, produced)

    def with_context(self, result: Any, context: Context) -> Any:
        """For outputs of a handler."""
        return self._headers.inject_into_outputs(result, context)

    def processed(self, record: Record, seconds: float, error: BaseException | None) -> None:
        if self._process_duration is not None:
            where: names.Attributes = {names.DESTINATION: record.topic, names.PARTITION: str(record.partition)}
            failure: names.Attributes = {} if error is None else {names.ERROR_TYPE: names.error_type(error)}
            self._process_duration.record(seconds, self._process | where | failure)


class _Call:
    """One call of the user's code. Its span, if there is one, is the current one meanwhile."""

    def __init__(self) -> None:
        self.span: Span | None = None
        self.context = get_current()

    def run(self, function: Callable[[], Any]) -> Any:
        is_in_loop = _in_event_loop()
        token = attach(self.context)
        try:
            result = function()
            if isinstance(result, concurrent.futures.Future):
                # On threads, run() would wait for it, too.
                result = asyncio.wrap_future(result) if is_in_loop else result.result()
        except BaseException as error:
            self.end(error)
            raise
        finally:
            detach(token)
        return self._awaited(result) if is_in_loop and inspect.isawaitable(result) else self.end_with(result)

    async def _awaited(self, result: Awaitable[Any]) -> Any:
        token = attach(self.context)
        try:
            found = await result
        except BaseException as error:
            self.end(error)
            raise
        else:
            return self.end_with(found)
        finally:
            detach(token)

    def end_with(self, result: Any) -> Any:
        """Returns the result that run() gets."""
        self.end(None)
        return result

    def end(self, error: BaseException | None) -> None:
        if self.span is not None:
            if error is not None:
                fail(self.span, error)
            self.span.end()


class _ProcessCall(_Call):
    """One call of a handler."""

    def __init__(self, reports: ConsumerReports, record: Record) -> None:
        super().__init__()
        self._reports = reports
        self._record = record
        self._began = time.monotonic()

    def end_with(self, result: Any) -> Any:
        if self.span is not None and isinstance(result, AcknowledgeType):
            self.span.set_attribute(names.ACKNOWLEDGEMENT, result.name.lower())
        self.end(None)
        return result if self.span is None else self._reports.with_context(result, self.context)

    def end(self, error: BaseException | None) -> None:
        self._reports.processed(self._record, time.monotonic() - self._began, error)
        super().end(error)


def fail(span: Span, error: BaseException) -> None:
    """The span ends with this error."""
    span.set_attribute(names.ERROR_TYPE, names.error_type(error))
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _in_event_loop() -> bool:
    """Whether run() will await what the handler returned. On threads, it rejects coroutines."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
