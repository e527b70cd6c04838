"""The figures of metrics() as observable instruments: `headrace.consumer.lag` and others, of all open clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from .._aio.clients import open_clients
from .._measures import MEASURES, Measure
from ..errors import HeadraceError
from . import conventions as names

_UNITS = {"bytes": "By", "seconds": "s", "records": "{record}", "": "1"}
_FRESH = 0.5  # seconds: one export asks for every instrument
_LABELS = {"topic": names.DESTINATION, "partition": names.PARTITION}


class ClientFigures:
    def __init__(self, meter: Meter) -> None:
        self.is_active = True
        self._read_at = -1.0
        self._found: list[tuple[str, dict[str, Any]]] = []
        for role, measures in MEASURES.items():
            for measure in measures:
                self._register(meter, role, measure)

    def _register(self, meter: Meter, role: str, measure: Measure) -> None:
        create = meter.create_observable_counter if measure.kind == "counter" else meter.create_observable_gauge
        name = f"headrace.{role.replace(' ', '_')}.{measure.name}"
        create(name, [self._observer(role, measure)], _UNITS[measure.unit], measure.meaning)

    def _observer(self, role: str, measure: Measure) -> Callable[[CallbackOptions], Iterable[Observation]]:
        labels = [_LABELS.get(label, f"headrace.{label}") for label in measure.labels]

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for name, stats in self._stats():
                if stats["role"] == role:
                    common = {names.SYSTEM: "kafka", names.CLIENT_ID: stats["client_id"], "headrace.client": name}
                    if stats.get("group_id") is not None:
                        common[names.GROUP] = stats["group_id"]
                    for values, figure in measure.read(stats):
                        yield Observation(figure, common | dict(zip(labels, values, strict=True)))

        return observe

    def _stats(self) -> list[tuple[str, dict[str, Any]]]:
        if not self.is_active:
            return []
        if time.monotonic() > self._read_at + _FRESH:
            found = []  # complete before another reader's thread can see it
            for client in open_clients():
                try:
                    found.append((client.name, client.parts.metrics()))
                except HeadraceError:  # it was closed meanwhile
                    continue
            self._found = found
            self._read_at = time.monotonic()
            return found
        return self._found
