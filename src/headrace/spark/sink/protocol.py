"""Exactly-once writes: the decision about a batch, and everything that depends on it. No I/O.

    task      writes its rows in a transaction, leaves it open, and reports it to the driver
    driver    checks that all of them are open, records the decision, ends them, and records that they have ended

The decision is the commit point: before it, all transactions of the batch are aborted; after it, all are committed.
It is recorded in Kafka, in a transaction of the driver, so that a newer driver fences an older one. Only the latest one
counts:

    sequence      number of the record: the highest one counts
    query, batch  the batch that it is about
    run           the run of the query, if a function of foreachBatch has written it
    is_complete   whether all its transactions are known to be committed; tasks start only afterwards
    transactions  those to commit, until it is complete
    is_gapless    whether every later batch is recorded, also without rows (not by 0.1.0)

A decision whose transactions were all aborted is withdrawn: replaced by a complete one about the batch before.
`verdicts.py` says what follows from a decision.

The record is text in the metadata of committed offsets, which are limited to 4096 bytes. A decision with many
transactions is split into parts, one for each partition of the topic under which it is committed.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence

from ..._machines.produce.idempotence import ProducerIdentity
from ..._machines.produce.open_transaction import OpenTransaction, TransactionDescription
from ...errors import HeadraceError

PART_SIZE = 4000
"""Bytes of one part. The limit of brokers is offset.metadata.max.bytes, 4096 by default."""
JOB = "job-"
"""How the name of a job begins, in the place of a query's id."""
_FORMAT = 1


class SinkError(HeadraceError):
    """An exactly-once write cannot continue. Nothing of the batch is visible to read_committed readers, unless the
    message says otherwise."""


class LostTransactionsError(SinkError):
    """Transactions of a batch that was decided were aborted before the driver could commit them."""


@dataclasses.dataclass(frozen=True, slots=True)
class TaskTransaction:
    """The open transaction of one task: the number of its partition of the DataFrame, and of its rows."""

    transaction: OpenTransaction
    partition: int
    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class BatchDecision:
    sequence: int
    query: str
    batch: int
    is_complete: bool
    transactions: tuple[TaskTransaction, ...] = ()
    run: str | None = None
    is_gapless: bool = True

    @property
    def is_job(self) -> bool:
        return self.query.startswith(JOB)

    def completed(self) -> BatchDecision:
        return BatchDecision(self.sequence + 1, self.query, self.batch, True, run=self.run)

    def withdrawn(self) -> BatchDecision:
        """The batch is written again, as if it had not been decided."""
        return BatchDecision(self.sequence + 1, self.query, self.batch - 1, True)


@dataclasses.dataclass(frozen=True, slots=True)
class BatchPlan:
    """The driver's state before the tasks of a batch start. All tasks, and commit(), use the same one."""

    driver: ProducerIdentity
    """Of the driver's transactional id. A newer plan, of any driver, fences it."""
    decided: BatchDecision | None
    timeout_ms: int | None
    """Of the transactions of tasks. None: they have no timeout (two-phase commit, KIP-939)."""
    job: str | None = None
    """A name of this write, if it is not a micro-batch of a query."""


# -- names -----------------------------------------------------------------------------------------------------------


def driver_transactional_id(sink_id: str) -> str:
    return f"{sink_id}-driver"


def task_transactional_id(sink_id: str, process: str, number: int) -> str:
    """`process` is a random name of the worker process, of 16 hexadecimal digits: no other process uses its ids."""
    return f"{sink_id}-task-{process}-{number}"


def task_id_pattern(sink_id: str) -> str:
    """Matches the ids of the tasks of this sink, and of no other one."""
    return f"{re.escape(sink_id)}-task-[0-9a-f]{{16}}-[0-9]+"


# -- questions -------------------------------------------------------------------------------------------------------


def find_unusable(
    transactions: Iterable[TaskTransaction],
    described: Mapping[str, TransactionDescription],
    now_ms: int,
    margin_ms: int,
) -> list[str]:
    """The reasons why a batch cannot be decided: transactions that are no longer open, or will time out too soon."""
    problems = []
    for task in transactions:
        found = described.get(task.transaction.transactional_id)
        if found is None or not found.has_open(task.transaction):
            state = "unknown" if found is None else f"{found.state}, epoch {found.epoch}"
            problems.append(f"the transaction of task {task.partition} is not open any more ({state})")
        elif found.started_ms + found.timeout_ms - now_ms < margin_ms:
            age = (now_ms - found.started_ms) / 1000
            problems.append(
                f"the transaction of task {task.partition} is open for {age:.0f} s, and ends after "
                f"{found.timeout_ms / 1000:.0f} s (kafka.transaction.timeout.ms)"
            )
    return problems


def find_orphans(
    described: Mapping[str, TransactionDescription], decided: BatchDecision | None
) -> list[OpenTransaction]:
    """Open transactions of tasks that no decision refers to: those of attempts that failed or were not needed."""
    needed = {task.transaction for task in decided.transactions} if decided is not None else set()
    found = [OpenTransaction(name, each.producer_id, each.epoch) for name, each in described.items() if each.is_open]
    return [each for each in found if each not in needed]


# -- the record ------------------------------------------------------------------------------------------------------


def encode_decision(decision: BatchDecision, part_size: int = PART_SIZE) -> list[str]:
    """The parts of the record. Only the first one has the query and the batch. The transactions are compressed."""
    entries = [[*task.transaction, task.partition, task.rows] for task in decision.transactions]
    data = base64.b64encode(zlib.compress(_dump(entries).encode())).decode() if entries else ""
    head: dict[str, object] = {"query": decision.query, "batch": decision.batch, "complete": decision.is_complete}
    if decision.is_gapless:
        head["gapless"] = True
    if decision.run is not None:
        head["run"] = decision.run
    chunks: list[str] = []
    while data or not chunks:
        # The number of parts is not known yet.
        room = part_size - len(_part(decision.sequence, 9999, 9999, {} if chunks else head, ""))
        assert room > 0
        chunks.append(data[:room])
        data = data[room:]
    return [
        _part(decision.sequence, number, len(chunks), {} if number else head, chunk)
        for number, chunk in enumerate(chunks)
    ]


def _part(sequence: int, number: int, count: int, head: Mapping[str, object], chunk: str) -> str:
    fields = {"headrace.sink": _FORMAT, "sequence": sequence, "part": number, "parts": count, **head}
    return _dump({**fields, "transactions": chunk})


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def decode_decision(texts: Sequence[str], sink_id: str) -> BatchDecision | None:
    """The latest decision of the parts that were found. Raises SinkError if they are not those of a sink."""
    found: dict[int, dict[int, dict[str, object]]] = {}
    for text in texts:
        part = _parse_part(text)
        if part is None:
            raise SinkError(
                f"sinkId={sink_id!r} is the name of a consumer group, which has committed offsets. Set another sinkId"
            )
        found.setdefault(int(str(part["sequence"])), {})[int(str(part["part"]))] = part
    if not found:
        return None
    sequence, parts = max(found.items())
    head = parts.get(0)
    if head is None or parts.keys() != set(range(int(str(head["parts"])))):
        raise SinkError(f"The decision of sinkId={sink_id!r} is incomplete: offsets of its group were deleted")
    data = "".join(str(parts[number]["transactions"]) for number in sorted(parts))
    entries = json.loads(zlib.decompress(base64.b64decode(data))) if data else []
    transactions = tuple(
        TaskTransaction(OpenTransaction(name, producer_id, epoch), partition, rows)
        for name, producer_id, epoch, partition, rows in entries
    )
    run = head.get("run")
    return BatchDecision(
        sequence,
        str(head["query"]),
        int(str(head["batch"])),
        head["complete"] is True,
        transactions,
        None if run is None else str(run),
        head.get("gapless") is True,
    )


def latest_part(texts: Mapping[str, Iterable[str]]) -> str:
    """The key of the text that has the latest decision, or a part of it."""

    def sequence(key: str) -> int:
        parts = [_parse_part(text) for text in texts[key]]
        return max((int(str(part["sequence"])) for part in parts if part is not None), default=-1)

    return max(texts, key=sequence)


def _parse_part(text: str) -> dict[str, object] | None:
    try:
        part = json.loads(text)
    except ValueError:
        return None
    if not isinstance(part, dict) or part.get("headrace.sink") != _FORMAT:
        return None
    return part
