"""Exporters in a thread, and what a scrape of them returns."""

from __future__ import annotations

import asyncio
import http.client
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.monitor.collector import Scope
from headrace.monitor.exporter import Exporter
from headrace.monitor.model import WatchStatus
from support.harness.metrics_text import check_format, series

_TIMEOUT = 60.0


class RunningExporter:
    def __init__(self, loop: asyncio.AbstractEventLoop, exporter: Exporter) -> None:
        self._loop = loop
        self._exporter = exporter
        self.address = exporter.address

    def scrape(self) -> str:
        """The text of a scrape, checked."""
        connection = http.client.HTTPConnection(*self.address, timeout=_TIMEOUT)
        try:
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        finally:
            connection.close()
        check_format(text)
        return text

    def values(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """The series with these labels, by their other labels."""
        return {
            tuple(value for label, value in it.labels.items() if label not in labels): it.value
            for it in series(self.scrape(), name)
            if labels.items() <= it.labels.items()
        }

    def value(self, name: str, **labels: str) -> float | None:
        return next(iter(self.values(name, **labels).values()), None)

    def wait_pass(self, count: int = 1) -> WatchStatus:
        """Waits for a pass that began after this call, or for more of them."""
        status = self._status()
        # A pass may be under way: it does not count.
        return self._wait(status.passes + status.failures + count)

    def _status(self) -> WatchStatus:
        return self._wait(-1)

    def _wait(self, passes: int) -> WatchStatus:
        work = self._exporter.wait(passes, _TIMEOUT)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * _TIMEOUT)


@contextmanager
def exporting(
    settings: Mapping[str, Any],
    groups: str | None = None,
    topics: str | None = None,
    *,
    interval: float = 0.2,
    timeout: float = 10.0,
    port: int = 0,
    **scope: Any,
) -> Iterator[RunningExporter]:
    patterns = [None if it is None else re.compile(it) for it in (groups, topics)]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(_TIMEOUT)

    async def make() -> Exporter:
        exporter = Exporter(settings, "127.0.0.1", port, Scope(*patterns, **scope), interval=interval, timeout=timeout)
        return await exporter.__aenter__()

    try:
        exporter = run(make())
        try:
            running = RunningExporter(loop, exporter)
            running.wait_pass(0)
            yield running
        finally:
            run(exporter.__aexit__())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_TIMEOUT)
        loop.close()
