"""What an exactly-once write does with what it has found out. Tables, without I/O.

**The latest decision** (`judge_found`). A decision is absent only if that is proven: brokers leave topics out of a
response that a client may not read. A group exists as long as it has an offset of any topic, visible or not.

    decision found    under the topic   the topic        the group   brokers       verdict
                      of the options    can be read      exists      check rights
    yes               yes               -                -           -             this one
    yes               no                -                -           -             refused: decisionTopic was changed
    no                -                 no               -           -             refused: the right to read is missing
    no                -                 yes              yes         yes           refused: one may be hidden
    no                -                 yes              yes         no            there is none
    no                -                 yes              no          -             there is none

**A batch** (`judge_batch`), of query q with number n, and `firstBatchId` f. Nobody else repeats a batch of q. So
batch n may be written if the latest decision is about the batch before it, or if there cannot be one.

    the latest decision is about      verdict
    nothing, or a job                 n = 0 or n = f: write. Otherwise refused: another sinkId has written the batches
                                      before, or their decisions have expired
    another query                     refused: a sinkId belongs to one query
    (q, n)                            write nothing: Spark repeats a batch that was written
    (q, n), in this run of q          refused: foreachBatch writes twice with one sinkId
    (q, n - 1)                        write
    (q, m), m < n - 1                 n = f: write. Otherwise refused: another sinkId has written the batches between
    (q, m), m > n                     refused: the checkpoint is older than the topic

**A job** (`check_job`): refused if the latest decision is about a query, which would no longer find it. Otherwise it is
written: no one repeats a job.

**The transactions of a decision that is not complete** (`should_commit`, `judge_ends`). Each is open, committed,
aborted, or unknown: its transactional id was used again, or has expired.

    first: described as       then: EndTxn   and the results      verdict
    none aborted              commit         all committed        the batch is complete
                                             all aborted          withdrawn: no row is visible, the batch is repeated
                                             anything else        lost: the batch is visible in part
    some aborted, and none    abort          all aborted          withdrawn
    committed or unknown                     anything else        lost
    some aborted, and some    commit         anything             lost
    committed or unknown

A transaction that has ended stays as it is, so that every driver finds the same result. The descriptions only choose
between two ways that are both safe: the results of EndTxn count.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from ..._machines.produce.open_transaction import OpenTransaction, TransactionDescription
from ...errors import KafkaError
from .protocol import BatchDecision, SinkError, TaskTransaction, decode_decision, latest_part

# -- the latest decision ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class FoundDecisions:
    """What brokers have answered. The other fields are known only if there is no text."""

    texts: Mapping[str, tuple[str, ...]]
    """The metadata of the offsets that are visible, by topic."""
    can_read_topic: bool = True
    group_exists: bool = False
    checks_rights: bool = True
    """Without an authorizer, brokers hide nothing."""


def judge_found(found: FoundDecisions, sink_id: str, topic: str) -> BatchDecision | None:
    """The latest decision, or None if there cannot be one. `topic` is the one of the options."""
    decided = decode_decision([text for texts in found.texts.values() for text in texts], sink_id)
    if decided is not None:
        holder = latest_part(found.texts)
        if holder != topic:
            raise SinkError(
                f"The decisions of sinkId={sink_id!r} are stored under the topic {holder}, but the decisionTopic is "
                f"{topic}. Set decisionTopic={holder}. To move them, see 'Change the sinkId' in docs/spark.md"
            )
        return decided
    if not found.can_read_topic:
        way_out = (
            "Do not change the decisionTopic: the decisions are stored under the former one"
            if found.group_exists
            else "Or set decisionTopic to a topic that it may read: there is no decision yet"
        )
        raise SinkError(
            f"Cannot read the decisions of sinkId={sink_id!r}: this client is not allowed to read the topic {topic}, "
            f"and brokers show only offsets of topics that it may read. Nothing was aborted. Allow it Read on the "
            f"topic {topic}. {way_out}"
        )
    if found.group_exists and found.checks_rights:
        raise SinkError(
            f"Cannot read the decisions of sinkId={sink_id!r}: the group {sink_id} exists, but none of its offsets is "
            f"visible. Nothing was aborted. If the decisions are stored under another topic than {topic} "
            f"(__consumer_offsets, or a former decisionTopic), set decisionTopic to it, and allow this client Read on "
            f"it. If no batch was ever written with this sinkId, or its decisions have expired, brokers remove the "
            f"group within 10 minutes (offsets.retention.check.interval.ms). Then restart the query"
        )
    return None


# -- batches and jobs ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch of a query. `query` is the id in its checkpoint."""

    query: str
    number: int
    run: str | None = None
    """Of the query, since its last start. Only known in foreachBatch, and only needed there."""


def covers(decided: BatchDecision | None, batch: Batch) -> bool:
    return decided is not None and (decided.query, decided.batch) == (batch.query, batch.number)


def judge_batch(decided: BatchDecision | None, batch: Batch, sink_id: str, first_batch: int | None = None) -> bool:
    """Whether the tasks of the batch write their rows. Raises SinkError if nothing can be written."""
    number = batch.number
    if decided is None or decided.is_job:
        if number in (0, first_batch):
            return True
        raise SinkError(
            f"Batch {number} cannot be written exactly once: sinkId={sink_id!r} has no decision about the batches "
            f"before it. If they were written with another sinkId, set that one again. {_how_to_start(batch)}"
        )
    if decided.query != batch.query:
        raise SinkError(
            f"sinkId={sink_id!r} belongs to another query, {decided.query}, which has written batch {decided.batch}; "
            f"this query is {batch.query} (see the file metadata of its checkpoint). Set another sinkId. If the other "
            f"query is running, it may have stopped with an error: restart it. If it has ended for good, this query "
            f"can have its sinkId: delete the group {sink_id}, which has the decisions (headrace groups delete)"
        )
    if decided.batch > number:
        raise SinkError(
            f"Batch {number} cannot be written: batch {decided.batch} of the same query was written already, so the "
            f"checkpoint is an old copy. Restore the current checkpoint, or set another sinkId and "
            f"firstBatchId={number} to write these batches again"
        )
    if decided.batch == number:
        if batch.run is not None and batch.run == decided.run:
            raise SinkError(
                f"foreachBatch has already written batch {number} with sinkId={sink_id!r}. Each write of the function "
                f"needs a sinkId of its own"
            )
        return False
    if decided.batch == number - 1 or number == first_batch or not decided.is_gapless:
        return True
    raise SinkError(
        f"Batch {number} cannot be written exactly once: the latest decision of sinkId={sink_id!r} is about batch "
        f"{decided.batch}. If the batches between were written with another sinkId, set that one again. "
        f"{_how_to_start(batch)}"
    )


def _how_to_start(batch: Batch) -> str:
    skipped = "If the function of foreachBatch has not written them, let it write every batch, also one without rows. "
    return (
        f"{'' if batch.run is None else skipped}If they were written without exactlyOnce, or their decisions have "
        f"expired, and no row of batch {batch.number} was written yet, set firstBatchId={batch.number}"
    )


def check_job(decided: BatchDecision | None, sink_id: str) -> None:
    """Raises SinkError if a job may not use the sinkId."""
    if decided is not None and not decided.is_job:
        raise SinkError(
            f"sinkId={sink_id!r} belongs to the query {decided.query}, which has written batch {decided.batch}. Set "
            f"another sinkId. In foreachBatch, set the option batchId"
        )


# -- the transactions of a decision ----------------------------------------------------------------------------------


class State(enum.Enum):
    OPEN = enum.auto()
    COMMITTED = enum.auto()
    ABORTED = enum.auto()
    UNKNOWN = enum.auto()


class CompletionVerdict(enum.Enum):
    COMPLETE = enum.auto()
    WITHDRAWN = enum.auto()
    LOST = enum.auto()


_ENDED = {
    "PrepareCommit": State.COMMITTED,
    "CompleteCommit": State.COMMITTED,
    "PrepareAbort": State.ABORTED,
    "CompleteAbort": State.ABORTED,
}


def described_state(transaction: OpenTransaction, found: TransactionDescription | None) -> State:
    if found is None:
        return State.UNKNOWN
    if found.has_open(transaction):
        return State.OPEN
    # The end of a transaction raises the epoch by one.
    if (found.producer_id, found.epoch) == (transaction.producer_id, transaction.epoch + 1):
        return _ENDED.get(found.state, State.UNKNOWN)
    return State.UNKNOWN


def ended_state(error: KafkaError | None, *, commits: bool) -> State:
    """After EndTxn, with this error of `NOT_OPEN`, or none."""
    if error is None:
        return State.COMMITTED if commits else State.ABORTED
    if error.code == ErrorCode.invalid_txn_state:  # it has ended with the other result
        return State.ABORTED if commits else State.COMMITTED
    return State.UNKNOWN


def should_commit(decided: BatchDecision, described: Mapping[str, TransactionDescription]) -> bool:
    """Whether EndTxn commits the transactions, or aborts them because the decision cannot be carried out any more."""
    states = {
        described_state(each.transaction, described.get(each.transaction.transactional_id))
        for each in decided.transactions
    }
    return State.ABORTED not in states or not states.isdisjoint({State.COMMITTED, State.UNKNOWN})


def judge_ends(states: Iterable[State]) -> CompletionVerdict:
    """What has become of the batch, by the states after EndTxn."""
    found = set(states)
    if found <= {State.COMMITTED}:
        return CompletionVerdict.COMPLETE
    return CompletionVerdict.WITHDRAWN if found == {State.ABORTED} else CompletionVerdict.LOST


def lost_text(decided: BatchDecision, ends: Mapping[TaskTransaction, State]) -> str:
    lost = [task for task in decided.transactions if ends[task] is not State.COMMITTED]
    details = [
        f"{task.rows} rows of task {task.partition} ({'aborted' if ends[task] is State.ABORTED else 'state unknown'})"
        for task in lost
    ]
    return (
        f"Batch {decided.batch} of query {decided.query} is written only in part: {len(lost)} of its "
        f"{len(decided.transactions)} transactions were aborted before the driver could commit them, because it was "
        f"unavailable for longer than kafka.transaction.timeout.ms. Missing: {shortened(details)}. The query does not "
        f"continue with this sinkId. See 'Lost transactions' in docs/spark.md"
    )


_SHOWN = 20


def shortened(texts: list[str]) -> str:
    rest = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + rest
