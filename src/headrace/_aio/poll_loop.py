"""What `poll()` does, for `Consumer` and `AsyncConsumer` alike. Nothing here waits.

    check   raises for a wrong call, before anything is changed
    begin   once per poll; returns what `look` returns
    look    returns records, which ends the poll; or what to do before the next look: a `Wait` for the poll signal, or
            steps of a rebalance
    end     in any case

Both consumers drive it with the same few lines, and differ only in how they wait. A driver must not confirm records
before the very last statement of its poll(): see `Handover`.

Only one poll can be under way, so its state is kept here. `begin` sets all of it: an interrupt (Ctrl-C) may have left
anything behind.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._arguments import limit_of, seconds_of
from ..errors import ConcurrentUseError, StateError, WakeupError
from ..records import Record, Records
from .commit.committer import Committer
from .commit.tracker import CompletionTracker
from .fetch.buffer import FetchBuffer
from .group.rebalance import Rebalancer
from .group.steps import Steps
from .lifecycle import Lifecycle
from .runtime import ConsumerRuntime
from .telemetry import ConsumerTelemetry


class Wait(NamedTuple):
    """For the poll signal, for so many seconds at most."""

    seconds: float


class PollLoop:
    """Belongs to the user's thread."""

    def __init__(
        self,
        lifecycle: Lifecycle[ConsumerRuntime],
        buffer: FetchBuffer,
        group: Rebalancer | None,
        completions: CompletionTracker | None,
        committer: Committer,
        max_poll_records: int,
    ) -> None:
        self._lifecycle = lifecycle
        self._guard = lifecycle.guard
        self._buffer = buffer
        self._group = group
        self._completions = completions
        self._committer = committer
        self._max_poll_records = max_poll_records
        self.is_polling = False
        self._limit = 0
        self._deadline = 0.0
        self._is_first_look = True
        self._is_reconciled = False  # this look has done its part for the group
        self._guard.is_polling = lambda: self.is_polling

    def check_free(self, call: str) -> None:
        """Raises if the caller cannot poll, or start run(), where and when it is."""
        self._guard.check_reading(call)
        if self._group is not None and self._group.in_listener:
            raise StateError(f"a listener cannot call {call}: it runs inside of poll(), unsubscribe() or close()")
        if self.is_polling:
            raise ConcurrentUseError(
                "poll() is under way already: in another task, or interrupted by this signal handler"
            )

    def check(self, timeout: float, max_records: int | None) -> tuple[int, float]:
        """The limit and the deadline of a poll. Raises for a wrong call, before anything is changed."""
        self.check_free("poll()")
        limit = self._max_poll_records if max_records is None else limit_of(max_records)
        deadline = time.monotonic() + seconds_of(timeout)
        group = self._group
        if (group is None or not group.is_subscribed) and not self._buffer.assignment:
            raise StateError("nothing is subscribed or assigned: call subscribe() or assign() before poll()")
        return limit, deadline

    def begin(self, limit: int, deadline: float) -> Records | Wait | Steps:
        # First of all: from here on a poll() in a signal handler is refused, and cannot change the state below.
        self.is_polling = True
        self._limit, self._deadline = limit, deadline
        self._is_first_look, self._is_reconciled = True, False
        buffer, group = self._buffer, self._group
        buffer.poll_begins()
        buffer.polls += 1
        self._committer.run_callbacks()  # the user's code: KIP-62's clock keeps running
        if group is not None and group.is_subscribed:
            group.poll_begins()
        self._committer.auto_commit_if_due()
        if self._lifecycle.runtime is None:
            self._lifecycle.start()
        return self.look()

    def look(self) -> Records | Wait | Steps:
        """Records are taken, but not confirmed."""
        if not self._is_reconciled:
            self._buffer.poll_signal.clear()
            self._guard.consume_wakeup()
            self._guard.check()
            is_first, self._is_first_look, self._is_reconciled = self._is_first_look, False, True
            group = self._group
            if group is not None and group.is_subscribed and (steps := group.reconcile(begins=is_first)) is not None:
                return steps
        left = self._deadline - time.monotonic()
        records = self._take(self._limit, left <= 0)
        if records is not None:
            return records
        self._is_reconciled = False
        return Wait(self._longest_wait(left))

    def failed(self, error: BaseException) -> None:
        """The poll raises: its records come again, unless an iteration over them has begun."""
        self._buffer.recover()
        if isinstance(error, WakeupError):  # perhaps of a call in a listener
            self._guard.forget_wakeup()

    def end(self) -> None:
        self.is_polling = False
        group = self._group
        if group is not None and group.is_subscribed:
            group.poll_ends()

    def _take(self, limit: int, is_late: bool) -> Records | None:
        """What the poll returns, or None if it has to wait. It does not wait when it has revocations to report, and
        takes no records when the group asks partitions back."""
        group = self._group
        is_asked = group is not None and group.has_requests
        records = None if is_asked else self._buffer.take(limit, is_late=is_late)
        if records is not None and self._completions is not None:
            self._buffer.handover.untrack = functools.partial(self._completions.withdrawn, records)
            self._completions.delivered(records, self._buffer.reading_start)
        if group is None or not group.is_subscribed:
            return Records() if records is None and is_late else records
        if records is None:
            if not is_late and not group.has_news:
                return None
            group.raise_failure(is_late=is_late)
            records = Records()
        records.to_be_revoked = group.revocations.next
        records.lost = group.revocations.lost
        return records

    def _longest_wait(self, left: float) -> float:
        """Nothing sets the poll signal when the deadline of a revoke passes, or when an error may be raised again."""
        group, now = self._group, time.monotonic()
        left = min(left, self._buffer.pace.next_due(now) - now)
        return left if group is None or not group.is_subscribed else min(left, group.poll_waits())

    def iterate(self, records: Records) -> Iterator[Record]:
        """The records of a poll one by one. The poll has not confirmed them: the iteration does, once it begins."""
        if self._group is not None:
            self._group.reported, self._group.reported_lost = records.to_be_revoked, records.lost
        return self._buffer.one_by_one(records, self._completions)


class ObservedPollLoop(PollLoop):
    """Reports polls to `telemetry`, with the time that they took unless the records were there at once."""

    def __init__(self, telemetry: ConsumerTelemetry, *parts: Any) -> None:
        super().__init__(*parts)
        self._telemetry = telemetry
        self._began = 0.0
        self._has_waited = False

    def begin(self, limit: int, deadline: float) -> Records | Wait | Steps:
        self._began, self._has_waited = time.monotonic(), False
        return super().begin(limit, deadline)

    def look(self) -> Records | Wait | Steps:
        try:
            found = super().look()
        except WakeupError:
            raise
        except Exception as error:
            self._telemetry.poll_failed(error, time.monotonic() - self._began)
            raise
        if not isinstance(found, Records):
            self._has_waited = True
        elif found:
            self._telemetry.polled(found, time.monotonic() - self._began if self._has_waited else None)
        return found
