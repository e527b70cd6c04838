"""ShareConsumer: the share consumer for programs without asyncio. It has the same parts as AsyncShareConsumer."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .._aio.lifecycle import CLOSE_TIMEOUT, THREAD_END
from .._aio.poll_signal import ITERATION_POLL
from .._aio.run.options import Handler
from .._aio.run.share_run import ShareProgress, ShareRunSettings
from .._aio.share.consumer import AsyncShareConsumer, parts_of
from .._aio.share.parts import AcknowledgementCallback
from .._aio.share.results import Results
from .._arguments import optional_seconds_of, seconds_of
from .._machines.share.buffer import ShareHandover
from ..errors import WakeupError
from ..records import Record, Records
from ..types import AcknowledgeType
from .run import check_plain, run_threads
from .threaded import Threaded, documented_as


class ShareConsumer(Threaded):
    """Processes records together with the other members of a share group (KIP-932), as from a queue.

    Members share partitions: a record is locked for the member that receives it, for `acquisition_lock_timeout()`
    seconds, and is delivered to another one unless it is acknowledged by then. Settings are Kafka's, dotted in a
    mapping or with underscores as keywords. Times are in seconds. Only `wakeup()` and `acknowledge()` may be called
    while another thread uses the consumer.

    A timeout of 0 or less does not wait, and `math.inf` has no limit; None, where it is the default, is
    default.api.timeout.ms. Invalid arguments raise TypeError or ValueError before anything is done.

        with ShareConsumer(bootstrap_servers="localhost:9092", group_id="mails") as consumer:
            consumer.subscribe(["mails"])
            records = consumer.poll(1.0)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._aio = AsyncShareConsumer(config, **settings)
        self._parts = parts_of(self._aio)
        super().__init__(self._parts.lifecycle)

    def subscribe(self, topics: Iterable[str]) -> None:
        with self._alone():
            self._aio.subscribe(topics)

    def subscription(self) -> set[str]:
        return self._aio.subscription()

    def unsubscribe(self) -> None:
        parts = self._parts
        self._guard.check_end("unsubscribe()")
        with self._alone():
            if self._portal.is_open:
                self._portal.run(parts.stop_background)
                self._portal.close(THREAD_END)
            parts.forget()
            parts.run_callbacks()

    def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> Records:
        return self._poll(timeout, max_records)

    def _poll(self, timeout: float, max_records: int | None = None, *, iterates: bool = False) -> Records:
        parts, buffer, handover = self._parts, self._parts.buffer, ShareHandover()
        try:
            with self._alone():
                limit, deadline = parts.begin_poll(timeout, max_records, handover)
                while isinstance(records := parts.look(limit, deadline, handover), float):
                    buffer.poll_signal.wait(records)
            # From here to the caller nothing can interrupt it: see _machines/share/buffer.py.
            if iterates:
                parts.iterated, parts.seen = records, 0
            buffer.records_returned = handover.total or buffer.records_returned
            handover.batches, handover.is_open = (), False
            return records
        except BaseException as error:
            handover.is_open, handover.is_broken = False, True
            parts.break_off(handover)
            if isinstance(error, WakeupError):  # perhaps of a call in the callback
                self._guard.forget_wakeup()
            raise

    def __iter__(self) -> Iterator[Record]:
        while not self._guard.is_closed:
            self._poll(ITERATION_POLL, iterates=True)
            yield from self._parts.one_by_one()

    def acknowledge(self, work: Record | Records, kind: AcknowledgeType | str = AcknowledgeType.ACCEPT) -> None:
        self._aio.acknowledge(work, kind)

    def commit(self, *, timeout: float | None = None) -> Results:
        parts = self._parts
        self._guard.check_change("commit()")
        is_users = not self._guard.is_in_run
        with self._alone():
            timeout = optional_seconds_of(timeout)
            parts.put_back_unseen()
            parts.run_callbacks()
            unsettled = self._portal.run(lambda: parts.commit(timeout)) if self._portal.is_open else set()
            results, returning = parts.results(unsettled)
        returning.is_returned = is_users  # nothing may come between this and the return
        return results

    def commit_async(self) -> None:
        with self._alone():
            self._aio.commit_async()

    def set_acknowledgement_commit_callback(self, callback: AcknowledgementCallback | None) -> None:
        with self._alone():
            self._aio.set_acknowledgement_commit_callback(callback)

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 16,
        max_in_flight: int | None = None,
        retry_backoff: float = 0.1,
        retry_backoff_max: float = 10.0,
        timeout: float | None = None,
        drain: float = 30.0,
        on_progress: Callable[[ShareProgress], Any] | None = None,
        progress_interval: float = 5.0,
    ) -> ShareProgress:
        settings = ShareRunSettings(
            concurrency=concurrency,
            max_in_flight=max_in_flight,
            retry_backoff=retry_backoff,
            retry_backoff_max=retry_backoff_max,
            timeout=timeout,
            drain=drain,
            on_progress=on_progress,
            progress_interval=progress_interval,
        )
        check_plain("ShareConsumer", handler)
        with self._alone():
            self._parts.check_free("run()")
            self._parts.put_back_unseen()
            began = time.monotonic()
            try:
                with self._guard.running():
                    loop_with = functools.partial(self._parts.new_run, handler, settings)
                    return run_threads("ShareConsumer", self, loop_with)
            except BaseException:
                self._parts.broken_run_since = began
                self._parts.put_back_unseen()
                raise

    def acquisition_lock_timeout(self) -> float | None:
        return self._aio.acquisition_lock_timeout()

    def metrics(self) -> dict[str, Any]:
        return self._aio.metrics()

    def close(self, *, timeout: float = CLOSE_TIMEOUT) -> None:
        timeout = seconds_of(timeout)
        if self._guard.is_forked:
            self._lifecycle.shut()
            return
        self._guard.check_end("close()")
        deadline = time.monotonic() + timeout
        with self._inside:
            try:
                if self._portal.is_open:
                    self._portal.run(lambda: self._lifecycle.close(lambda: self._parts.end_tasks(deadline)))
            finally:
                self._shut()
            self._parts.run_last_callbacks()

    def _on_error(self) -> None:
        """Nothing to do: close() accepts no record that the user has not acknowledged."""


documented_as(AsyncShareConsumer, ShareConsumer)
