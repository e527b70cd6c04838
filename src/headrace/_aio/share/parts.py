"""`ShareParts`: what a share consumer consists of, and the internal interface to it.

`AsyncShareConsumer` and `ShareConsumer` are facades over the same parts, and the Spark source uses some of them
directly. Users do not: everything here may change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ..._arguments import limit_of, seconds_of, short_repr, whole_number_of
from ..._machines.counted_warnings import CountedWarnings
from ..._machines.share.buffer import ShareHandover
from ...config.share import ShareConsumerConfig
from ...errors import ConcurrentUseError, HeadraceError, RequestTimeoutError, StateError, UnsupportedVersionError
from ...records import Batch, Record, Records
from ...types import AcknowledgeType, TopicPartition
from .. import telemetry
from ..callbacks import Callbacks, call_to_the_end
from ..clients import add
from ..lifecycle import CLOSE_TIMEOUT, Held, Lifecycle, held
from ..run.options import Handler
from ..run.share_run import ShareRun, ShareRunParts, ShareRunSettings
from ..run.traced_share_run import TracedShareRun
from .buffer import ShareFetchBuffer
from .results import Results, UnreturnedResults
from .runtime import ShareRuntime

log = logging.getLogger(__name__)

AcknowledgementCallback = Callable[[dict[TopicPartition, list[range]], HeadraceError | None], Any]


class ShareParts:
    """No part refers to a consumer: see `Lifecycle`."""

    def __init__(self, config: ShareConsumerConfig) -> None:
        self.config = config
        self.buffer = buffer = ShareFetchBuffer(config)
        interval = config.statistics_interval_ms / 1000
        self.callbacks = callbacks = Callbacks(self.metrics, config.on_stats, interval, config.on_event)
        config.forget_functions()
        buffer.report = callbacks.report
        self.lifecycle = Lifecycle(buffer.poll_signal, lambda: ShareRuntime(config, buffer), callbacks=callbacks)
        self.lifecycle.end_dropped = self.stop_background
        self.guard = self.lifecycle.guard
        self.callback: weakref.ref[Held[AcknowledgementCallback]] | None = None
        self._unreturned = UnreturnedResults()
        self._failures = CountedWarnings()
        self.is_leaving = False  # unsubscribe() is under way: a poll of another task must not start everything again
        self._handover: ShareHandover | None = None  # of the poll that is under way, or was the last
        self.guard.is_polling = lambda: self.is_polling
        self.iterated = Records.EMPTY  # what an iteration goes over ...
        self.seen = 0  # ... how many of it were handed out ...
        self._unseen: ShareHandover | None = None  # ... and those that were not, on their way back
        self.broken_run_since: float | None = None  # when a run() began that did not end in order
        self.telemetry: telemetry.ConsumerTelemetry | None = None
        if telemetry.installed is not None:
            self.telemetry = telemetry.installed.for_consumer(config, config.group_id)
        self._poll_began, self._poll_waited = 0.0, False
        self.name = add(self, "share-consumer")

    # -- polls ---------------------------------------------------------------------------------------------------

    @property
    def is_polling(self) -> bool:
        return self._handover is not None and self._handover.is_open

    def check_free(self, call: str) -> None:
        """Raises if the caller cannot poll, or start run(), where and when it is."""
        self.guard.check_reading(call)
        if self.is_polling:
            raise ConcurrentUseError(
                "poll() is under way already: in another task, or interrupted by this signal handler"
            )

    def begin_poll(self, timeout: float, max_records: int | None, handover: ShareHandover) -> tuple[int, float]:
        """What a poll does before it looks for records. Returns its limit and its deadline."""
        timeout = seconds_of(timeout)
        self.check_free("poll()")
        limit = self.config.max_poll_records if max_records is None else limit_of(max_records, has_none=False)
        if not self.buffer.member.topics or self.is_leaving:
            raise StateError("nothing is subscribed: call subscribe() before poll()")
        self.put_back_unseen()
        self._handover = handover
        self.run_callbacks()
        self.buffer.poll_begins()
        self.lifecycle.start()
        self._poll_began, self._poll_waited = time.monotonic(), False
        return limit, self._poll_began + timeout

    def look(self, limit: int, deadline: float, handover: ShareHandover) -> Records | float:
        """The records of a poll, which ends it; or how many seconds to wait for the poll signal before the next look.
        Both consumers call it until there are records, and differ only in how they wait."""
        buffer = self.buffer
        buffer.poll_signal.clear()
        self.guard.consume_wakeup()
        self.guard.check()
        try:
            records = buffer.look(limit, deadline, handover)
        except Exception as error:
            if self.telemetry is not None:
                self.telemetry.poll_failed(error, time.monotonic() - self._poll_began)
            raise
        if records is not None:
            buffer.poll_ends()
            if self.telemetry is not None and records:
                self.telemetry.polled(records, time.monotonic() - self._poll_began if self._poll_waited else None)
            return records
        self._poll_waited = True
        self.run_callbacks()
        now = time.monotonic()
        # Nothing sets the poll signal when an error may be raised again.
        return max(0.0, min(deadline, buffer.pace.next_due(now)) - now)

    def break_off(self, handover: ShareHandover) -> None:
        """A poll raises: what it took, if anything, was not seen by anybody."""
        if handover is self._handover:
            self.buffer.put_back(handover)
            self.buffer.poll_ends()
            handover.is_broken = False

    def put_back_unseen(self) -> None:
        """What nobody has seen comes first in the next poll, and is not accepted by it: what a poll had taken that was
        interrupted, and what an iteration has not handed out. What run() left behind is released."""
        last = self._handover
        if last is not None and last.is_open and last.batches:
            raise ConcurrentUseError("another thread is returning from poll()")
        if last is not None and last.is_broken:
            self.break_off(last)
        if self.seen < len(self.iterated):
            rest = self.iterated[self.seen :]
            unseen, seen_in_all = self.buffer.handed_over(rest), self.buffer.records_returned - len(rest)
            self._unseen, self.iterated, self.seen = unseen, Records.EMPTY, 0
            self.buffer.records_returned = seen_in_all
        if self.broken_run_since is not None:
            self.buffer.release_since(self.broken_run_since)
            self.broken_run_since = None
        if self._unseen is not None:
            self.buffer.put_back(self._unseen)
        self._unseen, self.iterated, self.seen = None, Records.EMPTY, 0

    def one_by_one(self) -> Iterator[Record]:
        """The records of an iteration's poll, until a call puts the rest back: then the next poll returns those."""
        records = self.iterated
        for seen, record in enumerate(records, 1):
            if self.iterated is not records:
                return
            self.seen = seen
            yield record

    # -- acknowledgements ------------------------------------------------------------------------------------------

    def acknowledge(self, work: Record | Records, kind: AcknowledgeType | str) -> None:
        """From any thread. `AsyncShareConsumer` documents it."""
        self.guard.check()
        if not self.buffer.planner.settings.is_explicit:
            raise StateError(
                "acknowledge() needs share.acknowledgement.mode=explicit: in implicit mode, polls acknowledge"
            )
        chosen = _kind_of(kind)
        if not isinstance(work, (Record, Records)):
            raise TypeError(f"acknowledge() takes a Record, or Records, not {short_repr(work)}")
        if chosen is AcknowledgeType.RENEW and not self.buffer.can_renew(work):
            raise UnsupportedVersionError("RENEW needs ShareAcknowledge version 2 (Apache Kafka 4.2 or newer)")
        self.buffer.acknowledge(work, chosen)

    def run_callbacks(self) -> None:
        """On the user's thread. If a callback raises, the next call passes the remaining results."""
        buffer = self.buffer
        self._log_failures()
        while (outcome := buffer.next_outcome()) is not None:
            self._unreturned.add(outcome.tp, outcome.error)
            number = sum(map(len, outcome.ranges))
            accepted, refused = (number, 0) if outcome.error is None else (0, number)
            if refused:
                self._failures.add(number, f"{outcome.tp}: {outcome.error}")
                self._log_failures()
            offsets = {outcome.tp: list(outcome.ranges)}
            # From here to the call nothing can interrupt it: each result is passed once.
            buffer.acknowledged += accepted
            buffer.refused += refused
            buffer.news = buffer.news[1:]
            if (callback := held(self.callback)) is not None:
                callback(offsets, outcome.error)

    def run_last_callbacks(self) -> None:
        """For close()."""
        try:
            call_to_the_end(self.run_callbacks)
        finally:
            self._log_failures(is_last=True)

    def _log_failures(self, *, is_last: bool = False) -> None:
        """Warns at once, and then once a minute: locks that are too short fail with every poll, for as long as they
        are. Polls come often enough to need no timer."""
        if self._failures.next_due is not None:
            found = self._failures.due(time.monotonic(), is_last=is_last)
            if found is not None:
                log.warning("%d records were not acknowledged. Last error: %s", *found)

    def results(self, unsettled: set[TopicPartition]) -> tuple[Results, UnreturnedResults]:
        """What a commit() returns, and whom it tells so."""
        self.run_callbacks()
        returning = self._unreturned
        found, self._unreturned = returning.hand_over()
        for tp in unsettled:
            found[tp] = found.get(tp) or RequestTimeoutError(
                f"acknowledging {tp}: no response in time; the request continues in the background"
            )
        return found, returning

    async def commit(self, timeout: float | None) -> set[TopicPartition]:
        """Waits until all acknowledgements are sent and answered. Returns the partitions left at the deadline."""
        runtime = self.lifecycle.runtime
        if runtime is None:
            return set()
        seconds = self.config.default_api_timeout_ms / 1000 if timeout is None else timeout
        goals = self.buffer.flush()
        async with self.guard.interruptible():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while goals:
                        runtime.sessions.progress.clear()
                        with self.buffer.lock:
                            is_over = self.buffer.planner.is_over(goals)
                            again = is_over and self.buffer.planner.has_retries
                        if not is_over:
                            await runtime.sessions.progress.wait()
                        else:
                            goals = self.buffer.flush() if again else {}
        with self.buffer.lock:
            return self.buffer.planner.unsettled() if goals else set()

    # -- the Spark source --------------------------------------------------------------------------------------------

    async def finish_fetch(self) -> None:
        """Waits until no fetch is under way that acquires records, or its connection has ended (within
        request.timeout.ms). On the consumer's thread. No other fetch begins meanwhile: only a poll that waits begins
        one."""
        runtime, buffer = self.lifecycle.runtime, self.buffer
        if runtime is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.default_api_timeout_ms / 1000):
                while True:
                    runtime.sessions.progress.clear()
                    with buffer.lock:
                        if not buffer.planner.is_acquiring:
                            return
                    await runtime.sessions.progress.wait()

    def take_buffered(self, limit: int) -> Records:
        """At most `limit` of the records that are buffered, without a poll."""
        buffer = self.buffer
        with buffer.lock:
            batches: list[Batch] = buffer.planner.take(limit, time.monotonic())  # type: ignore[assignment]
        records = Records(batches)
        buffer.records_returned += len(records)
        return records

    # -- start and end -----------------------------------------------------------------------------------------------

    async def stop_background(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leaves nothing running, until something is subscribed again. On the consumer's thread."""
        runtime = self.lifecycle.detach_runtime()
        if runtime is not None:
            await runtime.close(timeout)

    def forget(self) -> None:
        with self.buffer.lock:
            self.buffer.member.leave()
            self.buffer.health.forget()
            self.buffer.member.failure = self.buffer.member.pending_error = None
            self.buffer.planner.subscribe(frozenset(), time.monotonic())

    async def end_tasks(self, deadline: float) -> None:
        try:
            await self.stop_background(max(0.0, deadline - time.monotonic()))
        finally:
            self.buffer.poll_signal.notify()

    # -- questions -----------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        self.guard.check()
        runtime = self.lifecycle.runtime
        missing_topics: list[str] = []
        if runtime is not None:
            with self.buffer.lock:
                missing_topics = runtime.missing_topics.describe()
        return {
            "role": "share consumer",
            "client_id": self.config.client_id,
            "group_id": self.config.group_id,
            **self.buffer.metrics(),
            "connections": runtime.client.connection_count if runtime else 0,
            "missing_topics": missing_topics,
        }

    def new_run(self, handler: Handler, settings: ShareRunSettings, launch: Callable[[Record], None]) -> ShareRun:
        parts = ShareRunParts(self.config, self.guard, self.buffer, self.callbacks.report)
        if self.telemetry is None:
            return ShareRun(parts, handler, settings, launch)
        return TracedShareRun(self.telemetry, parts, handler, settings, launch)


def _kind_of(value: AcknowledgeType | str | int) -> AcknowledgeType:
    """A type by itself, its name in any case, or its number. Raises ValueError and TypeError."""
    names = ", ".join(kind.name for kind in AcknowledgeType)
    try:
        if isinstance(value, str):
            return AcknowledgeType[value.upper()]
        return AcknowledgeType(whole_number_of("kind", value))
    except TypeError:
        raise TypeError(
            f"kind must be an AcknowledgeType ({names}) or the name of one, not {short_repr(value)}"
        ) from None
    except (KeyError, ValueError):
        raise ValueError(f"{short_repr(value)} is not one of {names}") from None
