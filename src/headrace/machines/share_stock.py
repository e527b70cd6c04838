"""Records of a share group that were acquired and that no poll has returned yet.

In the order in which they came: a broker begins with another partition each time. Their locks run meanwhile. What is
lost, or whose lock has ended, is not handed out: somebody else may have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, Self

from ..types import TopicPartition
from .share_holding import Holding, Lease


class Columns(Protocol):
    """Records of one partition."""

    def __len__(self) -> int: ...
    def slice(self, start: int, length: int) -> Self: ...
    def runs(self) -> list[tuple[int, int]]: ...


class Lot:
    """Records of one partition that were acquired together."""

    __slots__ = ("holding", "lease", "records")

    def __init__(self, holding: Holding, records: Columns, lease: Lease) -> None:
        self.holding = holding
        self.records = records
        self.lease = lease


class Stock:
    def __init__(self) -> None:
        self._lots: deque[Lot] = deque()
        self.count = 0
        self.expired = 0
        """Records that were dropped since their lock had ended."""

    def __iter__(self) -> Iterator[Lot]:
        return iter(self._lots)

    def add(self, lot: Lot) -> None:
        if len(lot.records):
            self._lots.append(lot)
            self.count += len(lot.records)

    def put_back(self, lot: Lot) -> None:
        """A poll returned these, but the user has not seen them: they come first in the next one."""
        lot.holding.given_back(lot.records.runs())
        self._lots.appendleft(lot)
        self.count += len(lot.records)

    def take(self, limit: int, now: float) -> list[Columns]:
        """At most so many records, those of a partition together. They are in hand from now on."""
        taken: dict[TopicPartition, list[Columns]] = {}
        leases: dict[Lease, Lease] = {}
        while self._lots and limit > 0:
            lot = self._lots[0]
            if lot.holding.lost is not None or lot.lease.expires <= now:
                self._drop()
                continue
            records = lot.records
            size = len(records)
            if size <= limit:
                self._lots.popleft()
            else:
                lot.records = records.slice(limit, size - limit)
                records = records.slice(0, limit)
                size = limit
            limit -= size
            self.count -= size
            if lot.lease not in leases:
                leases[lot.lease] = lot.lease.taken(now)
            lot.holding.returned(records.runs(), leases[lot.lease])
            taken.setdefault(lot.holding.tp, []).append(records)
        return [records for parts in taken.values() for records in parts]

    def _drop(self) -> None:
        lot = self._lots.popleft()
        self.count -= len(lot.records)
        self.expired += len(lot.records)

    def remove(self, is_unwanted: Callable[[Lot], bool]) -> list[Lot]:
        """Takes lots out that nobody wants any more."""
        removed = [lot for lot in self._lots if is_unwanted(lot)]
        if removed:
            self._lots = deque(lot for lot in self._lots if not is_unwanted(lot))
            self.count -= sum(len(lot.records) for lot in removed)
        return removed
