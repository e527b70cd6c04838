"""headrace with OpenTelemetry switched on, as a program in production has it.

Spans are exported in batches and metrics every second, in the background, to exporters that drop them: what a collector
costs is not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXPORT_INTERVAL_MS = 1000


@contextmanager
def observed() -> Iterator[None]:
    """Observes the clients that are created inside of the block."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import (
        MetricExporter,
        MetricExportResult,
        MetricsData,
        PeriodicExportingMetricReader,
    )
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

    import headrace.otel

    class Drop(MetricExporter):
        def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **_: object) -> MetricExportResult:
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis: float = 0) -> bool:
            return True

        def shutdown(self, timeout_millis: float = 0, **_: object) -> None: ...

    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(SpanExporter()))
    meters = MeterProvider([PeriodicExportingMetricReader(Drop(), EXPORT_INTERVAL_MS)])
    headrace.otel.instrument(tracer_provider=tracers, meter_provider=meters)
    try:
        yield
    finally:
        headrace.otel.uninstrument()
        meters.shutdown()
        tracers.shutdown()
