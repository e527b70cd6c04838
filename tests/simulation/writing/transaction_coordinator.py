"""The coordinator of transactions, as in Kafka 4.3 (`TransactionCoordinator`, `TransactionMetadata`).

    Empty      -> Ongoing                      the first partition or group is added
    Ongoing    -> PrepareCommit, PrepareAbort  EndTxn; InitProducerId and the timeout abort
    Prepare*   -> Complete*                    all markers are written
    Complete*  -> Ongoing                      the next transaction
    any but Prepare*, Ongoing -> Empty         InitProducerId

Clients with transaction.version 2 add partitions with Produce and TxnOffsetCommit, and EndTxn 5 raises the epoch. With
version 1, clients add partitions before, and the epoch stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity

NOBODY = ProducerIdentity(-1, -1)


@dataclasses.dataclass(eq=False)
class TransactionalId:
    name: str
    current: ProducerIdentity
    timeout: float = 60.0
    state: str = "Empty"
    previous: ProducerIdentity | None = None
    marker: ProducerIdentity = NOBODY
    places: list[Any] = dataclasses.field(default_factory=list)  # partitions and groups of the transaction
    started: float = 0.0
    version: int = 0  # of the requests of this transaction, which must not mix versions
    fencings: int = 0  # by InitProducerId without an identity or too late, and by the timeout


class TransactionCoordinator:
    """`write_marker(place, identity, commits, done)` writes a marker, and calls `done` then. `now` returns the time."""

    def __init__(
        self,
        now: Callable[[], float],
        write_marker: Callable[[Any, ProducerIdentity, bool, Callable[[], None]], None],
        last_epoch: int,
    ) -> None:
        self.ids: dict[str, TransactionalId] = {}
        self.timeouts = 0
        self._now = now
        self._write_marker = write_marker
        self._last_epoch = last_epoch
        self._next_id = 1000

    def new_producer_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # -- requests ------------------------------------------------------------------------------------------------

    def init(self, name: str, identity: ProducerIdentity, timeout: float) -> tuple[int, ProducerIdentity]:
        found = self.ids.get(name)
        if found is None:
            if identity.producer_id >= 0:
                return E.invalid_producer_id_mapping, NOBODY
            found = self.ids[name] = TransactionalId(name, ProducerIdentity(self.new_producer_id(), 0), timeout)
            found.fencings = 1
            return E.none, found.current
        is_retry = identity == found.previous and found.state != "Ongoing"
        if identity.producer_id >= 0 and identity != found.current and not is_retry:
            return E.producer_fenced, NOBODY
        if found.state.startswith("Prepare"):
            return E.concurrent_transactions, NOBODY
        if identity.producer_id < 0:
            found.fencings += 1
        if is_retry:
            # After a transaction, it is one that arrives late: a repeated EndTxn is refused from now on.
            found.fencings += found.state.startswith("Complete")
            found.state = "Empty"
            return E.none, found.current
        if found.state == "Ongoing":
            self._prepare(found, commits=False, bumps=True)
            return E.concurrent_transactions, NOBODY
        self._bump(found)
        found.timeout = timeout
        if identity.producer_id < 0:
            found.previous = None  # a new producer: the previous one cannot claim this as its own retry
        found.state = "Empty"
        return E.none, found.current

    def add(self, name: str, identity: ProducerIdentity, places: list[Any], version: int) -> int:
        found = self.ids.get(name)
        if found is None or (
            identity.producer_id != found.current.producer_id
            and (found.previous is None or identity.producer_id != found.previous.producer_id)
        ):
            return E.invalid_producer_id_mapping
        if identity != found.current:
            return E.invalid_producer_epoch if version == 2 else E.producer_fenced
        if found.state.startswith("Prepare"):
            return E.concurrent_transactions
        if found.state != "Ongoing":
            found.state, found.started, found.version = "Ongoing", self._now(), version
        assert found.version == version, f"{name}: requests of both versions in one transaction"
        found.places += [each for each in places if each not in found.places]
        return E.none

    def has(self, name: str, identity: ProducerIdentity, place: Any) -> bool:
        found = self.ids.get(name)
        return found is not None and found.current == identity and found.state == "Ongoing" and place in found.places

    def end(
        self, name: str, identity: ProducerIdentity, *, commits: bool, raises_epoch: bool
    ) -> tuple[int, ProducerIdentity]:
        """The response has an identity if EndTxn raises the epoch."""
        found = self.ids.get(name)
        known = () if found is None else (found.current, found.previous)
        if found is None or all(each is None or each.producer_id != identity.producer_id for each in known):
            return E.invalid_producer_id_mapping, NOBODY
        result = "Commit" if commits else "Abort"
        is_current = identity == found.current
        is_repeated = identity == found.previous if raises_epoch else is_current
        is_preparing = found.state.startswith("Prepare")
        if found.state == "Ongoing" and is_current:
            assert found.version == (2 if raises_epoch else 1), f"{name}: EndTxn of the other version"
            self._prepare(found, commits=commits, bumps=raises_epoch)
        elif is_preparing and is_repeated:
            return (E.concurrent_transactions if found.state.endswith(result) else E.invalid_txn_state), NOBODY
        elif found.state.startswith("Complete") and is_repeated:
            if not found.state.endswith(result):
                return E.invalid_txn_state, NOBODY
        elif is_current and raises_epoch and not commits and not is_preparing:
            self._bump(found)
            found.state = "CompleteAbort"
        elif is_current and not is_preparing:
            return E.invalid_txn_state, NOBODY
        else:
            return E.producer_fenced, NOBODY
        return E.none, found.current

    # -- time ----------------------------------------------------------------------------------------------------

    def abort_overdue(self) -> None:
        for found in self.ids.values():
            if found.state == "Ongoing" and found.started + found.timeout < self._now():
                self.timeouts += 1
                found.fencings += 1
                self._prepare(found, commits=False, bumps=True)

    def _bump(self, found: TransactionalId) -> None:
        found.previous = found.current
        producer_id, epoch = found.current
        is_last = epoch >= self._last_epoch
        found.current = (
            ProducerIdentity(self.new_producer_id(), 0) if is_last else ProducerIdentity(producer_id, epoch + 1)
        )

    def _prepare(self, found: TransactionalId, *, commits: bool, bumps: bool) -> None:
        # The epoch of the marker fences late batches. It belongs to the old producer id, even if a new id follows.
        producer_id, epoch = found.current
        found.marker = ProducerIdentity(producer_id, epoch + 1) if bumps else found.current
        found.state = "PrepareCommit" if commits else "PrepareAbort"
        if bumps:
            self._bump(found)
        missing = list(found.places)

        def written(place: Any) -> None:
            missing.remove(place)
            if not missing:
                found.state = "CompleteCommit" if commits else "CompleteAbort"
                found.places = []

        for place in list(missing):
            self._write_marker(place, found.marker, commits, lambda place=place: written(place))  # type: ignore[misc]

    @property
    def is_idle(self) -> bool:
        return not any(each.state.startswith("Prepare") or each.state == "Ongoing" for each in self.ids.values())
