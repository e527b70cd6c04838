"""The Prometheus exporter: a watcher, whose views are rendered once and served from memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from .collector import Scope
from .exposition import CONTENT_TYPE, render, render_own
from .http_server import HttpServer, Page
from .model import ClusterView, WatchStatus
from .steady_clock import steady_time
from .watcher import Watcher

_INDEX = b'<!doctype html><html lang="en"><title>headrace</title><a href="/metrics">metrics</a></html>\n'


class Exporter:
    """For one event loop; `async with` serves until its end. A scrape never waits for a broker: it gets the values of
    the latest complete pass, also while the cluster is down. `headrace_exporter_up` and `headrace_exporter_age_seconds`
    show how current they are."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        host: str,
        port: int,
        scope: Scope | None = None,
        *,
        interval: float = 15.0,
        timeout: float = 10.0,
    ) -> None:
        self._cached = b""
        scope = scope or Scope()
        # A relative path may well be the name of a group.
        scope = dataclasses.replace(scope, checkpoints=tuple(it.absolute() for it in scope.checkpoints))
        self._watcher = Watcher(settings, scope, interval=interval, timeout=timeout, on_view=self._render)
        pages = {
            "/metrics": self._metrics,
            "/healthz": lambda: Page(b"ok\n"),
            "/": lambda: Page(_INDEX, "text/html; charset=utf-8"),
        }
        self._server = HttpServer(host, port, pages)

    async def __aenter__(self) -> Self:
        """Raises OSError if the address cannot be used."""
        await self._server.__aenter__()
        await self._watcher.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._server.__aexit__(*exc_info)
        await self._watcher.__aexit__(*exc_info)

    @property
    def address(self) -> tuple[str, int]:
        return self._server.address

    async def wait(self, passes: int, timeout: float) -> WatchStatus:
        return await self._watcher.wait(passes, timeout)

    def _render(self, view: ClusterView) -> None:
        self._cached = render(view)

    def _metrics(self) -> Page:
        return Page(self._cached + render_own(self._watcher.status, steady_time()), CONTENT_TYPE)
