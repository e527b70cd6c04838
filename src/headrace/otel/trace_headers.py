"""Trace context in the headers of records: W3C's traceparent and tracestate, or what another propagator writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator
from opentelemetry.trace import Link, SpanContext, get_current_span

from ..types import ProducerRecord

Headers = Sequence[tuple[str, Any]]


class _HeaderGetter(Getter[Headers]):
    """Values that are not text are no trace context."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        found = []
        for name, value in carrier:
            if name.lower() == key.lower() and value is not None:
                try:
                    found.append(value if isinstance(value, str) else bytes(value).decode())
                except UnicodeDecodeError:
                    continue
        return found or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


class _HeaderSetter(Setter[list[tuple[str, Any]]]):
    def set(self, carrier: list[tuple[str, Any]], key: str, value: str) -> None:
        carrier.append((key, value.encode()))


_GETTER, _SETTER = _HeaderGetter(), _HeaderSetter()


class TraceHeaders:
    def __init__(self, propagator: TextMapPropagator) -> None:
        self._propagator = propagator
        self._span_fields = {name.lower() for name in set(propagator.fields) - W3CBaggagePropagator().fields}

    def extract(self, headers: Headers) -> Context:
        """The context that the producer of a record has written. Empty if there is none."""
        return self._propagator.extract(headers, Context(), _GETTER) if headers else Context()

    def inject(self, headers: Headers, context: Context) -> list[tuple[str, Any]]:
        """The headers with the context. Headers that have one already keep it: it says where the record was created. An
        invalid one is replaced, with all of its parts."""
        if links_to(self.extract(headers)):
            return list(headers)
        added: list[tuple[str, Any]] = []
        self._propagator.inject(added, context, _SETTER)
        replaced = self._span_fields if any(name.lower() in self._span_fields for name, _ in added) else set()
        kept = [each for each in headers if each[0].lower() not in replaced]
        present = {name.lower() for name, _ in kept}
        return [*kept, *(each for each in added if each[0].lower() not in present)]

    def inject_into_outputs(self, result: Any, context: Context) -> Any:
        """The outputs of a handler of an exactly-once run(). They are sent later, in another context."""
        if isinstance(result, ProducerRecord):
            return self._with_context(result, context)
        if isinstance(result, (list, tuple)) and any(isinstance(each, ProducerRecord) for each in result):
            return [self._with_context(it, context) if isinstance(it, ProducerRecord) else it for it in result]
        return result

    def _with_context(self, record: ProducerRecord, context: Context) -> ProducerRecord:
        headers: Any = record.headers or ()
        pairs: Iterable[Any] = headers.items() if hasattr(headers, "items") else headers
        return dataclasses.replace(record, headers=self.inject(list(pairs), context))


def links_to(context: Context) -> list[Link]:
    """A link to the span of the context, if it has one."""
    found: SpanContext = get_current_span(context).get_span_context()
    return [Link(found)] if found.is_valid else []
