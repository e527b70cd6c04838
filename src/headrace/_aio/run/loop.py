"""The common part of every `run()`: its steps, its end, and the calls of its workers.

`RunLoop.steps` is a generator that runs where the user called run(), and yields the steps that may have to wait: a
poll, a commit, a wait. Jobs run elsewhere, as tasks (`tasks.py`) or on threads (`sync/run.py`): these workers use
`call`, await its result, and report its end.

A call that is overdue is cancelled if it is a task. If it is a thread, or does not end when it is cancelled, it is
abandoned: it is logged, counted as failed, and another call may start. Its late result is ignored. The loop checks for
such calls in every round, and waits at most until the next deadline.
"""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import functools
import itertools
import logging
import os
import pathlib
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, Literal, TypeVar

from ..._machines.run.handler_calls import HandlerCall, HandlerCalls, Overrun, Worker
from ...errors import HeadraceError, StateError, WakeupError
from ...events import Event, HandlerReturned, HandlerStuck
from ...types import TopicPartition
from ..call_guard import CallGuard
from ..poll_signal import PollSignal
from .options import RunLimits
from .transactional_commits import TransactionalCommits

log = logging.getLogger(__name__)

J = TypeVar("J")
P = TypeVar("P")

COMMIT_TIMEOUT = 5.0
_LONGEST_WAIT = 1.0
_PACKAGE = pathlib.Path(__file__).parents[2]
_NOT_THE_HANDLERS = (threading.__file__, *(f"{_PACKAGE / room}{os.sep}" for room in ("_aio", "otel", "sync")))


@dataclasses.dataclass(frozen=True, slots=True)
class Poll:
    """poll(seconds), for at most `max_records` records."""

    max_records: int
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """commit(); or commit_async(), without a timeout. `is_last`: nothing is committed after it."""

    timeout: float | None
    is_last: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class AwaitPollSignal:
    """Waits for the poll signal, for at most `seconds`."""

    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    """unsubscribe()."""


Step = Poll | Commit | AwaitPollSignal | Leave
Steps = Generator[Step, Any, None]


def shown(stack: Iterable[traceback.FrameSummary]) -> str:
    """A stack for the log, beginning with the handler."""
    own = itertools.dropwhile(lambda frame: frame.filename.startswith(_NOT_THE_HANDLERS), stack)
    return "".join(traceback.StackSummary.from_list(own).format()).rstrip()


def _with_cause(cause: BaseException, text: str) -> StateError:
    error = StateError(text)
    error.__cause__ = cause
    return error


class RunLoop(abc.ABC, Generic[J, P]):
    """One run() with jobs of type J, which reports its progress as P. `steps` belongs to the caller's thread; workers
    call the other methods from any thread. `transactions` replace the consumer's commits, if given."""

    transactions: TransactionalCommits | None = None

    def __init__(
        self,
        guard: CallGuard,
        poll_signal: PollSignal,
        settings: RunLimits,
        max_poll_interval: float,
        launch: Callable[[J], None],
        group_id: str,
        report: Callable[[Event], None],
    ) -> None:
        self.concurrency = settings.concurrency
        self._guard = guard
        self._group_id = group_id
        self._report = report
        self.poll_signal = poll_signal
        self._drain = settings.drain
        self._on_progress = settings.on_progress
        self._progress_interval = settings.progress_interval
        self._launch = launch
        self._lock = threading.Lock()  # guards the scheduler, the calls, and `_error`
        self._calls: HandlerCalls[J] = HandlerCalls(settings.timeout, max_poll_interval)
        self._error: BaseException | None = None
        self._was_interrupted = False
        self._began = time.monotonic()
        self._deadline: float | None = None
        self._progress_due = self._began + settings.progress_interval

    # -- jobs: on any thread -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def take(self) -> J | None:
        """The next job, which the caller must run."""

    @abc.abstractmethod
    def call(self, job: J) -> Any:
        """Calls the handler. Returns its result, or an awaitable or a Future of it. Raises the handler's exception."""

    def begin(self, job: J, worker: Worker, grace: float = 0.0) -> HandlerCall[J]:
        """Before `call`, in its task or thread. A call that can be cancelled has `grace` seconds to end after its
        timeout."""
        self._guard.enter_handler()
        now = time.monotonic()
        with self._lock:
            return self._calls.begin(
                job, worker, now, since=self._since(job, now), grace=grace, is_timed=self._is_timed(job)
            )

    def end_call(self, call: HandlerCall[J]) -> bool:
        """After `call`, and before its result is reported. False if it is late, and must not be reported."""
        with self._lock:
            counts = self._calls.end(call)
            if not counts:
                self._returned(call)
        if call.is_slow or not counts:
            seconds = time.monotonic() - call.began
            self._report(HandlerReturned(self._group_id, *self._place(call.job), seconds, counts))
        if not counts:
            self.poll_signal.notify()
        return counts

    def time_for(self, job: J) -> float | None:
        """The seconds that a call may take; None without a timeout."""
        return self._calls.timeout if self._is_timed(job) else None

    def timed_out(self, job: J, error: Exception) -> TimeoutError:
        """A task was cancelled after its timeout. Reports it, and returns the failure."""
        trace = None if error.__cause__ is None else error.__cause__.__traceback__
        seconds = self._calls.timeout or 0.0
        self._report_stuck(
            job, seconds, "cancelled", "It counts as failed (timeout).", shown(traceback.extract_tb(trace))
        )
        failure = self._timeout_error(job)
        failure.__cause__ = error
        return failure

    def _timeout_error(self, job: J) -> TimeoutError:
        return TimeoutError(f"{self._name(job)}: the handler did not return within {self._calls.timeout} s (timeout)")

    def is_handler(self, job: J) -> bool:
        """Whether `call` calls the handler, and not `dead_letter`."""
        return True

    def cancelled_error(self, job: J, error: asyncio.CancelledError) -> StateError:
        """The task of a job was cancelled, and not by run(). The CancelledError itself would look as if the task that
        awaits run() was cancelled."""
        return _with_cause(
            error,
            f"{self._name(job)}: the handler's task was cancelled, by itself or by another task, which ends run(). "
            f"Raise an exception if the record cannot be processed, and call wakeup() to end run()",
        )

    def awaited_cancelled_error(self, job: J, error: asyncio.CancelledError) -> StateError:
        return _with_cause(error, f"{self._name(job)}: the handler awaited something that was cancelled")

    @abc.abstractmethod
    def _place(self, job: J) -> tuple[TopicPartition, int]:
        """The partition and offset of a job."""

    def _name(self, job: J) -> str:
        partition, offset = self._place(job)
        return f"{partition}, offset {offset}"

    def _report_stuck(
        self, job: J, seconds: float, state: Literal["abandoned", "cancelled", "running"], consequence: str, stack: str
    ) -> None:
        self._report(HandlerStuck(self._group_id, *self._place(job), seconds, state, consequence, stack))

    def _is_timed(self, job: J) -> bool:
        return True

    def _since(self, job: J, now: float) -> float:
        """When max.poll.interval.ms began. At its end, the call of the job is abandoned in any case."""
        return now

    @abc.abstractmethod
    def _overran(self, overrun: Overrun[J], now: float) -> str | None:
        """A call was abandoned, or still runs after that. With the lock held. Returns the text to log, or None."""

    @abc.abstractmethod
    def _returned(self, call: HandlerCall[J]) -> None:
        """An abandoned call has ended. With the lock held."""

    @abc.abstractmethod
    def succeeded(self, job: J, result: Any) -> None: ...

    @abc.abstractmethod
    def failed(self, job: J, error: BaseException) -> bool:
        """Whether the worker must call the job again at once."""

    @abc.abstractmethod
    def aborted(self, job: J, error: BaseException) -> None:
        """The job ended with an exception that is not a failure, such as SystemExit: run() ends, too."""

    def launch(self) -> None:
        """Starts all jobs that may start now."""
        while (job := self.take()) is not None:
            self._launch(job)

    # -- the loop ----------------------------------------------------------------------------------------------

    def steps(self) -> Generator[Step, Any, tuple[P, BaseException | None]]:
        """Ends after wakeup(), after a signal, and after errors that cannot be retried. Then it waits for the running
        jobs, commits, and returns the progress and the error, which the caller raises: a generator cannot raise the
        StopIteration of a handler."""
        while not self._check_end():
            try:
                yield from self._round()
            except WakeupError:
                self._stop("wakeup() was called")
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  # after any error, the running jobs may end
                self._fail(error)
        yield from self._finish()
        return self.progress(), self._error

    @abc.abstractmethod
    def _round(self) -> Steps: ...

    def _report_progress(self) -> None:
        if self._on_progress is not None and time.monotonic() >= self._progress_due:
            self._progress_due = time.monotonic() + self._progress_interval
            self._guard.call_on_progress(functools.partial(self._on_progress, self.progress()))

    def _wait_time(self, *due: float | None) -> float:
        """The time until the first of these times, or of the deadlines of every run()."""
        times = [
            *due,
            self._deadline,
            self._progress_due if self._on_progress is not None else None,
            self._calls.next_check,
        ]
        now = time.monotonic()
        # A call that begins meanwhile is not overdue before that.
        longest = min(_LONGEST_WAIT, self._calls.timeout or _LONGEST_WAIT, self._calls.limit)
        return max(0.0, min([longest, *(at - now for at in times if at is not None)]))

    def _watch(self) -> None:
        """Abandons the calls that are overdue, and warns of those that are about to be."""
        now = time.monotonic()
        if now < self._calls.next_check:
            return
        with self._lock:
            found = [(overrun, self._overran(overrun, now)) for overrun in self._calls.look(now)]
            slow = self._calls.slow(now)
            abandoned = self._calls.abandoned
        for call in slow:
            left = f"It is abandoned in {max(0.0, call.last - now):.1f} s (max.poll.interval.ms)."
            self._report_stuck(call.job, now - call.began, "running", left, call.worker.stack())
        for overrun, consequence in found:
            worker = overrun.call.worker
            if consequence is not None:
                self._report_stuck(overrun.call.job, overrun.seconds, "abandoned", consequence, worker.stack())
            if overrun.is_news or overrun.is_final:
                worker.abandon()
        if any(overrun.is_news for overrun, _ in found) and abandoned > self.concurrency:
            self._fail(
                TimeoutError(
                    f"{abandoned} calls of the handler are overdue and still running. run() ends, because more than "
                    f"concurrency={self.concurrency} of them would occupy too many threads"
                )
            )

    # -- the end -----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def ask_to_stop(self) -> None:
        """From any thread, and in signal handlers."""

    @abc.abstractmethod
    def _stop(self, why: str) -> None: ...

    @property
    @abc.abstractmethod
    def _is_stopped(self) -> bool: ...

    @property
    @abc.abstractmethod
    def running(self) -> int:
        """The number of records that are being processed."""

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, HeadraceError) and error.retriable:
            log.warning("run() continues after: %s", error)
            return
        if not isinstance(error, Exception):
            # Ctrl-C, or a cancelled task. A second one does not wait for the running jobs.
            if self._was_interrupted:
                raise error
            self._was_interrupted = True
        with self._lock:
            if self._error is None or self._was_interrupted:
                self._error = error
        self._stop(repr(error))

    def _check_end(self) -> bool:
        """Whether run() must end now. The time for running jobs (`drain`) starts when this first notices the stop."""
        with self._lock:
            if not self._is_stopped:
                return False
            running = self.running
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._drain
        if running and now >= self._deadline:
            log.warning("run() ends with %d records still being processed: they will be delivered again", running)
        return not running or now >= self._deadline

    def _finish(self) -> Steps:
        """The last commit. run() is ending already, so another wakeup() changes nothing."""
        while True:
            try:
                yield Commit(COMMIT_TIMEOUT, is_last=True)
            except WakeupError:
                continue
            except HeadraceError as error:
                log.warning(
                    "the last commit failed, records finished since the commit before will be delivered again: %s",
                    error,
                )
                self._error = self._error or error
            return

    @abc.abstractmethod
    def end(self) -> None:
        """Starts no more jobs, however `steps` ended."""

    @abc.abstractmethod
    def progress(self) -> P: ...
