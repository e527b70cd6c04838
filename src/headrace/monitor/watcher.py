"""Repeats the pass of a collector, also after an outage of the cluster.

    pass succeeds      the view is replaced, the history takes it
    pass fails         the view stays, with the error and since when; the next pass is tried after the same interval

Everything belongs to the event loop that entered the watcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from .._protocol.codes import printable
from ..errors import AuthenticationError, HeadraceError
from .collector import Collector, Scope
from .history import History
from .model import ClusterView, WatchStatus

log = logging.getLogger(__name__)


class Watcher:
    """`async with` starts the passes, one every `interval` seconds, and ends them. `on_view` is called with each view,
    before `status` has it; it must be fast."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        scope: Scope | None = None,
        *,
        interval: float = 15.0,
        timeout: float = 10.0,
        history: History | None = None,
        on_view: Callable[[ClusterView], None] | None = None,
    ) -> None:
        self.history = history or History()
        self._keeps_history = history is not None or on_view is None
        self._collector = Collector(settings, scope, timeout=timeout)
        self._interval = interval
        self._on_view = on_view
        self._status = WatchStatus(None)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="passes")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})  # however it ended
        await self._collector.close()

    @property
    def status(self) -> WatchStatus:
        return self._status

    async def wait(self, passes: int, timeout: float) -> WatchStatus:
        """The status when more than `passes` passes have ended, also those that failed; or after `timeout` seconds the
        status as it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._status.passes + self._status.failures <= passes:
                    await self._changed.wait()
        return self._status

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._pass()
            # A pass that takes longer than the interval delays the next one: passes never overlap, nor pile up.
            due = max(due + self._interval, loop.time() + min(1.0, self._interval / 10))
            await asyncio.sleep(due - loop.time())

    async def _pass(self) -> None:
        before = self._status
        try:
            view = await self._collector.collect()
            if self._keeps_history:
                self.history.add(view)
            if self._on_view is not None:
                self._on_view(view)
        except HeadraceError as error:
            self._failed(before, str(error), isinstance(error, AuthenticationError) and error.is_final)
        except Exception as error:
            # A defect that one pass finds must not end the watch.
            log.exception("a pass over the cluster failed")
            self._failed(before, f"{type(error).__name__}: {error}")
        else:
            if before.error is not None:
                log.info("the cluster answers again")
            self._status = WatchStatus(view, passes=before.passes + 1, failures=before.failures)
        self._changed.set()
        self._changed = asyncio.Event()

    def _failed(self, before: WatchStatus, error: str, is_final: bool = False) -> None:
        if before.error is None:
            log.warning("cannot read the cluster: %s", printable(error))
        since = time.time() if before.failing_since is None else before.failing_since
        failures = before.failures + 1
        self._status = WatchStatus(before.view, printable(error), since, is_final, before.passes, failures)
