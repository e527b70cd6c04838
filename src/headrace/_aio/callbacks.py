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
import weakref
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


class UserFunctions:
    """They may refer to the client."""

    def __init__(
        self, on_stats: Callable[[dict[str, Any]], Any] | None, on_event: Callable[[Event], Any] | None
    ) -> None:
        self.on_stats = on_stats
        self.on_event = on_event


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
        self._has_stats = on_stats is not None and interval > 0
        self._has_events = on_event is not None
        self._interval = interval
        self._own: UserFunctions | None = UserFunctions(on_stats, on_event)
        self._functions = weakref.ref(self._own)
        self._queue: queue.SimpleQueue[Event | None] | None = (
            None  # its put() neither blocks nor fails, even in signals
        )
        self._calling = threading.Lock()
        self._has_dropped = False
        self._next_log = -math.inf  # belongs to the thread that has `_calling`

    def hand_over(self) -> UserFunctions:
        """To the client, which holds the functions from now on: this is held by threads, so the client would otherwise
        never be collected if a function refers to it."""
        own, self._own = self._own, None
        assert own is not None
        return own

    def start(self) -> None:
        if self._queue is None and (self._has_events or self._has_stats):
            found: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
            self._queue = found
            threading.Thread(target=self._serve, args=(found,), name="headrace-callbacks", daemon=True).start()

    def stop(self) -> None:
        found, self._queue = self._queue, None
        if found is not None:
            self._own = self._own or self._functions()  # for what is still in the queue
            found.put(None)

    def report(self, event: Event) -> None:
        """Logs the event, and passes it to on_event."""
        log_event(event)
        found = self._queue
        if found is None or not self._has_events:
            return
        if found.qsize() < MOST:
            self._has_dropped = False
            found.put(event)
        elif not self._has_dropped:
            self._has_dropped = True
            log.warning("on_event has not returned for %d events: further events are dropped until it does", MOST)

    def _serve(self, events: queue.SimpleQueue[Event | None]) -> None:
        due = math.inf if not self._has_stats else time.monotonic() + self._interval
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
            self._call_with_event(event)

    def _call_with_event(self, event: Event) -> None:
        functions = self._functions()
        if functions is not None and functions.on_event is not None:
            self._call("on_event", functions.on_event, event)

    def _call_with_stats(self) -> bool:
        """False if the client is closed or was dropped."""
        functions = self._functions()
        if functions is None or functions.on_stats is None:
            return False
        try:
            stats = self._metrics()
        except HeadraceError:
            return False
        except Exception as error:  # noqa: BLE001 - without its thread, the client would report no more events either
            with self._calling:
                self._log("metrics()", error)
            return True
        self._call("on_stats", functions.on_stats, stats)
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
