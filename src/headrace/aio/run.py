"""The loop of `run()`: a member of a group that works on records concurrently. The logic of both consumers.

The workload (a machine) decides what is worked on; `run_loop.py` says who calls what.

- poll() never waits. A rest is a wait for the doorbell, which rings for records and for news of the group; jobs ring it
  when there is room again, when a partition has come to rest, and when something has failed.
- Partitions that should deliver nothing are silent for the length of a poll, and poll() goes on being called.
- A record is marked as done before its job is over, so a partition that is at rest can be committed.
- run() polls on its own, so polls do not prove that the user makes progress: calls do. A call that takes longer than
  max.poll.interval.ms makes the member leave its group, for session.timeout.ms, so that others get its partitions. No
  protocol lets a member hand back a single partition: a rebalance with it would give it the same one again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Generator
from typing import TYPE_CHECKING, Any

from ..arguments import function_of
from ..config import ConsumerConfig
from ..dead_letters import DeadLetterTopic
from ..errors import CommitFailedError, ConfigError, HeadraceError, StateError, WakeupError
from ..machines.calls import Call, Overrun
from ..machines.partition import CROWDED, PartitionState
from ..machines.workload import Job, Verdict, Workload
from ..records import Record, Records
from ..types import TopicPartition
from .run_loop import COMMIT_TIMEOUT, Commit, Leave, Poll, Rest, RunLoop, Step, Steps
from .run_settings import Handler, Progress, RunSettings

if TYPE_CHECKING:
    from .consumer import AsyncConsumer

log = logging.getLogger(__name__)

_COMMIT_INTERVAL = 1.0  # where auto-commit is off
_NEXT = {
    Verdict.AGAIN: "it counts as failed, and is tried again when this call has ended",
    Verdict.BURY: "it has failed for good, and its dead letter is written",
    Verdict.STUCK: "it has failed for good, and ends run()",
    Verdict.DROPPED: "its partition is not here any more, and its place is free now",
}


def _absence(config: ConsumerConfig) -> float:
    """How long a member stays out of its group so that others get what it had. Not for less than it takes them to hear
    of it: a rebalance with this member would give it the same again."""
    session = config.session_timeout_ms / 1000
    if config.group_instance_id is not None:
        # Its place is kept for the session timeout, from its last heartbeat on.
        return session + config.heartbeat_interval_ms / 1000
    return min(session, config.max_poll_interval_ms / 1000)


class Run(RunLoop[Job[Record], Progress]):
    def __init__(
        self,
        consumer: AsyncConsumer,
        handler: Handler,
        settings: RunSettings,
        launch: Callable[[Job[Record]], None],
    ) -> None:
        config = consumer._config
        super().__init__(consumer._intake.doorbell, settings, config.max_poll_interval_ms / 1000, launch)
        if consumer._completions is None:
            raise ConfigError("run() needs commit.mode=done: commits follow what the handler is done with")
        if not consumer._is_subscribed:
            raise StateError("run() works as a member of a group: call subscribe() before it")
        assert consumer._group is not None
        self._consumer = consumer
        self._intake = consumer._intake
        self._group = consumer._group
        self._completions = consumer._completions
        self._handler = function_of("handler", handler)
        self._dead_letter = settings.dead_letter
        self._limit = config.max_poll_records
        self._commits_itself = not config.enable_auto_commit
        self._workload: Workload[Record] = Workload(settings.terms())
        self._stop_asked = False
        self._seen_assignments = -1
        self._held: frozenset[TopicPartition] = frozenset()  # what is asked back ...
        self._committed_for: frozenset[TopicPartition] = frozenset()  # ... and was committed when at rest
        self._stuck: list[Job[Record]] = []  # over max.poll.interval.ms, with partitions that are still here
        self._leave_at = 0.0  # until then the other calls may end
        self._absence = _absence(config)
        self._away_until: float | None = None
        self._resubscribe: Callable[[], None] | None = None
        self._rests = False  # before the next look
        self._commit_due = self._began + _COMMIT_INTERVAL
        self._committed = 0
        self.letters: DeadLetterTopic | None = None
        if isinstance(settings.dead_letter, str):
            servers = (
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in config.bootstrap_servers
            )
            self.letters = DeadLetterTopic(settings.dead_letter, ",".join(servers), self._group.group_id, config)

    # -- jobs: on any thread -----------------------------------------------------------------------------------

    def take(self) -> Job[Record] | None:
        with self._lock:
            return self._workload.start(time.monotonic())

    def call(self, job: Job[Record]) -> Any:
        if not job.is_burying:
            return self._handler(job.record)
        assert job.error is not None
        if self.letters is not None:
            return self.letters.write(job.record, job.error, job.attempts)
        assert callable(self._dead_letter)
        return self._dead_letter(job.record, job.error)

    def succeeded(self, job: Job[Record], result: Any) -> None:
        if self._workload.is_ours(job):
            self._completions.done(job.record)
        with self._lock:
            news = self._workload.succeeded(job)
        self._ring(news)

    def failed(self, job: Job[Record], error: BaseException) -> bool:
        """It goes on with the writing of its dead letter."""
        what = "the dead letter of " if job.is_burying else ""
        with self._lock:
            verdict, news = self._workload.failed(job, error, time.monotonic(), random.random())
            if verdict is Verdict.STUCK and self._error is None:
                self._error = error
        tries = job.burials or job.attempts
        where = f"{what}{self._name(job)}"
        if verdict is Verdict.AGAIN:
            log.info("%s: attempt %d failed, there will be another one: %r", where, tries, error)
        elif verdict is Verdict.BURY:
            log.warning("%s: failed for good after %d attempts: %r", where, tries, error)
        elif verdict is Verdict.STUCK:
            error.add_note(f"{where}: failed for good after {tries} attempts, and ends run()")
        self._ring(news)
        return verdict is Verdict.BURY

    def _name(self, job: Job[Record]) -> str:
        return f"{job.record.topic}-{job.record.partition}, offset {job.record.offset}"

    def _timeout_error(self, job: Job[Record]) -> TimeoutError:
        if not job.is_burying:
            return super()._timeout_error(job)
        return TimeoutError(f"{self._name(job)}: dead_letter did not end within {self._calls.timeout} s (timeout)")

    def _is_timed(self, job: Job[Record]) -> bool:
        """The writing of a dead letter to a topic has a deadline of its own."""
        return not job.is_burying or self.letters is None

    def _overran(self, overrun: Overrun[Job[Record]], now: float) -> str | None:
        call = overrun.call
        job = call.job
        if not overrun.is_news and job.hung_on is not call:
            return None  # the job has gone on without it
        if overrun.is_final:
            self._workload.hangs(job, call)
            if not self._workload.is_ours(job):
                return "Its partition is not here any more, and its place is free now."
            self._stuck.append(job)
            return "That is longer than max.poll.interval.ms: its partition is given up."
        error = self._timeout_error(job)
        verdict, _ = self._workload.overran(job, call, error)
        if verdict is not Verdict.AGAIN:
            call.forget_timeout()
        if verdict is Verdict.STUCK:
            error.add_note(f"{job.burials or job.attempts} attempts have failed, and end run()")
            self._error = self._error or error
        return f"That is longer than timeout={self._calls.timeout}: {_NEXT[verdict]}."

    def _returned(self, call: Call[Job[Record]]) -> None:
        self._workload.returned(call.job, call, time.monotonic(), random.random())

    def broke_off(self, job: Job[Record], error: BaseException) -> None:
        with self._lock:
            self._workload.broke_off(job)
            self._error = self._error or error
        self._ring(True)

    def _ring(self, has_news: bool) -> None:
        if has_news:
            self._intake.doorbell.ring()

    # -- the loop ----------------------------------------------------------------------------------------------

    def _round(self) -> Steps:
        if self._away_until is not None:
            yield from self._stay_away(self._away_until)
            return
        if self._rests:
            with self._lock:
                retry = self._workload.next_retry
            yield Rest(self._resting_time(retry, self._commit_due if self._commits_itself else None))
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
            self._watch()
            self._look_for_stuck()
            self._delay_revokes()
        if self._commits_itself:
            yield from self._commit()
        if self._stuck:
            yield from self._leave_if_ready()
        self._tell_progress()
        self.launch()
        with self._lock:
            has_room = self._workload.room > 0
        # Room that came while the poll was made without any would be overlooked: the bell has rung before it.
        self._rests = not (records or self._gives_up or (has_room and not room))

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
                        state.silence &= ~CROWDED
        return records

    def _silence(self, partitions: Collection[TopicPartition] | None) -> list[PartitionState]:
        """Has nothing of these (None: of all) handed out, of neither lane."""
        if partitions is not None and not partitions:
            return []
        with self._intake.lock:
            found = [
                state
                for lane in self._intake.lanes
                for state in lane.assignment
                if partitions is None or state.tp in partitions
            ]
            for state in found:
                state.silence |= CROWDED
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
        if not asked and not self._held and not self._leave_at:
            return
        with self._lock:
            self._workload.hold(asked | self._intake.partitions() if self._stuck else asked)
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
                yield Commit(COMMIT_TIMEOUT)
            except CommitFailedError as error:
                log.warning("the commit before a revoke failed: %s", error)
            self._committed_for = at_rest
        elif now >= self._commit_due:
            self._commit_due = now + _COMMIT_INTERVAL
            if count != self._committed:
                self._committed = count
                yield Commit(None)

    # -- calls that do not end ---------------------------------------------------------------------------------

    def _look_for_stuck(self) -> None:
        """A partition that the group asks back anyway is given up by that, alone."""
        if not self._stuck:
            self._leave_at = 0.0  # a round later, for `_delay_revokes`
            return
        with self._lock:
            self._stuck = [job for job in self._stuck if self._workload.is_ours(job)]
        if self._stuck and not self._leave_at:
            self._leave_at = time.monotonic() + self._drain

    def _leave_if_ready(self) -> Steps:
        """When the other calls have ended, or were waited for long enough: what is done is committed."""
        with self._lock:
            is_too_soon = self._workload.running and time.monotonic() < self._leave_at
        if is_too_soon or self._workload.is_stopped:
            return
        try:
            yield Commit(COMMIT_TIMEOUT)  # the one that comes with leaving has less time
        except WakeupError:
            raise
        except HeadraceError as error:
            log.warning("the commit before leaving the group failed: %s", error)
        names = ", ".join(map(self._name, self._stuck))
        log.warning(
            "group %s: leaving it for %.1f s, so that others get its partitions: the handler was called more than %s s "
            "(max.poll.interval.ms) ago with %s, and has not ended in time. Set run(timeout=…) below that, or raise "
            "max.poll.interval.ms",
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
        """What a poll would look for is looked for here."""
        self._intake.doorbell.clear()
        self._consumer._gate.consume_wakeup()
        self._consumer._gate.check()
        if self._stop_asked:
            self._stop("a signal came")
        self._watch()
        self._tell_progress()
        if time.monotonic() >= until:
            self._come_back()
        else:
            yield Rest(self._resting_time(until))

    def _come_back(self) -> None:
        self._away_until = None
        resubscribe, self._resubscribe = self._resubscribe, None
        if resubscribe is not None and not self._consumer._gate.is_closed:
            resubscribe()

    def _finish(self) -> Steps:
        if self._away_until is None:
            yield from super()._finish()

    # -- the end -----------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Takes no lock, for signal handlers."""
        self._stop_asked = True
        self._intake.doorbell.ring()

    def _stop(self, why: str) -> None:
        with self._lock:
            is_news, self._workload.is_stopped = not self._workload.is_stopped, True
        if is_news:
            log.info("run() ends: %s", why)

    @property
    def _is_stopped(self) -> bool:
        return self._workload.is_stopped

    @property
    def running(self) -> int:
        return self._workload.running

    def _give_back(self) -> None:
        """What was delivered and is not done is delivered again, should this consumer go on."""
        with self._lock:
            unfinished = self._workload.unfinished()
        for tp in unfinished & self._intake.partitions():
            done = self._completions.committable(tp)
            if done is not None:
                self._intake.rewind(tp, done)

    def end(self) -> None:
        with self._lock:
            self._workload.is_stopped = True
        self._come_back()
        if self.letters is not None:
            self.letters.close()

    def progress(self) -> Progress:
        figures = self._consumer.metrics()
        lags = [each["lag"] for each in figures["partitions"].values()]
        if figures["backlog"] is not None:
            lags.append(figures["backlog"]["open"])
        is_known = bool(lags) and None not in lags
        with self._lock:
            work = self._workload
            return Progress(
                handled=work.handled,
                retried=work.retried,
                dead_lettered=work.buried,
                dropped=work.dropped,
                running=work.running,
                stuck=self._calls.abandoned,
                in_flight=work.in_flight,
                lag=sum(lags) + work.in_flight if is_known else None,
                seconds=time.monotonic() - self._began,
            )
