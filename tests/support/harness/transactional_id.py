"""One transactional id at its coordinator, as in Kafka 4.3 (`TransactionCoordinator`, `TransactionMetadata`).

    Empty, Complete* -> Ongoing                     the first partition or group is added
    Ongoing          -> PrepareCommit, PrepareAbort EndTxn; InitProducerId and the timeout abort
    Empty, Complete* -> PrepareAbort                EndTxn(abort) with transaction.version 2: it raises the epoch
    Prepare*         -> Complete*                   all markers are written
    Empty, Complete* -> Empty                       InitProducerId

- InitProducerId compares epochs only if no transaction is open. An open one is aborted, whoever asks, if the producer
  id is that of the request.
- With transaction.version 2, the end of a transaction raises the epoch, and the response has the next identity. When
  all epochs are used up, the next one has another producer id, which the coordinator accepts after the completion.
- The last epoch of a producer is kept, so that it can repeat a request. InitProducerId of a new producer clears it.

`test_transaction_models.py` compares all of this with a broker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity

NO_EPOCH = -1
NOBODY = ProducerIdentity(-1, NO_EPOCH)

Answer = tuple[int, ProducerIdentity]


@dataclasses.dataclass(eq=False)
class TransactionalId:
    """`new_id` returns a new producer id. `largest_epoch` is the last one that a producer gets. `server_version` is the
    cluster's transaction.version."""

    new_id: Callable[[], int]
    largest_epoch: int = 2**15 - 2
    server_version: Callable[[], int] = lambda: 2
    may_mix_versions: bool = False
    """Whether a transaction may have requests of both versions. Headrace never sends them."""
    timeout: float = 60.0
    state: str = "Empty"
    current: ProducerIdentity = NOBODY
    """Also that of the markers, while `is_completing`: so late batches are fenced."""
    last_epoch: int = NO_EPOCH
    previous_id: int = NOBODY.producer_id
    next_id: int | None = None
    places: list[Any] = dataclasses.field(default_factory=list)
    """Partitions and groups of the transaction."""
    version: int = 0
    """Of the requests of this transaction: 1 or 2."""
    started: float = 0.0
    fencings: int = 0
    """How often somebody was fenced: by a new producer, the timeout, or a late InitProducerId."""

    def __post_init__(self) -> None:
        self.current = ProducerIdentity(self.new_id(), NO_EPOCH)

    @property
    def is_completing(self) -> bool:
        return self.state.startswith("Prepare")

    @property
    def is_open(self) -> bool:
        return self.state == "Ongoing"

    @property
    def commits(self) -> bool:
        return self.state.endswith("Commit")

    @property
    def _is_exhausted(self) -> bool:
        return self.current.epoch >= self.largest_epoch

    # -- InitProducerId --------------------------------------------------------------------------------------------

    def init(self, expected: ProducerIdentity, timeout: float = 60.0) -> Answer:
        """`expected` is the identity in the request, `NOBODY` if it has none."""
        is_new = expected.producer_id < 0
        if not (is_new or self._may_be_ours(expected)):
            return E.producer_fenced, NOBODY
        if self.is_completing:
            return E.concurrent_transactions, NOBODY
        if self.is_open:
            self.fencings += 1
            self.fence()
            return E.concurrent_transactions, NOBODY
        is_known = self.current.epoch == NO_EPOCH or expected.epoch in (self.current.epoch, self.last_epoch)
        if not (is_new or is_known):
            return E.producer_fenced, NOBODY
        if self._is_exhausted and not is_new and expected.epoch != self.current.epoch:
            return E.unknown_server_error, NOBODY
        self.fencings += is_new or (expected.epoch == self.last_epoch and self.state != "Empty")
        self._renew(expected, is_new=is_new)
        self.timeout = timeout
        self.state = "Empty"
        return E.none, self.current

    def _may_be_ours(self, expected: ProducerIdentity) -> bool:
        is_rotated = expected.producer_id == self.previous_id and expected.epoch >= self.largest_epoch
        return self.current.epoch == NO_EPOCH or expected.producer_id == self.current.producer_id or is_rotated

    def _renew(self, expected: ProducerIdentity, *, is_new: bool) -> None:
        producer_id, epoch = self.current
        # The coordinator forgets the producer id before a new one as soon as a request of the old one is repeated.
        self.fencings += not is_new and expected.producer_id != producer_id
        self.previous_id = producer_id
        if self._is_exhausted:
            self.current, self.last_epoch = ProducerIdentity(self.new_id(), 0), NO_EPOCH if is_new else epoch
        elif is_new:
            self.current, self.last_epoch = ProducerIdentity(producer_id, epoch + 1), NO_EPOCH
        elif expected.epoch == epoch or epoch == NO_EPOCH:
            self.current, self.last_epoch = ProducerIdentity(producer_id, epoch + 1), epoch
        # Otherwise the request is repeated: it gets the identity that its first response had.

    def fence(self) -> None:
        """Aborts the open transaction, for a new producer or after the timeout. With version 2, its producer can learn
        the epoch by EndTxn(abort)."""
        producer_id, epoch = self.current
        self.state = "PrepareAbort"
        self.current = ProducerIdentity(producer_id, epoch + 1)
        self.last_epoch = epoch if self.server_version() >= 2 else NO_EPOCH

    # -- the transaction -------------------------------------------------------------------------------------------

    def add(self, identity: ProducerIdentity, places: list[Any], version: int, now: float = 0.0) -> int:
        """AddPartitionsToTxn and AddOffsetsToTxn; with version 2 a leader asks when it gets a batch or offsets."""
        if identity.producer_id != self.current.producer_id:
            return E.invalid_producer_id_mapping
        if identity.epoch != self.current.epoch:
            return E.producer_fenced
        if self.is_completing:
            return E.concurrent_transactions
        if not self.is_open:
            self.state, self.started, self.version = "Ongoing", now, version
        assert self.version == version or self.may_mix_versions, "requests of both versions in one transaction"
        self.places += [each for each in places if each not in self.places]
        return E.none

    def verify(self, identity: ProducerIdentity, place: Any) -> int:
        """A leader asks whether the transaction has its partition, with version 1."""
        if identity.producer_id != self.current.producer_id:
            return E.invalid_producer_id_mapping
        if identity.epoch != self.current.epoch:
            return E.producer_fenced
        if self.is_completing:
            return E.concurrent_transactions
        return E.none if self.is_open and place in self.places else E.transaction_abortable

    # -- EndTxn ----------------------------------------------------------------------------------------------------

    def end(self, identity: ProducerIdentity, *, commits: bool, raises_epoch: bool) -> Answer:
        """`raises_epoch`: EndTxn 5."""
        wanted = "Commit" if commits else "Abort"
        is_repeated = self._is_repeated(identity, raises_epoch=raises_epoch)
        is_current = identity.epoch == self.current.epoch
        is_rotated = raises_epoch and is_repeated and identity.producer_id != self.current.producer_id
        if identity.producer_id != self.current.producer_id and not is_rotated:
            return E.invalid_producer_id_mapping, NOBODY
        is_ended = self.state.startswith("Complete")
        if not (is_repeated if self.is_completing else is_current or (is_repeated and is_ended)):
            return E.producer_fenced, NOBODY
        if self.is_open:
            is_same = self.version == (2 if raises_epoch else 1)
            assert is_same or self.may_mix_versions, "EndTxn of the other version"
            self._prepare(f"Prepare{wanted}", raises_epoch=raises_epoch)
        elif self.is_completing:
            return (E.concurrent_transactions if self.state.endswith(wanted) else E.invalid_txn_state), NOBODY
        elif is_repeated and is_ended:
            if not self.state.endswith(wanted):
                return E.invalid_txn_state, NOBODY
            return E.none, self.current
        elif raises_epoch and not commits:
            self._prepare("PrepareAbort", raises_epoch=True)
        else:
            return E.invalid_txn_state, NOBODY
        return E.none, self.current if self.next_id is None else ProducerIdentity(self.next_id, 0)

    def _is_repeated(self, identity: ProducerIdentity, *, raises_epoch: bool) -> bool:
        if not raises_epoch:
            return identity.epoch == self.current.epoch
        is_rotated = (identity.producer_id, self.current.epoch) == (self.previous_id, 0)
        return identity.epoch + 1 == self.current.epoch or (is_rotated and identity.epoch == self.largest_epoch)

    def _prepare(self, state: str, *, raises_epoch: bool) -> None:
        self.state = state
        if not raises_epoch:
            return
        producer_id, self.last_epoch = self.current
        if self._is_exhausted:
            self.next_id = self.new_id()
        self.current = ProducerIdentity(producer_id, self.last_epoch + 1)

    def complete(self) -> None:
        """All markers are written."""
        self.state = self.state.replace("Prepare", "Complete")
        self.places, self.version = [], 0
        self.previous_id = self.current.producer_id
        if self.next_id is not None:
            self.current, self.next_id = ProducerIdentity(self.next_id, 0), None
