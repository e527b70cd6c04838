"""Traces and metrics of this process's clients for OpenTelemetry (`pip install 'headrace[otel]'`).

    import headrace.otel

    headrace.otel.instrument()          # before clients are created

Names and attributes are those of the semantic conventions for messaging, version 1.44.0. See docs/observability.md.
"""

from __future__ import annotations

try:
    import opentelemetry.trace  # noqa: F401
except ImportError as error:
    raise ImportError("headrace.otel needs opentelemetry-api: pip install 'headrace[otel]'") from error

from .instrumentation import instrument, uninstrument

__all__ = ["instrument", "uninstrument"]
