"""The loop of `run()`: a member of a group that processes records concurrently. For both consumers.

`RecordScheduler` decides which records are processed; `loop.py` describes who calls what.

- poll() never waits. Between polls the loop waits for the poll signal, which is set for records and for changes of the
  group; jobs set it when there is room again, when the last running record of a partition ends, and when a job fails.
- Partitions that should deliver no records are blocked during poll(). poll() keeps being called.
- A record is marked as done before its job ends, so a partition without running records can be committed.
- run() polls on its own, so polls do not prove that the user makes progress: handler calls do. A call that takes longer
  than max.poll.interval.ms makes the member leave its group for session.timeout.ms, so that other members get its
  partitions. No protocol lets a member return a single partition: a rebalance would assign it the same one again.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Any

from ..._arguments import function_of
from ..._chance import chance
from ..._machines.commit.offset_set import Range
from ..._machines.fetch.partition import CROWDED, PartitionState
from ..._machines.run.handler_calls import HandlerCall, Overrun
from ..._machines.run.scheduler import FailureAction, Job, RecordScheduler
from ...config.consumer import ConsumerConfig
from ...errors import CommitFailedError, ConfigError, HeadraceError, StateError, WakeupError
from ...events import Event
from ...records import Record, Records
from ...types import TopicPartition
from ..call_guard import CallGuard
from ..commit.tracker import CompletionTracker
from ..fetch.buffer import FetchBuffer
from ..group.rebalance import Rebalancer
from .dead_letters import DeadLetterTopic, dead_letter_of
from .exactly_once import ExactlyOnce
from .loop import COMMIT_TIMEOUT, AwaitPollSignal, Commit, Leave, Poll, RunLoop, Step, Steps
from .options import Handler, Progress, RunSettings

log = logging.getLogger(__name__)

_COMMIT_INTERVAL = 1.0  # if auto-commit is off
_TRANSACTION_INTERVAL = 0.1  # it delays readers of the outputs
_STALLED_INTERVAL = 0.5  # after a transaction that failed
_NEXT = {
    FailureAction.RETRY: "it counts as failed, and is retried when this call has ended",
    FailureAction.DEAD_LETTER: "it has failed for the last time, and its dead letter is written",
    FailureAction.STOP: "it has failed for the last time, and ends run()",
    FailureAction.DROP: "its partition is no longer assigned, and another call may start",
}


def _absence(config: ConsumerConfig) -> float:
    """How long a member stays out of its group so that other members get its partitions: long enough for them to join a
    rebalance without it. A rebalance with this member would assign it the same partitions again."""
    session = config.session_timeout_ms / 1000
    if config.group_instance_id is not None:
        # The coordinator keeps its assignment for the session timeout after its last heartbeat.
        return session + config.heartbeat_interval_ms / 1000
    return min(session, config.max_poll_interval_ms / 1000)


def _lie_within(ranges: Iterable[Range], others: Collection[Range]) -> bool:
    return all(any(start <= first and last <= end for start, end in others) for first, last in ranges)


@dataclasses.dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of a consumer that run() uses, apart from its public methods."""

    config: ConsumerConfig
    guard: CallGuard
    buffer: FetchBuffer
    group: Rebalancer | None
    completions: CompletionTracker | None
    metrics: Callable[[], dict[str, Any]]
    report: Callable[[Event], None]


class ConsumerRun(RunLoop[Job[Record], Progress]):
    def __init__(
        self,
        parts: RunParts,
        handler: Handler,
        settings: RunSettings,
        launch: Callable[[Job[Record]], None],
    ) -> None:
        config = parts.config
        limit = config.max_poll_interval_ms / 1000
        super().__init__(
            parts.guard, parts.buffer.poll_signal, settings, limit, launch, config.group_id or "", parts.report
        )
        if parts.completions is None:
            raise ConfigError("run() needs commit.mode=done: it commits the records that the handler has finished")
        if parts.group is None or not parts.group.is_subscribed:
            raise StateError("run() works as a member of a group: call subscribe() before it")
        self._metrics = parts.metrics
        self._buffer = parts.buffer
        self._group = parts.group
        self._completions = parts.completions
        self._in_flight_before = self._completions.open_ranges()  # the caller's own work
        self._handler = function_of("handler", handler)
        self._dead_letter = settings.dead_letter
        self._limit = config.max_poll_records
        self._commits_itself = not config.enable_auto_commit
        self._exactly_once: ExactlyOnce | None = None
        if settings.producer is not None:
            self._exactly_once = ExactlyOnce(settings.producer, config, parts.buffer, parts.completions, parts.group)
            self.transactions = self._exactly_once.transactions
        self._commit_interval = _COMMIT_INTERVAL if self._exactly_once is None else _TRANSACTION_INTERVAL
        self._scheduler: RecordScheduler[Record] = RecordScheduler(settings.for_scheduler())
        self._stop_asked = False
        self._seen_assignments = -1
        # The partitions that the group revokes, and those of them that were committed after their last call.
        self._held: frozenset[TopicPartition] = frozenset()
        self._committed_for: frozenset[TopicPartition] = frozenset()
        self._stuck: list[Job[Record]] = []  # for max.poll.interval.ms or longer, in partitions that are assigned
        self._leave_at = 0.0  # until then the other calls may end
        self._absence = _absence(config)
        self._away_until: float | None = None
        self._resubscribe: Callable[[], None] | None = None
        self._waits = False  # before the next round
        self._commit_due = self._began + (self._commit_interval if self._exactly_once is None else 0.0)
        self._committed = 0
        self.letters: DeadLetterTopic | None = None
        if isinstance(settings.dead_letter, str) and self._exactly_once is None:
            self.letters = DeadLetterTopic(settings.dead_letter, self._group.group_id, config)
        self._group.before_listener = self._hold  # when nothing can raise any more

    # -- jobs: on any thread -----------------------------------------------------------------------------------

    def take(self) -> Job[Record] | None:
        with self._lock:
            return self._scheduler.start(time.monotonic())

    def call(self, job: Job[Record]) -> Any:
        if not job.is_dead_letter:
            return self._handler(job.record)
        assert job.error is not None
        if self.letters is not None:
            return self.letters.write(job.record, job.error, job.attempts)
        if isinstance(self._dead_letter, str):
            return dead_letter_of(job.record, job.error, job.attempts, self._group.group_id, self._dead_letter)
        assert callable(self._dead_letter)
        return self._dead_letter(job.record, job.error)

    def succeeded(self, job: Job[Record], result: Any) -> None:
        if self._scheduler.is_ours(job):
            if self._exactly_once is not None:
                try:
                    self._exactly_once.put(job.record, result)
                except TypeError as error:
                    self.aborted(job, error)
                    return
            self._completions.done(job.record)
        with self._lock:
            news = self._scheduler.succeeded(job)
        self._notify(news)

    def failed(self, job: Job[Record], error: BaseException) -> bool:
        """A job that failed for the last time continues with writing its dead letter."""
        what = "the dead letter of " if job.is_dead_letter else ""
        with self._lock:
            action, news = self._scheduler.failed(job, error, time.monotonic(), chance.random())
            if action is FailureAction.STOP and self._error is None:
                self._error = error
        tries = job.dead_letter_attempts or job.attempts
        where = f"{what}{self._name(job)}"
        if action is FailureAction.RETRY:
            level = logging.WARNING if job.is_dead_letter else logging.INFO  # an attempt to write one takes up to 30 s
            log.log(level, "%s: attempt %d failed and will be retried: %r", where, tries, error)
        elif action is FailureAction.DEAD_LETTER:
            log.warning("%s: failed for the last time, after %d attempts: %r", where, tries, error)
        elif action is FailureAction.STOP:
            error.add_note(f"{where}: failed for the last time, after {tries} attempts, and ends run()")
        self._notify(news)
        return action is FailureAction.DEAD_LETTER

    def _place(self, job: Job[Record]) -> tuple[TopicPartition, int]:
        return TopicPartition(job.record.topic, job.record.partition), job.record.offset

    def _timeout_error(self, job: Job[Record]) -> TimeoutError:
        if not job.is_dead_letter:
            return super()._timeout_error(job)
        return TimeoutError(f"{self._name(job)}: dead_letter did not end within {self._calls.timeout} s (timeout)")

    def is_handler(self, job: Job[Record]) -> bool:
        return not job.is_dead_letter

    def _is_timed(self, job: Job[Record]) -> bool:
        """Writing a dead letter to a topic has a deadline of its own."""
        return not job.is_dead_letter or self.letters is None

    def _overran(self, overrun: Overrun[Job[Record]], now: float) -> str | None:
        call = overrun.call
        job = call.job
        if not overrun.is_news and job.hung_on is not call:
            return None  # the job has continued without it
        if overrun.is_final:
            self._scheduler.mark_hung(job, call)
            if not self._scheduler.is_ours(job):
                return "Its partition is no longer assigned, and another call may start."
            self._stuck.append(job)
            return "That is longer than max.poll.interval.ms: its partition is given up."
        error = self._timeout_error(job)
        action, _ = self._scheduler.overran(job, call, error)
        if action is not FailureAction.RETRY:
            call.forget_timeout()
        if action is FailureAction.STOP:
            error.add_note(f"{job.dead_letter_attempts or job.attempts} attempts have failed, and end run()")
            self._error = self._error or error
        return f"That is longer than timeout={self._calls.timeout}: {_NEXT[action]}."

    def _returned(self, call: HandlerCall[Job[Record]]) -> None:
        self._scheduler.returned(call.job, call, time.monotonic(), chance.random())

    def aborted(self, job: Job[Record], error: BaseException) -> None:
        with self._lock:
            self._scheduler.aborted(job)
            self._error = self._error or error
        self._notify(True)

    def _notify(self, has_news: bool) -> None:
        if has_news:
            self._buffer.poll_signal.notify()

    # -- the loop ----------------------------------------------------------------------------------------------

    def _round(self) -> Steps:
        if self._away_until is not None:
            yield from self._stay_away(self._away_until)
            return
        if self._waits:
            with self._lock:
                retry = self._scheduler.next_retry
            yield AwaitPollSignal(self._wait_time(retry, self._commit_due if self._commits_itself else None))
        self._waits = True
        if self._stop_asked:
            self._stop("a signal was received")
        room = self._room()
        records = Records.EMPTY
        try:
            records = yield from self._poll(room)
        finally:  # also if it raised: it may have changed the assignment before
            self._take_in(records)
            self._watch()
            self._check_stuck()
            self._delay_revokes()
        if self._commits_itself:
            yield from self._commit()
        if self._stuck:
            yield from self._leave_if_ready()
        self._report_progress()
        self.launch()
        has_room = self._room() > 0
        # Jobs that made room while the loop polled without any set the poll signal too early for the next wait.
        self._waits = not (records or self._gives_up or (has_room and not room))

    def _room(self) -> int:
        """For so many more records. For none while their outputs could not be written: they would pile up."""
        if self.transactions is not None and self.transactions.is_stalled:
            return 0
        with self._lock:
            return self._scheduler.room

    def _poll(self, room: int) -> Generator[Step, Any, Records]:
        with self._lock:
            full = self._scheduler.full_partitions()
        blocked = self._block(None if not room else full)
        try:
            # Without room, a partition that is assigned during this poll can deliver a record nevertheless.
            records: Records = yield Poll(max(1, room if self._limit < 0 else min(room, self._limit)))
        finally:
            if blocked:
                with self._buffer.lock:
                    for state in blocked:
                        state.blocked_by &= ~CROWDED
        return records

    def _block(self, partitions: Collection[TopicPartition] | None) -> list[PartitionState]:
        """Lets the next poll return no record of these partitions (None: of all), in either lane."""
        if partitions is not None and not partitions:
            return []
        with self._buffer.lock:
            found = [
                state
                for assignment in self._buffer.source.assignments
                for state in assignment
                if partitions is None or state.tp in partitions
            ]
            for state in found:
                state.blocked_by |= CROWDED
        return found

    def _take_in(self, records: Records) -> None:
        with self._buffer.lock:
            changes = self._buffer.assignments
            # A partition that is revoked and assigned again has another state.
            ownerships = (
                None if changes == self._seen_assignments else {each.tp: each for each in self._buffer.assignment}
            )
        if self._exactly_once is not None:
            self._exactly_once.take_in(records, ownerships)
        with self._lock:
            if ownerships is not None:
                self._seen_assignments = changes
                self._scheduler.keep(ownerships)
            for batch in records._batches:
                self._scheduler.add(TopicPartition(batch.topic, batch.partition), batch)

    def _hold(self, partitions: frozenset[TopicPartition]) -> None:
        """These partitions are revoked or lost, and the listener is called next: from now on no handler starts with
        their records. `_take_in` drops the records when the poll has ended."""
        self._held |= partitions
        with self._lock:
            self._scheduler.hold(self._held)

    def _delay_revokes(self) -> None:
        """KIP-983: a partition that the group revokes is given up as soon as none of its records is running."""
        asked = self._group.revocations.pending
        if not asked and not self._held and not self._leave_at:
            return
        with self._lock:
            self._scheduler.hold(asked | self._buffer.partitions() if self._stuck else asked)
            busy = self._scheduler.busy(asked)
        self._held = asked
        self._committed_for &= asked
        # With auto-commit, the poll that gives them up commits first.
        self._group.delay(asked - self._committed_for if self._commits_itself else busy)

    @property
    def _gives_up(self) -> bool:
        """Whether the next poll has a revoke to complete."""
        return bool(self._group.revocations.next or self._committed_for)

    def _commit(self) -> Steps:
        """Without auto-commit: once a second, and before partitions are given up."""
        transactions = self.transactions
        is_behind = transactions is not None and transactions.is_stalled
        with self._lock:
            idle = self._held - self._scheduler.busy(self._held)
            count = self._scheduler.handled + self._scheduler.dead_lettered
        now = time.monotonic()
        if not idle <= self._committed_for:
            if transactions is None or transactions.is_initialized:  # otherwise nothing can be committed soon
                try:
                    yield Commit(COMMIT_TIMEOUT)
                except CommitFailedError as error:
                    log.warning("the commit before a revoke failed: %s", error)
            self._committed_for = idle
        elif now >= self._commit_due:
            self._commit_due = now + (_STALLED_INTERVAL if is_behind else self._commit_interval)
            if count != self._committed or is_behind:
                self._committed = count
                yield Commit(None)

    # -- calls that do not end ---------------------------------------------------------------------------------

    def _check_stuck(self) -> None:
        """A stuck partition that the group revokes anyway is given up alone, without leaving the group."""
        if not self._stuck:
            self._leave_at = 0.0  # one round later, for `_delay_revokes`
            return
        with self._lock:
            self._stuck = [job for job in self._stuck if self._scheduler.is_ours(job)]
        if self._stuck and not self._leave_at:
            self._leave_at = time.monotonic() + self._drain

    def _leave_if_ready(self) -> Steps:
        """Commits and leaves the group, when the other calls have ended or `drain` seconds have passed."""
        with self._lock:
            is_too_soon = self._scheduler.running and time.monotonic() < self._leave_at
        if is_too_soon or self._scheduler.is_stopped:
            return
        try:
            yield Commit(COMMIT_TIMEOUT)  # the commit of unsubscribe() has less time
        except WakeupError:
            raise
        except HeadraceError as error:
            log.warning("the commit before leaving the group failed: %s", error)
        names = ", ".join(map(self._name, self._stuck))
        log.warning(
            "group %s: leaving it for %.1f s, so that other members get its partitions: the handler was called more "
            "than %s s (max.poll.interval.ms) ago with %s, and has not returned. Set run(timeout=…) below that, or "
            "raise max.poll.interval.ms",
            self._group.group_id,
            self._absence,
            self._calls.limit,
            names,
        )
        self._resubscribe = self._group.resubscription()
        yield Leave()
        self._away_until = time.monotonic() + self._absence
        self._stuck = []
        self._take_in(Records.EMPTY)

    def _stay_away(self, until: float) -> Steps:
        """Checks what a poll would check."""
        self._buffer.poll_signal.clear()
        self._guard.consume_wakeup()
        self._guard.check()
        if self._stop_asked:
            self._stop("a signal was received")
        self._watch()
        self._report_progress()
        if time.monotonic() >= until:
            self._come_back()
        else:
            yield AwaitPollSignal(self._wait_time(until))

    def _come_back(self) -> None:
        self._away_until = None
        resubscribe, self._resubscribe = self._resubscribe, None
        if resubscribe is not None and not self._guard.is_closed:
            resubscribe()

    def _finish(self) -> Steps:
        if self._away_until is None:
            yield from super()._finish()

    # -- the end -----------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Takes no lock, for signal handlers."""
        self._stop_asked = True
        self._buffer.poll_signal.notify()

    def _stop(self, why: str) -> None:
        with self._lock:
            is_news, self._scheduler.is_stopped = not self._scheduler.is_stopped, True
        if is_news:
            log.info("run() ends: %s", why)

    @property
    def _is_stopped(self) -> bool:
        return self._scheduler.is_stopped

    @property
    def running(self) -> int:
        return self._scheduler.running

    def _give_back(self) -> None:
        """Unfinished records are delivered again if the user continues with this consumer. An interrupt may have come
        before the scheduler got them."""
        unfinished = {
            tp
            for tp, ranges in self._completions.open_ranges().items()
            if not _lie_within(ranges, self._in_flight_before.get(tp, ()))
        }
        with self._lock:
            unfinished |= self._scheduler.unfinished()
            running = [job.record for job in self._calls.under_way() if self._scheduler.is_ours(job)]
        for tp in unfinished & self._buffer.partitions():
            done = self._completions.committable(tp)
            if done is not None:
                self._buffer.rewind(tp, done)
                if len(self._buffer.source.assignments) == 1:  # with two, only the tracker knows records after a gap
                    busy = {each.offset for each in running if (each.topic, each.partition) == tp}
                    self._completions.given_back(tp, busy)

    def end(self) -> None:
        with self._lock:
            self._scheduler.is_stopped = True
        self._group.before_listener = None
        with self._buffer.lock:  # a poll was interrupted
            for assignment in self._buffer.source.assignments:
                for state in assignment:
                    state.blocked_by &= ~CROWDED
        self._give_back()
        if self._exactly_once is not None:
            self._exactly_once.end()
        self._come_back()
        if self.letters is not None:
            self.letters.close()

    def progress(self) -> Progress:
        figures = self._metrics()
        lags = [each["lag"] for each in figures["partitions"].values()]
        if figures["backlog"] is not None:
            lags.append(figures["backlog"]["open"])
        is_known = bool(lags) and None not in lags
        with self._lock:
            work = self._scheduler
            return Progress(
                handled=work.handled,
                retried=work.retried,
                dead_lettered=work.dead_lettered,
                dropped=work.dropped,
                running=work.running,
                stuck=self._calls.abandoned,
                in_flight=work.in_flight,
                lag=sum(lags) + work.in_flight if is_known else None,
                seconds=time.monotonic() - self._began,
            )
