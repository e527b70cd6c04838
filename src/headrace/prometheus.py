"""Metrics of this process's clients for prometheus_client (`pip install 'headrace[prometheus]'`).

```python
import headrace.prometheus

headrace.prometheus.register()                   # all clients of the process, in prometheus_client's REGISTRY
headrace.prometheus.register(consumer, producer) # only these
```
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ._aio.clients import OpenClient, is_open, open_clients
from ._aio.consumer import AsyncConsumer
from ._aio.produce.producer import AsyncProducer
from ._aio.share.consumer import AsyncShareConsumer
from ._arguments import short_repr
from ._measures import MEASURES, Measure
from .errors import HeadraceError
from .sync.consumer import Consumer
from .sync.producer import Producer
from .sync.share_consumer import ShareConsumer

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("headrace.prometheus needs prometheus_client: pip install 'headrace[prometheus]'") from error

if TYPE_CHECKING:
    AnyClient = Consumer | AsyncConsumer | ShareConsumer | AsyncShareConsumer | Producer | AsyncProducer

__all__ = ["ClientCollector", "register"]

_KINDS = (Consumer, AsyncConsumer, ShareConsumer, AsyncShareConsumer, Producer, AsyncProducer)
_LABELS = ("client", "client_id", "group")


def register(*clients: AnyClient, registry: CollectorRegistry = REGISTRY) -> ClientCollector:
    """Adds a collector of these clients to a registry; without clients, of all clients that the process has when it is
    scraped. `registry.unregister(…)` of the returned collector removes it."""
    collector = ClientCollector(*clients)
    registry.register(collector)
    return collector


class ClientCollector(Collector):
    """Collects the metrics of these clients, or of all open clients of this process if none are given.

    It refers to clients weakly. The metrics of a client vanish when it is closed. Every scrape reads the current
    values, on the thread of the scrape; nothing is collected in between.
    """

    def __init__(self, *clients: AnyClient) -> None:
        for client in clients:
            if not isinstance(client, _KINDS):
                raise TypeError(f"a client must be a consumer, share consumer or producer, not {short_repr(client)}")
        self._chosen = [weakref.ref(client._parts) for client in clients]
        self._has_all = not clients

    def describe(self) -> Iterable[Metric]:
        """The names, for the registry, which refuses duplicates."""
        return [_family(role, measure) for role, measures in MEASURES.items() for measure in measures]

    def collect(self) -> Iterator[Metric]:
        """The current metrics. The registry calls it for each scrape."""
        found = [(client, stats) for client in self._clients() if (stats := _stats_of(client)) is not None]
        for role, measures in MEASURES.items():
            of_role = [(client, stats) for client, stats in found if stats["role"] == role]
            for measure in measures if of_role else ():
                family = _family(role, measure)
                for client, stats in of_role:
                    labels = (client.name, stats["client_id"], stats.get("group_id") or "")
                    for values, figure in measure.read(stats):
                        family.add_metric([*labels, *values], figure)
                if family.samples:
                    yield family

    def _clients(self) -> Sequence[OpenClient]:
        if self._has_all:
            return open_clients()
        parts = [reference() for reference in self._chosen]
        return [OpenClient(each.name, each) for each in parts if each is not None and is_open(each)]


def _stats_of(client: OpenClient) -> dict[str, Any] | None:
    try:
        return client.parts.metrics()
    except HeadraceError:  # it was closed meanwhile
        return None


def _family(role: str, measure: Measure) -> CounterMetricFamily | GaugeMetricFamily:
    unit = f"_{measure.unit}" if measure.unit else ""
    name = f"headrace_{role.replace(' ', '_')}_{measure.name}{unit}"
    kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    return kind(name, measure.meaning, labels=[*_LABELS, *measure.labels])
