"""What every `run()` has in common: its steps, how it ends, and what its jobs are to whoever runs them.

`RunLoop.steps` is a generator that runs where the user called run(), and yields what may have to be waited for there: a
poll, a commit, a rest. Jobs run elsewhere, as tasks (`running.py`) or on threads (`sync/running.py`): those use `call`,
resolve what it gives, and tell how it went.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..errors import HeadraceError, WakeupError

if TYPE_CHECKING:
    from .doorbell import Doorbell

log = logging.getLogger(__name__)

J = TypeVar("J")
P = TypeVar("P")

COMMIT_TIMEOUT = 5.0
_LONGEST_REST = 1.0


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


Step = Poll | Commit | Rest
Steps = Generator[Step, Any, None]


class Pacing(Protocol):
    """The settings that every run() has."""

    @property
    def concurrency(self) -> int: ...
    @property
    def drain(self) -> float: ...
    @property
    def progress_interval(self) -> float: ...
    @property
    def on_progress(self) -> Callable[[Any], Any] | None: ...


class RunLoop(abc.ABC, Generic[J, P]):
    """One run() with jobs J, which tells of its progress by P. `steps` belongs to the caller's thread; what jobs call,
    to any."""

    def __init__(self, doorbell: Doorbell, settings: Pacing, launch: Callable[[J], None]) -> None:
        self.concurrency = settings.concurrency
        self._doorbell = doorbell
        self._drain = settings.drain
        self._on_progress = settings.on_progress
        self._progress_interval = settings.progress_interval
        self._launch = launch
        self._lock = threading.Lock()  # of the work, and of `_error`
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
        times = [*due, self._deadline, self._progress_due if self._on_progress is not None else None]
        now = time.monotonic()
        return max(0.0, min([_LONGEST_REST, *(at - now for at in times if at is not None)]))

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
