"""A task of an exactly-once write. It writes its rows in a transaction, and leaves the transaction open for the driver.

Transactional ids belong to a worker process, and no other process uses them. So an attempt that Spark considers dead
can neither abort nor fence the transaction of another attempt. With ids by partition and attempt it could, even after
the decision, because attempt numbers start again with every stage and every driver.

A worker runs many tasks, and uses an id again when its coordinator reports that the last transaction has ended. That
never happens within a batch: a process needs as many ids as it runs tasks of one batch. It keeps few producers.

An id is given up if its InitProducerId got no response. That request may still arrive, even after the decision, and
would abort the transaction.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..._machines.produce.idempotence import ProducerIdentity
from ..._machines.produce.open_transaction import OpenTransaction
from ...errors import HeadraceError, RequestTimeoutError
from ...sync.producer import Producer
from .. import producer_access
from ..options.sink import SinkOptions
from ..worker.tuning import exclude_modules_from_gc
from .encoding import RowEncoder
from .protocol import BatchPlan, task_transactional_id
from .task import discard_producer, send_rows

if TYPE_CHECKING:
    import pyarrow

_MAX_PRODUCERS = 4
_ABORT_TIMEOUT = 10.0
_MAX_IDS = 10  # of one task, if requests are lost


@dataclasses.dataclass(eq=False)
class TransactionSlot:
    """A transactional id of this process, and its last use. Its producer is closed if there are too many."""

    transactional_id: str
    producer: Producer | None = None
    plan: ProducerIdentity | None = None
    transaction: OpenTransaction | None = None


class _Process:
    """The slots of this worker process, by sink and settings."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.name = secrets.token_hex(8)
        self.numbers = itertools.count()
        self.slots: dict[object, list[TransactionSlot]] = {}


_process = _Process()


def write_in_transaction(
    batches: Iterator[pyarrow.RecordBatch], options: SinkOptions, rows: RowEncoder, plan: BatchPlan
) -> tuple[OpenTransaction | None, int]:
    """The open transaction (None if there are no rows), and the number of rows. Aborts the transaction on errors."""
    exclude_modules_from_gc()
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return None, 0
    slots = _slots(options)
    slot, producer = _begin(slots, options, plan)
    try:
        count = send_rows(producer, itertools.chain([first], batches), options, rows)
        slot.transaction = producer_access.hand_over(producer)
    except BaseException:
        _drop(slots, slot)
        raise
    _close_superfluous(slots, slot)
    return slot.transaction, count


def _begin(slots: list[TransactionSlot], options: SinkOptions, plan: BatchPlan) -> tuple[TransactionSlot, Producer]:
    """Begins a transaction with an id that nothing can abort, except for the driver and the timeout."""
    for _ in range(_MAX_IDS):
        slot = _free_slot(slots, options, plan)
        producer = _producer_of(slot, options, plan)
        slot.plan, slot.transaction = plan.driver, None
        try:
            producer.begin()
            if not producer_access.has_stray_init(producer):
                return slot, producer
        except BaseException:
            _drop(slots, slot)
            raise
        _drop(slots, slot)
    raise RequestTimeoutError(
        f"Cannot begin a transaction: requests to the coordinators of {_MAX_IDS} transactional ids were lost"
    )


def _slots(options: SinkOptions) -> list[TransactionSlot]:
    global _process
    if _process.pid != os.getpid():  # forked
        _process = _Process()
    key = options.sink_id, tuple(sorted(options.settings.items()))
    return _process.slots.setdefault(key, [])


def _free_slot(slots: list[TransactionSlot], options: SinkOptions, plan: BatchPlan) -> TransactionSlot:
    assert options.sink_id is not None
    for slot in slots:
        if slot.plan != plan.driver and (
            slot.transaction is None or _has_ended(slot.transaction, _producer_of(slot, options, plan))
        ):
            return slot
    slot = TransactionSlot(task_transactional_id(options.sink_id, _process.name, next(_process.numbers)))
    slots.append(slot)
    return slot


def _has_ended(transaction: OpenTransaction, producer: Producer) -> bool:
    """Whether the driver or the timeout has ended the transaction, according to its coordinator."""
    ids: Iterable[str] = [transaction.transactional_id]
    found = producer_access.ask_coordinators(producer, lambda admin: admin.describe(ids))
    description = found.get(transaction.transactional_id)
    return description is None or not description.has_open(transaction)


def _producer_of(slot: TransactionSlot, options: SinkOptions, plan: BatchPlan) -> Producer:
    if slot.producer is None:
        ends = (
            {"transaction.two.phase.commit.enable": "true"}
            if plan.timeout_ms is None
            else {"transaction.timeout.ms": str(plan.timeout_ms)}
        )
        slot.producer = Producer({**options.settings, **ends, "transactional.id": slot.transactional_id})
    return slot.producer


def _drop(slots: list[TransactionSlot], slot: TransactionSlot) -> None:
    """The task has failed: its transaction is aborted, and its producer may be in any state."""
    slots.remove(slot)
    producer = slot.producer
    if producer is not None:
        with contextlib.suppress(HeadraceError):  # the error of the task is being raised; the driver aborts it, too
            producer.abort(timeout=_ABORT_TIMEOUT)
        discard_producer(producer)


def _close_superfluous(slots: list[TransactionSlot], used: TransactionSlot) -> None:
    kept = [slot for slot in slots if slot.producer is not None]
    if len(kept) > _MAX_PRODUCERS:
        assert used.producer is not None
        used.producer.close()
        used.producer = None
