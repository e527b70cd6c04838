"""Exactly-once writes on the driver: before the tasks of a batch start, when all have ended, and when some have failed.

    plan     fence older drivers; find the latest decision and complete it; abort orphaned transactions
    commit   check that all transactions are open; record the decision; commit them; record that; abort the others
    abort    make sure that the batch is not and will not be decided; then abort its transactions

`verdicts.py` says what follows from what a step has found out.

A driver may be killed after every step. DESIGN.md explains for each of them how the next plan recovers. Two rules
separate drivers that run at the same time:

- A decision is recorded in a transaction with the identity of the plan. A newer plan has raised its epoch, so the
  older driver's decision is refused. And a newer plan reads the latest decision after it has raised the epoch.
- Orphaned transactions are listed and described first. Then the driver checks that there is no newer plan. So they
  are not those of a newer driver's tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ..._machines.produce.idempotence import ProducerIdentity
from ..._machines.produce.open_transaction import NOT_OPEN, OpenTransaction, TransactionDescription
from ...errors import HeadraceError, KafkaError
from .protocol import (
    BatchDecision,
    BatchPlan,
    LostTransactionsError,
    SinkError,
    TaskTransaction,
    driver_transactional_id,
    find_orphans,
    find_unusable,
    task_id_pattern,
)
from .verdicts import (
    Batch,
    CompletionVerdict,
    check_job,
    covers,
    ended_state,
    judge_ends,
    lost_text,
    shortened,
    should_commit,
)

log = logging.getLogger(__name__)

_MARGIN_MS = 30_000


class Coordination(Protocol):
    """The driver's requests to brokers. Every call is retried until there is a response, or raises."""

    def init(self, transactional_id: str) -> tuple[ProducerIdentity, int | None]:
        """Fences older users of the id. Returns the identity, and the timeout of transactions that brokers accept; None
        if they accept transactions without one."""

    def latest_decision(self) -> BatchDecision | None:
        """None only if there is none. Raises SinkError if that is not certain."""

    def record(self, driver: OpenTransaction, decision: BatchDecision) -> ProducerIdentity:
        """Records the decision in a transaction. Returns the identity for the next one. Raises KafkaError, with one of
        `NOT_OPEN` if a newer driver has started."""

    def end(self, transaction: OpenTransaction, *, commits: bool) -> ProducerIdentity: ...

    def end_all(
        self, transactions: Iterable[OpenTransaction], *, commits: bool
    ) -> Mapping[OpenTransaction, KafkaError | None]: ...

    def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription]: ...

    def list_open(self, pattern: str) -> Sequence[str]: ...


class ExactlyOnceDriver:
    """`clock` returns milliseconds since 1970."""

    def __init__(self, sink_id: str, brokers: Coordination, clock: Callable[[], int]) -> None:
        self._sink_id = sink_id
        self._driver_id = driver_transactional_id(sink_id)
        self._brokers = brokers
        self._clock = clock

    def plan(self, job: str | None = None) -> BatchPlan:
        """`job` is the name of a write that is no batch of a query. Raises LostTransactionsError if the latest decision
        cannot be completed."""
        identity, timeout_ms = self._brokers.init(self._driver_id)
        decided = self._brokers.latest_decision()
        if job is not None:
            check_job(decided, self._sink_id)
        if decided is not None and not decided.is_complete:
            log.warning("Batch %d was decided, but not completed: it is completed now", decided.batch)
            decided, identity = self._complete(identity, decided)
        self._abort_orphans(identity, decided)
        return BatchPlan(identity, decided, timeout_ms, job)

    def commit(self, plan: BatchPlan, batch: Batch, tasks: Sequence[TaskTransaction]) -> None:
        """`tasks` are those with rows."""
        identity, decided = plan.driver, plan.decided
        if not covers(decided, batch):
            self._check(tasks)
            sequence = 1 if plan.decided is None else plan.decided.sequence + 1
            # A batch without rows is recorded as well: the next one must find a decision about the batch before it.
            decided = BatchDecision(sequence, batch.query, batch.number, not tasks, tuple(tasks), batch.run)
            identity = self._record(identity, decided)
            if tasks:
                decided, identity = self._complete(identity, decided)
        self._abort_orphans(identity, decided)
        if not covers(decided, batch):
            raise SinkError(
                f"Batch {batch.number} cannot be committed, and none of its rows is visible: its transactions were "
                f"aborted meanwhile, because the driver was unavailable for longer than kafka.transaction.timeout.ms. "
                f"Restart the query: it writes the batch again"
            )

    def abort(self, plan: BatchPlan, tasks: Iterable[TaskTransaction]) -> None:
        """Does nothing if the batch was decided, or if a newer driver has started, which then does the rest."""
        # Ends the transaction of a decision that was not recorded. Afterwards it can no longer be recorded, even if a
        # request of commit() is still in flight.
        try:
            identity = self._brokers.end(self._transaction(plan.driver), commits=False)
        except KafkaError as error:
            if error.code not in NOT_OPEN:
                raise
            log.info("The transactions of a failed batch are left to the next one: %s", error)
            return
        self._brokers.end_all([task.transaction for task in tasks], commits=False)
        self._abort_orphans(identity, plan.decided)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _check(self, tasks: Sequence[TaskTransaction]) -> None:
        described = self._describe(tasks)
        timeout_ms = min((each.timeout_ms for each in described.values()), default=0)
        problems = find_unusable(tasks, described, self._clock(), min(_MARGIN_MS, timeout_ms // 4))
        if problems:
            raise SinkError(f"The batch cannot be committed, and none of its rows is visible: {shortened(problems)}")

    def _record(self, identity: ProducerIdentity, decision: BatchDecision) -> ProducerIdentity:
        try:
            return self._brokers.record(self._transaction(identity), decision)
        except KafkaError as error:
            raise SinkError(
                f"The decision to commit batch {decision.batch} was refused: {error}. If another query with "
                f"sinkId={self._sink_id!r} has started, stop one of them. Otherwise restart the query"
            ) from error

    def _complete(self, identity: ProducerIdentity, decided: BatchDecision) -> tuple[BatchDecision, ProducerIdentity]:
        """Commits the transactions of a decision, and records that they are committed. If they were aborted, and no row
        is visible, records that the decision is withdrawn."""
        commits = should_commit(decided, self._describe(decided.transactions))
        results = self._brokers.end_all([task.transaction for task in decided.transactions], commits=commits)
        ends = {task: ended_state(results[task.transaction], commits=commits) for task in decided.transactions}
        completion = judge_ends(ends.values())
        if completion is CompletionVerdict.LOST:
            raise LostTransactionsError(lost_text(decided, ends))
        if completion is CompletionVerdict.WITHDRAWN:
            log.warning("Batch %d was decided, but its transactions had ended: it is written again", decided.batch)
            decided = decided.withdrawn()
        else:
            decided = decided.completed()
        return decided, self._record(identity, decided)

    def _describe(self, tasks: Iterable[TaskTransaction]) -> Mapping[str, TransactionDescription]:
        return self._brokers.describe([task.transaction.transactional_id for task in tasks])

    def _abort_orphans(self, identity: ProducerIdentity, decided: BatchDecision | None) -> None:
        """If it fails, the next batch tries again. Until then, readers may have to wait, but their data is correct."""
        try:
            orphans = self._find_orphans(identity, decided)
            if orphans:
                log.info("Aborting %d transactions of attempts that failed or were not needed", len(orphans))
                self._brokers.end_all(orphans, commits=False)
        except HeadraceError as error:
            log.warning("Transactions of attempts that failed or were not needed are not aborted yet: %s", error)

    def _find_orphans(self, identity: ProducerIdentity, decided: BatchDecision | None) -> list[OpenTransaction]:
        listed = self._brokers.list_open(task_id_pattern(self._sink_id))
        if not listed:
            return []
        described = self._brokers.describe(listed)
        driver = self._brokers.describe([self._driver_id]).get(self._driver_id)
        if driver is None or (driver.producer_id, driver.epoch) != identity:
            return []  # there is a newer plan
        return find_orphans(described, decided)

    def _transaction(self, identity: ProducerIdentity) -> OpenTransaction:
        return OpenTransaction(self._driver_id, *identity)
