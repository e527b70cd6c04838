"""The loop of `run()`: a member of a group that works on records concurrently. The logic of both consumers.

The workload (a machine) decides what is worked on; `run_loop.py` says who calls what.

- poll() never waits. A rest is a wait for the doorbell, which rings for records and for news of the group; jobs ring it
  when there is room again, when a partition has come to rest, and when something has failed.
- Partitions that should deliver nothing are silent for the length of a poll, and poll() goes on being called.
- A record is marked as done before its job is over, so a partition that is at rest can be committed.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Generator
from typing import TYPE_CHECKING, Any

from ..dead_letters import DeadLetterTopic
from ..errors import CommitFailedError, ConfigError, StateError
from ..machines.partition import CROWDED, PartitionState
from ..machines.workload import Job, Verdict, Workload
from ..records import Record, Records
from ..types import TopicPartition
from .run_loop import COMMIT_TIMEOUT, Commit, Poll, Rest, RunLoop, Step, Steps
from .run_settings import Handler, Progress, RunSettings

if TYPE_CHECKING:
    from .consumer import AsyncConsumer

log = logging.getLogger(__name__)

_COMMIT_INTERVAL = 1.0  # where auto-commit is off


class Run(RunLoop[Job[Record], Progress]):
    def __init__(
        self,
        consumer: AsyncConsumer,
        handler: Handler,
        settings: RunSettings,
        launch: Callable[[Job[Record]], None],
    ) -> None:
        super().__init__(consumer._intake.doorbell, settings, launch)
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
        self._handler = handler
        self._dead_letter = settings.dead_letter
        self._limit = config.max_poll_records
        self._commits_itself = not config.enable_auto_commit
        self._workload: Workload[Record] = Workload(settings.terms())
        self._stop_asked = False
        self._seen_assignments = -1
        self._held: frozenset[TopicPartition] = frozenset()  # what is asked back ...
        self._committed_for: frozenset[TopicPartition] = frozenset()  # ... and was committed when at rest
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
        with self._lock:
            self._workload.broke_off(job)
            self._error = self._error or error
        self._ring(True)

    def _ring(self, has_news: bool) -> None:
        if has_news:
            self._intake.doorbell.ring()

    # -- the loop ----------------------------------------------------------------------------------------------

    def _round(self) -> Steps:
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
            self._delay_revokes()
        if self._commits_itself:
            yield from self._commit()
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
                yield Commit(COMMIT_TIMEOUT)
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
                in_flight=work.in_flight,
                lag=sum(lags) + work.in_flight if is_known else None,
                seconds=time.monotonic() - self._began,
            )
