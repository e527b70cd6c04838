"""The thread that calls `on_event` and `on_stats`, the user's functions.

Events report that a program is stuck, so its thread and its event loop cannot receive them. And a function that blocks
must not delay heartbeats. So a client with such a function has a thread for it, from the start of its tasks until
`close()`: `unsubscribe()` ends the tasks, but handlers of run() may still be stuck.

- Calls come one after the other, also those of a client that was stopped and started again.
- What a function or `metrics()` raises is logged, at most once a minute, and the next call comes as usual.
- While a function blocks, events wait, up to MOST of them, and statistics are skipped.
- `stop` does not wait: events that were reported before are still passed on.

`report` may be called from any thread. It never blocks.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import HeadraceError
from ..events import Event

log = logging.getLogger(__name__)
event_log = logging.getLogger("headrace.events")

MOST = 1000  # events that wait
_EVERY = 60.0  # seconds between two log entries about a function that raises


def log_event(event: Event) -> None:
    event_log.log(logging.WARNING if event.is_warning else logging.INFO, "%s", event)


def call_to_the_end(run_callbacks: Callable[[], None]) -> None:
    """For close(): `run_callbacks` passes results to callbacks of the user, ends at one that raises, and goes on behind
    it when it is called again. No later call of the client does that, so this one passes all, and raises the first
    error."""
    failure: Exception | None = None
    while True:
        try:
            run_callbacks()
        except Exception as error:  # noqa: BLE001 - the user's
            failure = failure or error
        else:
            break
    if failure is not None:
        raise failure


class Callbacks:
    """Of one client. `metrics` returns what on_stats gets, and raises HeadraceError when the client is closed."""

    def __init__(
        self,
        metrics: Callable[[], dict[str, Any]],
        on_stats: Callable[[dict[str, Any]], Any] | None = None,
        interval: float = 0.0,
        on_event: Callable[[Event], Any] | None = None,
    ) -> None:
        self._metrics = metrics
        self._on_stats = on_stats if interval > 0 else None
        self._interval = interval
        self._on_event = on_event
        self._queue: queue.SimpleQueue[Event | None] | None = (
            None  # its put() neither blocks nor fails, even in signals
        )
        self._calling = threading.Lock()
        self._has_dropped = False
        self._next_log = -math.inf  # belongs to the thread that has `_calling`

    def start(self) -> None:
        if self._queue is None and (self._on_event is not None or self._on_stats is not None):
            found: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
            self._queue = found
            threading.Thread(target=self._serve, args=(found,), name="headrace-callbacks", daemon=True).start()

    def stop(self) -> None:
        found, self._queue = self._queue, None
        if found is not None:
            found.put(None)

    def report(self, event: Event) -> None:
        """Logs the event, and passes it to on_event."""
        log_event(event)
        found = self._queue
        if found is None or self._on_event is None:
            return
        if found.qsize() < MOST:
            self._has_dropped = False
            found.put(event)
        elif not self._has_dropped:
            self._has_dropped = True
            log.warning("on_event has not returned for %d events: further events are dropped until it does", MOST)

    def _serve(self, events: queue.SimpleQueue[Event | None]) -> None:
        due = math.inf if self._on_stats is None else time.monotonic() + self._interval
        while True:
            try:
                event = events.get(timeout=None if due == math.inf else max(0.0, due - time.monotonic()))
            except queue.Empty:
                if not self._call_with_stats():
                    return
                due = max(due + self._interval, time.monotonic())
                continue
            if event is None:
                return
            assert self._on_event is not None
            self._call("on_event", self._on_event, event)

    def _call_with_stats(self) -> bool:
        """False if the client is closed."""
        assert self._on_stats is not None
        try:
            stats = self._metrics()
        except HeadraceError:
            return False
        except Exception as error:  # noqa: BLE001 - without its thread, the client would report no more events either
            with self._calling:
                self._log("metrics()", error)
            return True
        self._call("on_stats", self._on_stats, stats)
        return True

    def _call(self, name: str, function: Callable[[Any], Any], argument: Any) -> None:
        with self._calling:
            try:
                function(argument)
            except BaseException as error:  # noqa: BLE001 - the user's; SystemExit would only end this thread
                self._log(name, error)

    def _log(self, name: str, error: BaseException) -> None:
        """With `_calling` held."""
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + _EVERY
            log.warning("%s raised %r: it will be called again", name, error, exc_info=error)
