"""The coordinator of transactions: transactional ids (`support/harness/transactional_id.py`), their markers, and time.

Clients with transaction.version 2 add partitions with Produce and TxnOffsetCommit, and EndTxn 5 raises the epoch. With
version 1, clients add partitions before, and the epoch stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity
from support.harness.transactional_id import NOBODY, Answer, TransactionalId


class TransactionCoordinator:
    """`write_marker(place, identity, commits, done)` writes a marker, and calls `done` then. `now` returns the time,
    `version` the cluster's transaction.version."""

    def __init__(
        self,
        now: Callable[[], float],
        write_marker: Callable[[Any, ProducerIdentity, bool, Callable[[], None]], None],
        largest_epoch: int,
        version: Callable[[], int],
    ) -> None:
        self.ids: dict[str, TransactionalId] = {}
        self.timeouts = 0
        self.largest_epoch = largest_epoch
        self.may_mix_versions = False
        self.usurped = 0.0
        """The greatest age of a transaction that InitProducerId with the identity of an older producer has aborted."""
        self._now = now
        self._write_marker = write_marker
        self._version = version
        self._next_id = 1000

    def new_producer_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # -- requests ------------------------------------------------------------------------------------------------

    def init(self, name: str, identity: ProducerIdentity, timeout: float) -> Answer:
        found = self.ids.get(name)
        if found is None:
            found = self.ids[name] = TransactionalId(
                self.new_producer_id, self.largest_epoch, self._version, self.may_mix_versions
            )
        was_open = found.is_open
        if was_open and identity.producer_id >= 0 and identity != found.current:
            self.usurped = max(self.usurped, self._now() - found.started)
        answer = found.init(identity, timeout)
        if was_open and found.is_completing:
            self._write_markers(found)
        return answer

    def add(self, name: str, identity: ProducerIdentity, places: list[Any], version: int) -> int:
        found = self.ids.get(name)
        return E.invalid_producer_id_mapping if found is None else found.add(identity, places, version, self._now())

    def verify(self, name: str, identity: ProducerIdentity, place: Any) -> int:
        found = self.ids.get(name)
        return E.invalid_producer_id_mapping if found is None else found.verify(identity, place)

    def end(self, name: str, identity: ProducerIdentity, *, commits: bool, raises_epoch: bool) -> Answer:
        """The response has an identity if EndTxn raises the epoch."""
        found = self.ids.get(name)
        if found is None:
            return E.invalid_producer_id_mapping, NOBODY
        was_completing = found.is_completing
        answer = found.end(identity, commits=commits, raises_epoch=raises_epoch)
        if found.is_completing and not was_completing:
            self._write_markers(found)
        return answer

    # -- time ----------------------------------------------------------------------------------------------------

    def abort_overdue(self) -> None:
        for found in self.ids.values():
            if found.is_open and found.started + found.timeout < self._now():
                self.timeouts += 1
                found.fencings += 1
                found.fence()
                self._write_markers(found)

    def _write_markers(self, found: TransactionalId) -> None:
        missing = list(found.places)
        if not missing:
            found.complete()

        def written(place: Any) -> None:
            missing.remove(place)
            if not missing:
                found.complete()

        for place in list(missing):
            self._write_marker(place, found.current, found.commits, lambda place=place: written(place))  # type: ignore[misc]

    @property
    def is_idle(self) -> bool:
        return not any(each.is_completing or each.is_open for each in self.ids.values())
