"""The writers that Spark calls: `write` in tasks, `commit` and `abort` on the driver.

Spark creates a data source on the driver for each micro-batch, calls its streamWriter(), and sends the writer to the
tasks. For commit() and abort() it unpickles a data source in another process, and calls streamWriter() again. So a
stream's writer has no state from write() to commit(): all of it is in the messages of the tasks. The writer of a batch
job is created once, and the same object is sent to the tasks and used for commit().
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ..error_boundary import sink_boundary
from ..options.parsers import OptionError
from ..options.sink import SinkOptions
from ..versions import DataSourceStreamArrowWriter
from ..worker.pickling import reduce_for_worker
from .brokers import BrokerCoordination
from .encoding import RowEncoder
from .exactly_once import ExactlyOnceDriver
from .protocol import JOB, BatchPlan, SinkError, TaskTransaction
from .task import borrow_producer, write_rows
from .transactional_task import write_in_transaction
from .verdicts import Batch, judge_batch

if TYPE_CHECKING:
    import pyarrow

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_JOB_GROUP = "spark.jobGroup.id"


@dataclasses.dataclass
class WrittenRows(WriterCommitMessage):
    """The message of a task whose rows are all delivered, or are those of a batch that was decided before."""

    rows: int
    plan: BatchPlan | None = None
    batch: Batch | None = None
    task: TaskTransaction | None = None


def plan_batch(options: SinkOptions, *, is_job: bool) -> BatchPlan | None:
    """On the driver, before the tasks start. None if writes are at least once. `is_job`: not a micro-batch, except by
    the option batchId."""
    if options.sink_id is None:
        return None
    if options.batch_id is not None:
        if not is_job:
            raise OptionError("batchId is for the writes of foreachBatch. Remove it: writeStream numbers its batches")
        is_job = False
    elif is_job and options.first_batch_id is not None:
        raise OptionError("firstBatchId needs batchId: this write is no batch of a query")
    with _driver(options) as driver:
        return driver.plan(f"{JOB}{uuid.uuid4()}" if is_job else None)


@sink_boundary
class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, rows: RowEncoder, plan: BatchPlan | None) -> None:
        self._options = options
        self._rows = rows
        self._plan = plan

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_for_worker(type(self), self._options, self._rows, self._plan)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        if self._plan is None:
            return WrittenRows(write_rows(iterator, self._options, self._rows))
        batch = Batch(self._plan.job, 0) if self._plan.job is not None else _batch_of_function(self._options)
        return _write(iterator, self._options, self._rows, self._plan, batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._plan is not None:
            _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._plan is not None:
            _abort(self._options, messages, self._plan)


@sink_boundary
class StreamWriter(DataSourceStreamArrowWriter):
    """`plan` is None on the driver for commit() and abort(), and if writes are at least once."""

    def __init__(self, options: SinkOptions, rows: RowEncoder, plan: BatchPlan | None) -> None:
        self._options = options
        self._rows = rows
        self._plan = plan

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_for_worker(type(self), self._options, self._rows, self._plan)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        if self._options.sink_id is None:
            return WrittenRows(write_rows(iterator, self._options, self._rows))
        batch = _batch_of_task()
        if self._plan is None or batch is None:
            raise SinkError("exactlyOnce=true does not work with this version of Spark: a task does not know its batch")
        return _write(iterator, self._options, self._rows, self._plan, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._options.sink_id is not None:
            _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._options.sink_id is not None:
            _abort(self._options, messages, None)


# -- exactly once ----------------------------------------------------------------------------------------------------


def _batch_of_task() -> Batch | None:
    """None if the task is not one of a streaming query."""
    context = TaskContext.get()
    assert context is not None
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    return None if query is None or batch is None else Batch(query, int(batch))


def _batch_of_function(options: SinkOptions) -> Batch:
    """In a task of a write in foreachBatch. The option is needed although tasks know their batch: a function that
    writes twice has to name two sinks, or its second write would be taken for a repetition."""
    batch = _batch_of_task()
    if batch is None:
        raise OptionError(
            "batchId is for writes in the function of foreachBatch. It does not work with Spark Connect, whose tasks "
            "do not know their query. Remove the option: every write then adds its rows"
        )
    if batch.number != options.batch_id:
        raise OptionError(
            f"batchId={options.batch_id} is not the number of this batch, {batch.number}. Set it to the second "
            f"argument of the function of foreachBatch"
        )
    context = TaskContext.get()
    assert context is not None
    return dataclasses.replace(batch, run=_run_id(context.getLocalProperty(_JOB_GROUP)))


def _run_id(job_group: str | None) -> str | None:
    """Spark uses the id of a query's run as its job group. A function may have set another one."""
    try:
        return str(uuid.UUID(job_group))
    except (ValueError, TypeError, AttributeError):
        return None


def _write(
    iterator: Iterator[pyarrow.RecordBatch], options: SinkOptions, rows: RowEncoder, plan: BatchPlan, batch: Batch
) -> WrittenRows:
    assert options.sink_id is not None
    is_job = plan.job is not None
    if not is_job and not judge_batch(plan.decided, batch, options.sink_id, options.first_batch_id):
        return WrittenRows(0, plan, batch)
    transaction, count = write_in_transaction(iterator, options, rows, plan)
    if transaction is None:
        return WrittenRows(0, plan, batch)
    context = TaskContext.get()
    assert context is not None
    return WrittenRows(count, plan, batch, TaskTransaction(transaction, context.partitionId(), count))


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = _written(messages)
    if len(written) < len(messages):
        raise SinkError("Spark commits a batch although a task has not reported its end")
    if not written:
        return
    first = written[0]
    if any((each.plan, each.batch) != (first.plan, first.batch) for each in written):
        raise SinkError("Spark commits tasks of different batches together")
    assert first.plan is not None
    assert first.batch is not None
    with _driver(options) as driver:
        driver.commit(first.plan, first.batch, [each.task for each in written if each.task is not None])


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], plan: BatchPlan | None) -> None:
    """Without a plan, no task has ended. The next batch aborts the transactions that they have left open."""
    written = _written(messages)
    plan = plan or next((each.plan for each in written), None)
    if plan is not None:
        with _driver(options) as driver:
            driver.abort(plan, [each.task for each in written if each.task is not None])


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenRows]:
    return [message for message in messages if isinstance(message, WrittenRows)]


@contextlib.contextmanager
def _driver(options: SinkOptions) -> Iterator[ExactlyOnceDriver]:
    assert options.sink_id is not None
    with borrow_producer(options.settings) as producer:
        coordination = BrokerCoordination(producer, options)
        yield ExactlyOnceDriver(options.sink_id, coordination, lambda: int(time.time() * 1000))
