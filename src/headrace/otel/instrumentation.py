"""Switches traces and metrics on and off, for all clients of the process."""

from __future__ import annotations

from opentelemetry import metrics as metrics_api
from opentelemetry import propagate, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import TracerProvider

from .._aio import telemetry
from .._version import __version__
from ..config.client import ClientConfig
from ..errors import StateError
from . import conventions as names
from .client_figures import ClientFigures
from .consumers import ConsumerReports
from .message_counts import MessageCounts
from .producers import ProducerReports
from .trace_headers import TraceHeaders


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    propagator: TextMapPropagator | None = None,
    traces: bool = True,
    metrics: bool = True,
    continue_trace: bool = False,
) -> None:
    """Reports traces and metrics of all clients that are created from now on.

    Without providers and a propagator, the global ones of OpenTelemetry are used. `traces=False` or `metrics=False`
    leave one of them out. With `continue_trace`, the span of a handler of run() is a child of the span in which its
    record was produced, in the same trace; otherwise it starts a trace of its own that is linked to it.

    Raises StateError if the process is instrumented already.
    """
    if telemetry.installed is not None:
        raise StateError("headrace is instrumented already: call headrace.otel.uninstrument() first")
    telemetry.installed = _Instrumentation(
        tracer_provider, meter_provider, propagator, traces=traces, metrics=metrics, continue_trace=continue_trace
    )


def uninstrument() -> None:
    """Clients that are created from now on report nothing. Those that exist keep reporting spans and durations until
    they are closed; counters and gauges end at once."""
    found, telemetry.installed = telemetry.installed, None
    if isinstance(found, _Instrumentation):
        found.end()


class _Instrumentation:
    """Implements `Telemetry`."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        propagator: TextMapPropagator | None,
        *,
        traces: bool,
        metrics: bool,
        continue_trace: bool,
    ) -> None:
        self._tracer = (
            trace.get_tracer("headrace", __version__, tracer_provider, names.SCHEMA_URL) if traces else None
        )  # fmt: skip
        self._headers = TraceHeaders(propagate.get_global_textmap() if propagator is None else propagator)
        self._continues = continue_trace
        self._consumed = self._sent = self._figures = None
        self._operation_duration = self._process_duration = None
        if not metrics:
            return
        meter = metrics_api.get_meter("headrace", __version__, meter_provider, names.SCHEMA_URL)
        self._consumed, self._sent = MessageCounts(), MessageCounts()
        self._consumed.register(meter, names.CONSUMED_MESSAGES, "Messages that poll() has returned.")
        self._sent.register(meter, names.SENT_MESSAGES, "Messages that were delivered to a broker, or have failed.")
        self._operation_duration = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "Duration of polls that returned messages, of commits, and of batches until they are delivered.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )
        self._process_duration = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of calls of run()'s handler.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )
        self._figures = ClientFigures(meter)

    def for_consumer(self, config: ClientConfig, group_id: str | None) -> ConsumerReports:
        return ConsumerReports(
            names.common_attributes(config, group_id),
            config.client_id,
            self._tracer,
            self._headers,
            self._consumed,
            self._operation_duration,
            self._process_duration,
            continue_trace=self._continues,
        )

    def for_producer(self, config: ClientConfig) -> ProducerReports:
        return ProducerReports(
            names.common_attributes(config),
            config.client_id,
            self._tracer,
            self._headers,
            self._sent,
            self._operation_duration,
        )

    def end(self) -> None:
        for part in (self._consumed, self._sent, self._figures):
            if part is not None:
                part.is_active = False
