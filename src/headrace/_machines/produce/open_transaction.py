"""Transactions that one process leaves open and another one ends. They need transaction.version 2 (EndTxn 5).

Any client that knows the transactional id, the producer id and the epoch can end a transaction. EndTxn can be repeated:
with the same result, the response is NONE until the transactional id is used again. The responses to EndTxn(commit):

    NONE                        it is committed, now or by an earlier EndTxn
    INVALID_TXN_STATE           it was aborted: it exceeded its timeout, or another client aborted it
    PRODUCER_FENCED             the transactional id was used again after it had ended
    INVALID_PRODUCER_ID_MAPPING the transactional id has expired after it had ended

For EndTxn(abort), the three errors mean that the transaction is not open any more and may have been committed.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from .idempotence import ProducerIdentity

NOT_OPEN = {
    ErrorCode.invalid_txn_state,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
}
"""Errors of EndTxn that mean that there is no such open transaction."""

_OPEN = "Ongoing"
_COMPLETING = ("PrepareCommit", "PrepareAbort")


class OpenTransaction(NamedTuple):
    """An open transaction, with everything that is needed to end it."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The coordinator's state of a transactional id. Times are in milliseconds of the coordinator's clock."""

    state: str
    producer_id: int
    epoch: int
    started_ms: int
    timeout_ms: int

    @property
    def is_open(self) -> bool:
        return self.state == _OPEN

    @property
    def is_completing(self) -> bool:
        """Whether the end is decided, and markers are missing."""
        return self.state in _COMPLETING

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)

    def has_open(self, transaction: OpenTransaction) -> bool:
        """Whether exactly this transaction is open, not an earlier or later one of the same transactional id."""
        return self.is_open and (self.producer_id, self.epoch) == transaction[1:]
