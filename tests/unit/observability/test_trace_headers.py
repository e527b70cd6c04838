"""Trace context in the headers of records."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import baggage
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)

from headrace import ProducerRecord
from headrace.otel.trace_headers import TraceHeaders, links_to
from support.harness.otel import PROPAGATOR

HEADERS = TraceHeaders(PROPAGATOR)
SPAN = SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(1))
CONTEXT = set_span_in_context(NonRecordingSpan(SPAN), Context())
TRACEPARENT = ("traceparent", b"00-00000000000000000000000000000abc-0000000000000def-01")
OTHER = ("traceparent", b"00-00000000000000000000000000000001-0000000000000002-01")


def span_in(headers: Any) -> tuple[int, int] | None:
    found = get_current_span(HEADERS.extract(headers)).get_span_context()
    return (found.trace_id, found.span_id) if found.is_valid else None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([TRACEPARENT], (0xABC, 0xDEF)),
        ([("Traceparent", TRACEPARENT[1].decode())], (0xABC, 0xDEF)),
        ([("other", b"\xff"), TRACEPARENT, ("tracestate", b"a=1")], (0xABC, 0xDEF)),
        ([("traceparent", b"\xff\xfe")], None),
        ([("traceparent", b"nonsense")], None),
        ([("traceparent", None)], None),
        ([("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")], None),
        ([("traceparent", b"0" * 10_000)], None),
    ],
)
def test_the_context_of_a_record_is_read_from_its_headers(headers: Any, expected: tuple[int, int] | None) -> None:
    assert span_in(headers) == expected
    assert len(links_to(HEADERS.extract(headers))) == (expected is not None)


def test_a_context_is_added_after_the_headers_of_a_record() -> None:
    assert HEADERS.inject([("a", b"1")], CONTEXT) == [("a", b"1"), TRACEPARENT]


def test_a_context_that_a_record_has_already_is_kept() -> None:
    stated = SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("a", "1")]))
    context = set_span_in_context(NonRecordingSpan(stated), Context())
    assert HEADERS.inject([], context) == [TRACEPARENT, ("tracestate", b"a=1")]
    assert HEADERS.inject([OTHER], context) == [OTHER], "also without a part of another context"


def test_only_what_is_missing_is_added() -> None:
    with_baggage = baggage.set_baggage("user", "7", CONTEXT)
    assert HEADERS.inject([], with_baggage) == [TRACEPARENT, ("baggage", b"user=7")]
    assert HEADERS.inject([("baggage", b"a=1")], with_baggage) == [("baggage", b"a=1"), TRACEPARENT]


@pytest.mark.parametrize("invalid", [b"nonsense", b"\xff", None, b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"])
def test_an_invalid_context_is_replaced_with_all_of_its_parts(invalid: bytes | None) -> None:
    given = [("Traceparent", invalid), ("a", b"1"), ("tracestate", b"b=2"), ("baggage", b"c=3")]
    assert HEADERS.inject(given, CONTEXT) == [("a", b"1"), ("baggage", b"c=3"), TRACEPARENT]
    assert HEADERS.inject(given, Context()) == given, "there is nothing to replace it with"


def test_without_a_span_nothing_is_added() -> None:
    assert HEADERS.inject([("a", b"1")], Context()) == [("a", b"1")]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        ("text", "text"),
        ([1, 2], [1, 2]),
        (ProducerRecord("t", b"1"), ProducerRecord("t", b"1", headers=[TRACEPARENT])),
        (ProducerRecord("t", b"1", headers={"a": b"2"}), ProducerRecord("t", b"1", headers=[("a", b"2"), TRACEPARENT])),
        ([ProducerRecord("t", b"1", headers=[OTHER])], [ProducerRecord("t", b"1", headers=[OTHER])]),
        ((ProducerRecord("t", b"1"), None), [ProducerRecord("t", b"1", headers=[TRACEPARENT]), None]),
    ],
)
def test_outputs_of_an_exactly_once_handler_get_its_context(result: Any, expected: Any) -> None:
    assert HEADERS.inject_into_outputs(result, CONTEXT) == expected
