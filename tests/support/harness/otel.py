"""OpenTelemetry with exporters in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import headrace.otel
from support.harness.waiting import wait_for

PROPAGATOR = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])


class Observed:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def spans(self, name: str, count: int = 0) -> list[ReadableSpan]:
        """The finished spans of this name, as soon as there are `count`; the oldest first."""

        def found() -> list[ReadableSpan]:
            spans = [span for span in self._exporter.get_finished_spans() if span.name == name]
            return sorted(spans, key=lambda span: span.start_time or 0)

        if count:
            wait_for(f"{count} spans {name}", lambda: len(found()) >= count)
        return found()

    def metrics(self) -> list[Any]:
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return [metric for scope in scopes for metric in scope.metrics]

    def metric(self, name: str) -> Any:
        (found,) = [metric for metric in self.metrics() if metric.name == name]
        return found

    def points(self, name: str) -> list[Any]:
        """The data points of a metric."""
        return [point for metric in self.metrics() if metric.name == name for point in metric.data.data_points]

    def end(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


@contextmanager
def observing(**options: Any) -> Iterator[Observed]:
    """Instruments the clients that are created inside of the block."""
    observed = Observed()
    headrace.otel.instrument(
        tracer_provider=observed.tracers, meter_provider=observed.meters, propagator=PROPAGATOR, **options
    )
    try:
        yield observed
    finally:
        headrace.otel.uninstrument()
        observed.end()
