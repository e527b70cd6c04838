"""ShareConsumer: AsyncShareConsumer for threads. No logic of its own: it calls, and waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..acknowledge import AcknowledgeType
from ..aio.living import CLOSE_TIMEOUT, THREAD_END
from ..aio.run_settings import Handler
from ..aio.share_consumer import AsyncShareConsumer
from ..aio.share_life import AcknowledgementCallback, Results
from ..aio.share_run import ShareProgress, ShareRun, ShareRunSettings
from ..arguments import optional_seconds_of, seconds_of
from ..machines.share_stock import Handover
from ..records import Record, Records
from .running import check_plain, run_threads
from .threaded import ITERATION_POLL, Threaded, documented_as


class ShareConsumer(Threaded[AsyncShareConsumer]):
    """Works on records together with the other members of a share group (KIP-932), as from a queue.

    Partitions are shared: a record is locked for the member that gets it, for as long as `acquisition_lock_timeout()`
    says, and is delivered to another one unless it is acknowledged by then. Settings are Kafka's, dotted in a mapping
    or with underscores as keywords. Times are in seconds. Only `wakeup()` and `acknowledge()` may be called while
    another thread is inside of the consumer.

    A timeout of 0 or less does not wait, and `math.inf` has no limit; None, where it is the default, is
    default.api.timeout.ms. Impossible arguments raise TypeError or ValueError before anything is done.

        with ShareConsumer(bootstrap_servers="localhost:9092", group_id="mails") as consumer:
            consumer.subscribe(["mails"])
            records = consumer.poll(1.0)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        super().__init__(AsyncShareConsumer(config, **settings))

    def subscribe(self, topics: Iterable[str]) -> None:
        with self._alone():
            self._aio.subscribe(topics)

    def subscription(self) -> set[str]:
        return self._aio.subscription()

    def unsubscribe(self) -> None:
        aio = self._aio
        with self._alone():
            if self._portal.is_open:
                self._portal.run(aio._rest)
                self._portal.close(THREAD_END)
            aio._forget()
            aio._run_callbacks()

    def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> Records:
        return self._poll(timeout, max_records)

    def _poll(self, timeout: float, max_records: int | None = None, *, iterates: bool = False) -> Records:
        aio, handover = self._aio, Handover()
        intake, gate = aio._intake, aio._gate
        try:
            with self._alone():
                timeout = seconds_of(timeout)
                limit = aio._begin_poll(max_records, handover)
                aio._start()
                deadline = time.monotonic() + timeout
                while True:
                    intake.doorbell.clear()
                    gate.consume_wakeup()
                    gate.check()
                    records = intake.look(limit, deadline, handover)
                    if records is not None:
                        break
                    aio._run_callbacks()
                    intake.doorbell.wait(max(0.0, deadline - time.monotonic()))
                intake.poll_ends()
            # From here to the caller nothing can interrupt it: see share_stock.py.
            if iterates:
                aio._iterated, aio._seen = records, 0
            intake.records_returned = handover.total or intake.records_returned
            handover.lots, handover.is_open = (), False
            return records
        except BaseException:
            handover.is_open, handover.is_broken = False, True
            aio._break_off(handover)
            raise

    def __iter__(self) -> Iterator[Record]:
        while not self._aio._gate.is_closed:
            self._poll(ITERATION_POLL, iterates=True)
            yield from self._aio._one_by_one()

    def acknowledge(self, work: Record | Records, kind: AcknowledgeType | str = AcknowledgeType.ACCEPT) -> None:
        self._aio.acknowledge(work, kind)

    def commit(self, *, timeout: float | None = None) -> Results:
        aio = self._aio
        with self._alone():
            timeout = optional_seconds_of(timeout)
            aio._settle()
            aio._run_callbacks()
            unsettled = self._portal.run(lambda: aio._commit(timeout)) if self._portal.is_open else set()
            return aio._results(unsettled)

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
        check_plain(self, handler)
        with self._alone():
            self._aio._settle()
            began = time.monotonic()
            try:
                return run_threads(self, lambda launch: ShareRun(self._aio, handler, settings, launch))
            except BaseException:
                self._aio._torn_since = began
                self._aio._settle()
                raise

    def acquisition_lock_timeout(self) -> float | None:
        return self._aio.acquisition_lock_timeout()

    def metrics(self) -> dict[str, Any]:
        return self._aio.metrics()

    def close(self, *, timeout: float = CLOSE_TIMEOUT) -> None:
        timeout = seconds_of(timeout)
        if self._aio._gate.is_forked:
            self._aio._shut()
            return
        deadline = time.monotonic() + timeout
        with self._inside:
            try:
                if self._portal.is_open:
                    self._portal.run(lambda: self._aio._close(deadline))
            finally:
                self._shut()
            self._aio._run_callbacks()


documented_as(AsyncShareConsumer, ShareConsumer)
