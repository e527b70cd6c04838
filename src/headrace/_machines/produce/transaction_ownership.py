"""Whether this producer still owns its transactional id, where only DescribeTransactions tells (KIP-664).

A fenced producer must send nothing that can harm its successor. The coordinator compares the epoch of all requests that
have an identity, except for one: if a transaction is open, InitProducerId aborts it and fences its producer, whatever
the epoch of the request (`TransactionCoordinator.prepareInitProducerIdTransit`). DescribeTransactions changes nothing.

    before                             the description                            conclusion
    InitProducerId with an identity    Ongoing, another identity                  this producer is fenced
                                       anything else, or no such id               send it
    EndTxn(abort) again, after         this producer's identity                   the first one came too early: send it
    PRODUCER_FENCED                    anything else                              this producer is fenced
    the first request with             this producer's identity                   send it
    another producer id                Prepare…, the next epoch of the last id    wait
                                       anything else                              this producer is fenced

- The description precedes every attempt of InitProducerId: a process can stop between two attempts, and be replaced.
  What remains is the time between a description and its request.
- EndTxn(abort) comes too early if the coordinator still completes the previous transaction, so that no request of this
  one has reached it. With transaction.version 2, it sends PRODUCER_FENCED then.
- When the epochs of a producer id are used up, the response to EndTxn has another one. The coordinator knows it only
  after it has completed the transaction: until then, the errors are those of a stranger.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from ..._protocol.codes import kafka_error
from ...errors import KafkaError
from .idempotence import ProducerIdentity
from .open_transaction import TransactionDescription


class TransactionOwnership:
    """Which question is open, and what a description answers."""

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._ended: ProducerIdentity | None = None  # of the transaction whose EndTxn has brought the current identity
        self._refusal: KafkaError | None = None
        self._may_init = False
        self.awaits_id = False
        """Whether the coordinator may not know the new producer id yet."""

    @property
    def is_doubtful(self) -> bool:
        """Whether an EndTxn(abort) was refused, and a description has to tell why."""
        return self._refusal is not None

    def ended(self, identity: ProducerIdentity, following: ProducerIdentity) -> None:
        """EndTxn has ended the transaction of this identity, and its response has the next one."""
        self._ended = identity
        self.awaits_id = identity.producer_id != following.producer_id

    def renewed(self) -> None:
        """InitProducerId has a new identity. Its response comes after the end of every transaction before."""
        self._ended = None
        self.awaits_id = False

    def take_init(self, identity: ProducerIdentity | None) -> bool:
        """Whether InitProducerId can be sent now; otherwise a description comes first. Each answer is for one request.
        Without an identity, InitProducerId is that of a new producer, which does fence others."""
        allowed, self._may_init = self._may_init or identity is None, False
        return allowed

    def refused(self, error: KafkaError) -> bool:
        """EndTxn(abort) was refused with this error. Returns whether that is in doubt."""
        if self._ended is None or error.code != ErrorCode.producer_fenced:
            return False
        self._refusal = error
        return True

    def described(self, found: TransactionDescription | None, identity: ProducerIdentity) -> KafkaError | None:
        """The coordinator's description: None if it has none, or cannot describe. Returns the error that ends this
        producer, or None if it can continue."""
        is_ours = found is not None and found.identity == identity
        if self._refusal is not None:
            error, self._refusal = self._refusal, None
            return None if is_ours else error
        if self.awaits_id:
            self.awaits_id = not is_ours
            return None if is_ours or self._is_completing(found) else self._fenced_by(found)
        if found is not None and found.is_open and not is_ours:
            return self._fenced_by(found)
        self._may_init = True
        return None

    def _is_completing(self, found: TransactionDescription | None) -> bool:
        if found is None or self._ended is None or not found.is_completing:
            return False
        return found.identity == (self._ended.producer_id, self._ended.epoch + 1)

    def _fenced_by(self, found: TransactionDescription | None) -> KafkaError:
        what = "its coordinator does not know it"
        if found is not None:
            what = f"its owner is producer {found.producer_id} with epoch {found.epoch}, in state {found.state}"
        return kafka_error(ErrorCode.producer_fenced, f"transactional.id {self._transactional_id!r}", what)
