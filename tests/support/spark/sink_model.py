"""An in-memory model of exactly-once writes. Only the driver is real; brokers and tasks are models.

The transaction coordinator follows the table of EndTxn 5. A driver can be stopped before or after any request: killed,
with an error (Spark calls abort() and the query is restarted), or paused until another driver has finished.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.open_transaction import OpenTransaction, TransactionDescription
from headrace._protocol.codes import kafka_error
from headrace.errors import KafkaError, RequestTimeoutError
from headrace.spark.sink.exactly_once import ExactlyOnceDriver
from headrace.spark.sink.protocol import (
    BatchDecision,
    BatchPlan,
    TaskTransaction,
    decode_decision,
    encode_decision,
)
from headrace.spark.sink.verdicts import Batch, judge_batch

SINK = "sink"
QUERY = "query"
TIMEOUT_MS = 60_000
Row = tuple[Any, ...]
"""A batch, and one of its partitions; before them the query, if it is not QUERY."""


class KilledError(BaseException):
    """The driver's process ends here."""


@dataclasses.dataclass
class TransactionalId:
    producer_id: int
    epoch: int = 0
    state: str = "Empty"
    started_ms: int = -1
    rows: list[Any] = dataclasses.field(default_factory=list)


class Cluster:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.ids: dict[str, TransactionalId] = {}
        self.visible: list[Row] = []
        self.offsets: dict[int, str] = {}
        self.largest_part = 0

    def init(self, name: str) -> ProducerIdentity:
        found = self.ids.get(name)
        if found is None:
            found = self.ids[name] = TransactionalId(len(self.ids) + 1, epoch=-1)
        if found.state == "Ongoing":
            self._end(found, commits=False)
        found.epoch += 1
        found.state = "Empty"
        return ProducerIdentity(found.producer_id, found.epoch)

    def append(self, transaction: OpenTransaction, row: Any) -> None:
        found = self._check(transaction, ErrorCode.invalid_producer_epoch)
        if found.state != "Ongoing":
            found.state, found.started_ms = "Ongoing", self.now_ms
        found.rows.append(row)

    def _check(self, transaction: OpenTransaction, code: ErrorCode) -> TransactionalId:
        found = self.ids[transaction.transactional_id]
        if (found.producer_id, found.epoch) != transaction[1:]:
            raise kafka_error(code, "Produce")
        return found

    def end(self, transaction: OpenTransaction, *, commits: bool) -> ProducerIdentity:
        found = self.ids.get(transaction.transactional_id)
        if found is None or found.producer_id != transaction.producer_id:
            raise kafka_error(ErrorCode.invalid_producer_id_mapping, "EndTxn")
        same = "CompleteCommit" if commits else "CompleteAbort"
        if transaction.epoch == found.epoch:
            if found.state == "Ongoing":
                self._end(found, commits=commits)
            elif commits:
                raise kafka_error(ErrorCode.invalid_txn_state, "EndTxn")
            else:
                found.epoch += 1
                found.state = "CompleteAbort"
        elif transaction.epoch == found.epoch - 1 and found.state.startswith("Complete"):
            if found.state != same:
                raise kafka_error(ErrorCode.invalid_txn_state, "EndTxn")
        else:
            raise kafka_error(ErrorCode.producer_fenced, "EndTxn")
        return ProducerIdentity(found.producer_id, found.epoch)

    def _end(self, found: TransactionalId, *, commits: bool) -> None:
        if commits:
            for row in found.rows:
                if isinstance(row, dict):
                    self.offsets.update(row)
                else:
                    self.visible.append(row)
        found.rows = []
        found.epoch += 1
        found.state = "CompleteCommit" if commits else "CompleteAbort"

    def pass_time(self, milliseconds: int) -> None:
        """Abort transactions that exceed their timeout."""
        self.now_ms += milliseconds
        for found in self.ids.values():
            if found.state == "Ongoing" and found.started_ms + TIMEOUT_MS < self.now_ms:
                self._end(found, commits=False)

    def abort(self, name: str) -> None:
        """As if its transaction had exceeded its timeout."""
        self._end(self.ids[name], commits=False)

    def visible_of(self, query: str) -> list[Row]:
        return [row for row in self.visible if (row[0] if len(row) > 2 else QUERY) == query]

    def describe(self, name: str) -> TransactionDescription | None:
        found = self.ids.get(name)
        if found is None:
            return None
        return TransactionDescription(found.state, found.producer_id, found.epoch, found.started_ms, TIMEOUT_MS)

    def open_ids(self) -> list[str]:
        return sorted(name for name, found in self.ids.items() if found.state == "Ongoing")


class StoppableBrokers:
    """A `Coordination` that calls `at` before and after every request, with the name of the step."""

    def __init__(self, cluster: Cluster, at: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._at = at

    def _call(self, name: str, action: Callable[[], Any]) -> Any:
        self._at(f"before {name}")
        result = action()
        self._at(f"after {name}")
        return result

    def init(self, transactional_id: str) -> tuple[ProducerIdentity, int | None]:
        return self._call("init", lambda: self._cluster.init(transactional_id)), TIMEOUT_MS

    def latest_decision(self) -> BatchDecision | None:
        texts: list[str] = self._call("latest_decision", lambda: list(self._cluster.offsets.values()))
        return decode_decision(texts, SINK)

    def record(self, driver: OpenTransaction, decision: BatchDecision) -> ProducerIdentity:
        parts = encode_decision(decision, 200)
        self._cluster.largest_part = max(self._cluster.largest_part, *map(len, parts))
        self._call("commit offsets", lambda: self._cluster.append(driver, dict(enumerate(parts))))
        return self.end(driver, commits=True)

    def end(self, transaction: OpenTransaction, *, commits: bool) -> ProducerIdentity:
        found: ProducerIdentity = self._call("end", lambda: self._cluster.end(transaction, commits=commits))
        return found

    def end_all(
        self, transactions: Iterable[OpenTransaction], *, commits: bool
    ) -> Mapping[OpenTransaction, KafkaError | None]:
        found: dict[OpenTransaction, KafkaError | None] = {}
        for transaction in transactions:
            try:
                self.end(transaction, commits=commits)
                found[transaction] = None
            except KafkaError as error:
                found[transaction] = error
        return found

    def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription]:
        names = list(transactional_ids)
        found = self._call("describe", lambda: {name: self._cluster.describe(name) for name in names})
        return {name: each for name, each in found.items() if each is not None}

    def list_open(self, pattern: str) -> Sequence[str]:
        found: list[str] = self._call("list", self._cluster.open_ids)
        return [name for name in found if name.startswith(f"{SINK}-task-")]


class Worker:
    """A Python worker process with its ids and the last transaction of each, like `transactional_task.py`."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self._name = f"{number:016x}"
        self._slots: dict[str, tuple[ProducerIdentity, OpenTransaction]] = {}

    def write(self, plan: BatchPlan, batch: int, partition: int, query: str = QUERY) -> TaskTransaction | None:
        if not judge_batch(plan.decided, Batch(query, batch), SINK):
            return None
        name = self._free(plan)
        transaction = OpenTransaction(name, *self._cluster.init(name))
        self._slots[name] = plan.driver, transaction
        self._cluster.append(transaction, (batch, partition) if query == QUERY else (query, batch, partition))
        return TaskTransaction(transaction, partition, 1)

    def _free(self, plan: BatchPlan) -> str:
        for name, (used_in, transaction) in self._slots.items():
            found = self._cluster.describe(name)
            if used_in != plan.driver and (found is None or not found.has_open(transaction)):
                return name
        return f"{SINK}-task-{self._name}-{len(self._slots)}"


class Query:
    """A checkpoint, and drivers that run from it one after the other or concurrently."""

    def __init__(self, partitions: int = 3, name: str = QUERY, cluster: Cluster | None = None) -> None:
        self.cluster = cluster or Cluster()
        self.name = name
        self.partitions = partitions
        self.committed = 0
        """The number of batches in Spark's commit log."""
        self._workers = 0

    def drive(self, batches: int, at: Callable[[str], None]) -> None:
        """Run until this number of batches is committed. `at` may raise KilledError or an error that Spark handles.
        Each driver has two worker processes."""
        workers = [self._worker(), self._worker()]
        driver = ExactlyOnceDriver(SINK, StoppableBrokers(self.cluster, at), lambda: self.cluster.now_ms)
        while self.committed < batches:
            batch = self.committed
            plan = driver.plan()
            if self.partitions:  # a failed or speculative attempt, which Spark does not count
                workers[batch % 2].write(plan, batch, 0, self.name)
            at("task")
            written = [workers[number % 2].write(plan, batch, number, self.name) for number in range(self.partitions)]
            tasks = [task for task in written if task is not None]
            at("before commit")
            try:
                driver.commit(plan, Batch(self.name, batch), tasks)
            except Exception:
                driver.abort(plan, tasks)
                raise
            at("before the commit log")
            self.committed = max(self.committed, batch + 1)

    def _worker(self) -> Worker:
        self._workers += 1
        return Worker(self.cluster, self._workers)

    def finish(self, batches: int) -> None:
        """Run a driver without stopping it."""
        self.drive(batches, lambda step: None)

    def visible_of(self, batch: int) -> int:
        """The number of visible rows of a batch."""
        return sum(row[0] == batch for row in self.cluster.visible)

    def check(self, batches: int) -> None:
        wanted = [(batch, number) for batch in range(batches) for number in range(self.partitions)]
        assert sorted(self.cluster.visible) == wanted
        assert self.cluster.open_ids() == [], "readers would wait for open transactions"


class StopAt:
    """Stops a driver at the n-th step."""

    def __init__(self, number: int, stop: Callable[[str], None]) -> None:
        self._left = number
        self._stop = stop
        self.step: str | None = None

    def __call__(self, step: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.step = step
            self._stop(step)


def kill(step: str) -> None:
    raise KilledError(step)


def fail(step: str) -> None:
    raise RequestTimeoutError(step)
