"""Transactions that one process leaves open, and another one ends. They need transaction.version 2 (EndTxn 5).

Whoever knows the transactional id, the producer id and the epoch can end a transaction. EndTxn can be repeated: with
the same result, it is answered by NONE until the transactional id is used again. The answers to EndTxn(commit):

    NONE                        it is committed, now or by an earlier EndTxn
    INVALID_TXN_STATE           it was aborted: it exceeded its timeout, or somebody aborted it
    PRODUCER_FENCED             the transactional id was used again after it had ended
    INVALID_PRODUCER_ID_MAPPING the transactional id has expired after it had ended

The three errors mean for EndTxn(abort): it is not open any more, and it may have been committed.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from kio.schema.errors import ErrorCode

NOT_OPEN = {
    ErrorCode.invalid_txn_state,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
}
"""Errors of EndTxn that say that there is no such open transaction."""

_OPEN = "Ongoing"


class OpenTransaction(NamedTuple):
    """What is needed to end it."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionDescription:
    """What its coordinator knows of a transactional id. Times are in milliseconds, and by the coordinator's clock."""

    state: str
    producer_id: int
    epoch: int
    started_ms: int
    timeout_ms: int

    @property
    def is_open(self) -> bool:
        return self.state == _OPEN

    def has_open(self, transaction: OpenTransaction) -> bool:
        """Whether this very transaction is open, and not an earlier or later one of the same transactional id."""
        return self.is_open and (self.producer_id, self.epoch) == transaction[1:]
