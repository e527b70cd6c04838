"""The loop of `run()`: a member of a group that works on records concurrently. The logic of both consumers.

`Run.steps` is a generator that runs where the user called run(), and yields what may have to be waited for there: a
poll, a commit, a rest. The workload (a machine) decides what is worked on. Jobs run elsewhere, as tasks (`running.py`)
or on threads (`sync/running.py`), and tell `Run` how they went.

- poll() never waits. A rest is a wait for the doorbell, which rings for records and for news of the group; jobs ring it
  when there is room again, when a partition has come to rest, and when something has failed.
- Partitions that should deliver nothing are paused for the length of a poll, and poll() goes on being called.
- A record is marked as done before its job is over, so a partition that is at rest can be committed.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Generator
from typing import TYPE_CHECKING, Any

from ..dead_letters import DeadLetterTopic
from ..errors import CommitFailedError, ConfigError, HeadraceError, StateError, WakeupError
from ..machines.partition import PartitionState
from ..machines.workload import Job, Verdict, Workload
from ..records import Record, Records
from ..types import TopicPartition
from .run_settings import Progress, RunSettings

if TYPE_CHECKING:
    from .consumer import AsyncConsumer

log = logging.getLogger(__name__)

_LONGEST_REST = 1.0
_COMMIT_INTERVAL = 1.0  # where auto-commit is off
_COMMIT_TIMEOUT = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Poll:
    """poll(0): gives records, at most so many."""

    max_records: int


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


class Run:
    """One run(). `steps` belongs to the caller's thread; what jobs call, to any."""

    def __init__(self, consumer: AsyncConsumer, settings: RunSettings, launch: Callable[[Job[Record]], None]) -> None:
        config = consumer._config
        if consumer._completions is None:
            raise ConfigError("run() needs commit.mode=done: commits follow what the handler is done with")
        if not consumer._is_subscribed:
            raise StateError("run() works as a member of a group: call subscribe() before it")
        assert consumer._group is not None
        self._consumer = consumer
        self._intake = consumer._intake
        self._group = consumer._group
        self._completions = consumer._completions
        self._settings = settings
        self._launch = launch
        self._limit = config.max_poll_records
        self._commits_itself = not config.enable_auto_commit
        self._lock = threading.Lock()  # of the workload, and of `_error`
        self._workload: Workload[Record] = Workload(settings.terms())
        self._error: BaseException | None = None
        self._stop_asked = False
        self._was_interrupted = False
        self._seen_assignments = -1
        self._held: frozenset[TopicPartition] = frozenset()  # what is asked back ...
        self._committed_for: frozenset[TopicPartition] = frozenset()  # ... and was committed when at rest
        self._rests = False  # before the next look
        now = self._began = time.monotonic()
        self._deadline: float | None = None
        self._commit_due = now + _COMMIT_INTERVAL
        self._committed = 0
        self._progress_due = now + settings.progress_interval
        self.letters: DeadLetterTopic | None = None
        if isinstance(settings.dead_letter, str):
            servers = (
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in config.bootstrap_servers
            )
            self.letters = DeadLetterTopic(settings.dead_letter, ",".join(servers), self._group.group_id)

    # -- jobs: on any thread -----------------------------------------------------------------------------------

    def take(self) -> Job[Record] | None:
        """The next job, which has to be run."""
        with self._lock:
            return self._workload.start(time.monotonic())

    def succeeded(self, job: Job[Record]) -> None:
        if self._workload.is_ours(job):
            self._completions.done(job.record)
        with self._lock:
            news = self._workload.succeeded(job)
        self._ring(news)

    def failed(self, job: Job[Record], error: BaseException) -> bool:
        """Whether the job goes on, with the writing of its dead letter."""
        what = "the dead letter of " if job.is_burying else ""
        with self._lock:
            verdict, news = self._workload.failed(job, error, time.monotonic(), random.random())
            if verdict is Verdict.STUCK and self._error is None:
                self._error = error
        tries = job.burials or job.attempts
        where = f"{what}{job.record.topic}-{job.record.partition}, offset {job.record.offset}"
        if verdict is Verdict.AGAIN:
            log.info("%s: attempt %d failed, there will be another one: %r", where, tries, error)
        elif verdict is Verdict.BURY:
            log.warning("%s: failed for good after %d attempts: %r", where, tries, error)
        elif verdict is Verdict.STUCK:
            error.add_note(f"{where}: failed for good after {tries} attempts, and ends run()")
        self._ring(news)
        return verdict is Verdict.BURY

    def broke_off(self, job: Job[Record], error: BaseException) -> None:
        """The job ended by what is no failure, such as SystemExit: so does run()."""
        with self._lock:
            self._workload.broke_off(job)
            self._error = self._error or error
        self._ring(True)

    def _ring(self, has_news: bool) -> None:
        if has_news:
            self._intake.doorbell.ring()

    # -- the loop ----------------------------------------------------------------------------------------------

    def steps(self) -> Generator[Step, Any, Progress]:
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
        yield from self._commit_at_last()
        progress = self.progress()
        self._give_back()
        if self._error is not None:
            raise self._error
        return progress

    def _round(self) -> Steps:
        if self._rests:
            yield Rest(self._resting_time())
        self._rests = True
        if self._stop_asked:
            self._stop("a signal came")
        with self._lock:
            room = self._workload.room
        records = Records.EMPTY
        try:
            records = yield from self._poll(room)
        finally:  # what the poll did for the group counts, also if it raised something
            self._take_in(records)
            self._delay_revokes()
        if self._commits_itself:
            yield from self._commit()
        if self._settings.on_progress is not None and time.monotonic() >= self._progress_due:
            self._progress_due = time.monotonic() + self._settings.progress_interval
            self._settings.on_progress(self.progress())
        self.launch()
        with self._lock:
            has_room = self._workload.room > 0
        # Room that came while the poll was made without any would be overlooked: the bell has rung before it.
        self._rests = not (records or self._gives_up or (has_room and not room))

    def launch(self) -> None:
        """Starts all that may start now."""
        while (job := self.take()) is not None:
            self._launch(job)

    def _resting_time(self) -> float:
        with self._lock:
            due = [self._workload.next_retry, self._deadline]
        if self._settings.on_progress is not None:
            due.append(self._progress_due)
        if self._commits_itself:
            due.append(self._commit_due)
        now = time.monotonic()
        return max(0.0, min([_LONGEST_REST, *(at - now for at in due if at is not None)]))

    def _poll(self, room: int) -> Generator[Step, Any, Records]:
        with self._lock:
            crowded = self._workload.crowded()
        silent = self._silence(None if not room else crowded)
        try:
            # Without room, a partition that is taken by this very poll can bring a record all the same.
            records: Records = yield Poll(max(1, room if self._limit < 0 else min(room, self._limit)))
        finally:
            if silent:
                with self._intake.lock:
                    for state in silent:
                        state.paused = False
                self._intake.wake_fetching()
        return records

    def _silence(self, partitions: Collection[TopicPartition] | None) -> list[PartitionState]:
        """Pauses these (None: all), but for those that the user has paused. Not by pause() and resume(), which have the
        positions looked at again: that rings the bell, and there would be no rest."""
        if partitions is not None and not partitions:
            return []
        with self._intake.lock:
            found = [
                state
                for state in self._intake.assignment
                if not state.paused and (partitions is None or state.tp in partitions)
            ]
            for state in found:
                state.paused = True
        return found

    def _take_in(self, records: Records) -> None:
        with self._intake.lock:
            changes = self._intake.assignments
            # A partition that goes and comes back gets another state.
            tenures = None if changes == self._seen_assignments else {each.tp: each for each in self._intake.assignment}
        with self._lock:
            if tenures is not None:
                self._seen_assignments = changes
                self._workload.keep(tenures)
            for batch in records._batches:
                self._workload.add(TopicPartition(batch.topic, batch.partition), batch)

    def _delay_revokes(self) -> None:
        """KIP-983: what is asked back is given up as soon as nothing of it runs any more."""
        asked = self._group.revocations.pending
        if not asked and not self._held:
            return
        with self._lock:
            self._workload.hold(asked)
            busy = self._workload.busy(asked)
        self._held = asked
        self._committed_for &= asked
        # With auto-commit, the poll that gives them up commits before.
        self._group.delay(asked - self._committed_for if self._commits_itself else busy)

    @property
    def _gives_up(self) -> bool:
        """Whether the next poll has a revoke to complete."""
        return bool(self._group.revocations.next or self._committed_for)

    def _commit(self) -> Steps:
        """Where auto-commit is off: once a second, and before partitions are given up."""
        with self._lock:
            at_rest = self._held - self._workload.busy(self._held)
            count = self._workload.handled + self._workload.buried
        now = time.monotonic()
        if not at_rest <= self._committed_for:
            try:
                yield Commit(_COMMIT_TIMEOUT)
            except CommitFailedError as error:
                log.warning("the commit before a revoke failed: %s", error)
            self._committed_for = at_rest
        elif now >= self._commit_due:
            self._commit_due = now + _COMMIT_INTERVAL
            if count != self._committed:
                self._committed = count
                yield Commit(None)

    # -- the end -----------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """From any thread, and in signal handlers: takes no lock."""
        self._stop_asked = True
        self._intake.doorbell.ring()

    def _stop(self, why: str) -> None:
        with self._lock:
            is_news, self._workload.is_stopped = not self._workload.is_stopped, True
        if is_news:
            log.info("run() ends: %s", why)

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
            if not self._workload.is_stopped:
                return False
            running = self._workload.running
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._settings.drain
        if running and now >= self._deadline:
            log.warning("run() ends with %d records still worked on: they will be handled again", running)
        return not running or now >= self._deadline

    def _commit_at_last(self) -> Steps:
        while True:
            try:
                yield Commit(_COMMIT_TIMEOUT)
            except WakeupError:
                continue
            except HeadraceError as error:
                log.warning("the last commit failed, what was done since the one before will be done again: %s", error)
                self._error = self._error or error
            return

    def _give_back(self) -> None:
        """What was delivered and is not done is delivered again, should this consumer go on."""
        with self._lock:
            unfinished = self._workload.unfinished()
        for tp in unfinished & self._intake.partitions():
            done = self._completions.committable(tp)
            if done is not None:
                self._intake.rewind(tp, done)

    def end(self) -> None:
        """Nothing is started any more, however `steps` ended."""
        with self._lock:
            self._workload.is_stopped = True
        if self.letters is not None:
            self.letters.close()

    @property
    def is_idle(self) -> bool:
        return self._workload.running == 0

    def progress(self) -> Progress:
        figures = self._consumer.metrics()
        known = [lag for each in figures["partitions"].values() if (lag := each["lag"]) is not None]
        if figures["backlog"] is not None:
            known.append(figures["backlog"]["open"])
        with self._lock:
            work = self._workload
            return Progress(
                handled=work.handled,
                retried=work.retried,
                dead_lettered=work.buried,
                dropped=work.dropped,
                running=work.running,
                in_flight=work.in_flight,
                lag=sum(known) + work.in_flight if known else None,
                seconds=time.monotonic() - self._began,
            )
