"""What every `run()` has in common: its steps, how it ends, and what its jobs are to whoever runs them.

`RunLoop.steps` is a generator that runs where the user called run(), and yields what may have to be waited for there: a
poll, a commit, a rest. Jobs run elsewhere, as tasks (`running.py`) or on threads (`sync/running.py`): those use `call`,
resolve what it gives, and tell how it went.

A call that is over its time is cancelled if it is a task. If it is a thread, or does not end by that, it is abandoned:
reported, counted as failed, and its place is free. Its late result counts for nothing. The loop looks for such calls in
every round, and rests no longer than until the next one.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import logging
import os
import pathlib
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..errors import HeadraceError, WakeupError
from ..machines.calls import Call, Calls, Overrun, Worker

if TYPE_CHECKING:
    from .doorbell import Doorbell

log = logging.getLogger(__name__)

J = TypeVar("J")
P = TypeVar("P")

COMMIT_TIMEOUT = 5.0
_LONGEST_REST = 1.0
_NOT_THE_HANDLERS = (threading.__file__, str(pathlib.Path(__file__).parents[1]) + os.sep)


@dataclasses.dataclass(frozen=True, slots=True)
class Poll:
    """poll(seconds): gives records, at most so many."""

    max_records: int
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """commit(); or commit_async(), without a timeout."""

    timeout: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Rest:
    """Until the doorbell rings, or so many seconds."""

    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    """unsubscribe()."""


Step = Poll | Commit | Rest | Leave
Steps = Generator[Step, Any, None]


def shown(stack: Iterable[traceback.FrameSummary]) -> str:
    """A stack for the log, from the handler on."""
    own = itertools.dropwhile(lambda frame: frame.filename.startswith(_NOT_THE_HANDLERS), stack)
    lines = traceback.StackSummary.from_list(own).format()
    return " It is at:\n" + "".join(lines).rstrip() if lines else ""


class Pacing(Protocol):
    """The settings that every run() has."""

    @property
    def concurrency(self) -> int: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def drain(self) -> float: ...
    @property
    def progress_interval(self) -> float: ...
    @property
    def on_progress(self) -> Callable[[Any], Any] | None: ...


class RunLoop(abc.ABC, Generic[J, P]):
    """One run() with jobs J, which tells of its progress by P. `steps` belongs to the caller's thread; what jobs call,
    to any."""

    def __init__(
        self, doorbell: Doorbell, settings: Pacing, max_poll_interval: float, launch: Callable[[J], None]
    ) -> None:
        self.concurrency = settings.concurrency
        self._doorbell = doorbell
        self._drain = settings.drain
        self._on_progress = settings.on_progress
        self._progress_interval = settings.progress_interval
        self._launch = launch
        self._lock = threading.Lock()  # of the work, of calls, and of `_error`
        self._calls: Calls[J] = Calls(settings.timeout, max_poll_interval)
        self._error: BaseException | None = None
        self._was_interrupted = False
        self._began = time.monotonic()
        self._deadline: float | None = None
        self._progress_due = self._began + settings.progress_interval

    # -- jobs: on any thread -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def take(self) -> J | None:
        """The next job, which has to be run."""

    @abc.abstractmethod
    def call(self, job: J) -> Any:
        """What the job is: a result, or an awaitable or a Future of it. Raises what the user's function raises."""

    def begin(self, job: J, worker: Worker, patience: float = 0.0) -> Call[J]:
        """Before `call`. What can be cancelled has so many seconds to end, after its time."""
        now = time.monotonic()
        with self._lock:
            return self._calls.begin(
                job, worker, now, since=self._since(job, now), patience=patience, is_timed=self._is_timed(job)
            )

    def end_call(self, call: Call[J]) -> bool:
        """After `call`, and before its result is told. False: it is late and is not to be told."""
        with self._lock:
            counts = self._calls.end(call)
            if not counts:
                self._returned(call)
        if not counts:
            log.info(
                "%s: the handler has ended after %.1f s: too late, its result is ignored",
                self._name(call.job),
                time.monotonic() - call.began,
            )
            self._doorbell.ring()
        return counts

    def time_for(self, job: J) -> float | None:
        """The seconds that a call may take."""
        return self._calls.timeout if self._is_timed(job) else None

    def timed_out(self, job: J, error: Exception) -> TimeoutError:
        """A task was cancelled after its time. Reports it, and returns the failure."""
        trace = None if error.__cause__ is None else error.__cause__.__traceback__
        where, stack = self._name(job), shown(traceback.extract_tb(trace))
        log.warning("%s: the handler was cancelled after %s s (timeout).%s", where, self._calls.timeout, stack)
        failure = self._timeout_error(job)
        failure.__cause__ = error
        return failure

    def _timeout_error(self, job: J) -> TimeoutError:
        return TimeoutError(f"{self._name(job)}: the handler did not end within {self._calls.timeout} s (timeout)")

    @abc.abstractmethod
    def _name(self, job: J) -> str:
        """Its partition and offset."""

    def _is_timed(self, job: J) -> bool:
        return True

    def _since(self, job: J, now: float) -> float:
        """When the time began after which its call is abandoned in any case."""
        return now

    @abc.abstractmethod
    def _overran(self, overrun: Overrun[J], now: float) -> str | None:
        """A call was abandoned, or goes on. With the lock held. What is to be logged of it, if anything."""

    @abc.abstractmethod
    def _returned(self, call: Call[J]) -> None:
        """A call that was abandoned has ended. With the lock held."""

    @abc.abstractmethod
    def succeeded(self, job: J, result: Any) -> None: ...

    @abc.abstractmethod
    def failed(self, job: J, error: BaseException) -> bool:
        """Whether the job goes on, and is to be called again at once."""

    @abc.abstractmethod
    def broke_off(self, job: J, error: BaseException) -> None:
        """The job ended by what is no failure, such as SystemExit: so does run()."""

    def launch(self) -> None:
        """Starts all that may start now."""
        while (job := self.take()) is not None:
            self._launch(job)

    # -- the loop ----------------------------------------------------------------------------------------------

    def steps(self) -> Generator[Step, Any, P]:
        """Ends when it is asked to (wakeup(), a signal), and by errors that it cannot go on after: when the work under
        way has ended, and what is done is committed. Then it returns, or raises the error."""
        while not self._is_over():
            try:
                yield from self._round()
            except WakeupError:
                self._stop("wakeup() was called")
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever it is, what runs shall end in order
                self._fail(error)
        yield from self._finish()
        progress = self.progress()
        self._give_back()
        if self._error is not None:
            raise self._error
        return progress

    @abc.abstractmethod
    def _round(self) -> Steps: ...

    def _give_back(self) -> None:
        """After the last commit."""

    def _tell_progress(self) -> None:
        if self._on_progress is not None and time.monotonic() >= self._progress_due:
            self._progress_due = time.monotonic() + self._progress_interval
            self._on_progress(self.progress())

    def _resting_time(self, *due: float | None) -> float:
        """Until the first of these times, or what is due anyway."""
        times = [
            *due,
            self._deadline,
            self._progress_due if self._on_progress is not None else None,
            self._calls.next_look,
        ]
        now = time.monotonic()
        # A call that begins meanwhile is over its time no sooner than that.
        longest = min(_LONGEST_REST, self._calls.timeout or _LONGEST_REST, self._calls.limit)
        return max(0.0, min([longest, *(at - now for at in times if at is not None)]))

    def _watch(self) -> None:
        """Abandons the calls that are over their time."""
        now = time.monotonic()
        with self._lock:
            found = [(overrun, self._overran(overrun, now)) for overrun in self._calls.look(now)]
            abandoned = self._calls.abandoned
        for overrun, report in found:
            worker = overrun.call.worker
            if report is not None:
                where, stack = self._name(overrun.call.job), worker.stack()
                log.warning("%s: the handler still runs after %.1f s. %s%s", where, overrun.seconds, report, stack)
            if overrun.is_news or overrun.is_final:
                worker.abandon()
        if any(overrun.is_news for overrun, _ in found) and abandoned > self.concurrency:
            self._fail(
                TimeoutError(
                    f"{abandoned} calls of the handler are over their time and still run. run() ends, since more than "
                    f"concurrency={self.concurrency} of them would take up too many threads"
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
        """How many records are worked on."""

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, HeadraceError) and error.retriable:
            log.warning("run() goes on after: %s", error)
            return
        if not isinstance(error, Exception):
            # Ctrl-C, or a task that is cancelled. The second one does not wait for the work under way.
            if self._was_interrupted:
                raise error
            self._was_interrupted = True
        with self._lock:
            if self._error is None or self._was_interrupted:
                self._error = error
        self._stop(repr(error))

    def _is_over(self) -> bool:
        with self._lock:
            if not self._is_stopped:
                return False
            running = self.running
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._drain
        if running and now >= self._deadline:
            log.warning("run() ends with %d records still worked on: they will be delivered again", running)
        return not running or now >= self._deadline

    def _finish(self) -> Steps:
        """The last commit. A wakeup has been heard by now."""
        while True:
            try:
                yield Commit(COMMIT_TIMEOUT)
            except WakeupError:
                continue
            except HeadraceError as error:
                log.warning("the last commit failed, what was done since the one before will be done again: %s", error)
                self._error = self._error or error
            return

    @abc.abstractmethod
    def end(self) -> None:
        """Nothing is started any more, however `steps` ended."""

    @abc.abstractmethod
    def progress(self) -> P: ...
