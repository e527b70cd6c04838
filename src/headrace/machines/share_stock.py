"""Records of a share group that were acquired and that no poll has returned yet.

In the order in which they came: a broker begins with another partition each time. Their locks run meanwhile. What is
lost, or whose lock has ended, is not handed out: somebody else may have it.

A signal handler that raises (Ctrl-C) can interrupt a poll almost anywhere. The records that it took then come first in
the next poll; otherwise that poll would accept records that nobody has seen. CPython calls signal handlers when a
function begins, at the end of a loop's round, and after calls of C functions. So consecutive stores of values that were
computed before are done together or not at all, and a `Handover` says at any time between them what is to be undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
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


class Handover:
    """What one poll takes, from the stock to the user.

    open      it is noted here before anything is moved
    returned  the poll stores that last, directly before its `return`
    broken    the poll raises instead: to be undone, by that poll, or if that is interrupted too, by the next call
    """

    __slots__ = ("is_broken", "is_moved", "is_open", "lots", "total")

    def __init__(self, lots: Iterable[Lot] = (), *, is_moved: bool = False) -> None:
        self.lots: tuple[Lot, ...] = tuple(lots)
        self.is_moved = is_moved  # they are out of the stock
        self.is_open = True
        self.is_broken = False
        self.total = 0  # records that were returned since the start, these included


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

    def put_back(self, handover: Handover) -> None:
        """The user has not seen these: they come first in the next poll. May be called again until it got through."""
        if handover.is_moved:
            lots = deque(lot for lot in handover.lots if lot.holding.lease_of(lot.records.runs()) is lot.lease)
            count = self.count + sum(len(lot.records) for lot in lots)
            lots.extend(self._lots)
            self._lots, self.count, handover.is_moved = lots, count, False
        for lot in handover.lots:
            lot.holding.given_back(lot.records.runs(), lot.lease)

    def take(self, limit: int, now: float, handover: Handover) -> list[Columns]:
        """At most so many records, those of a partition together. They are in hand from now on."""
        lots, count, expired = self._lots.copy(), self.count, self.expired
        taken: list[Lot] = []
        leases: dict[Lease, Lease] = {}
        while lots and limit > 0:
            lot = lots.popleft()
            records = lot.records
            size = len(records)
            if lot.holding.lost is not None or lot.lease.expires <= now:
                count, expired = count - size, expired + size
                continue
            if size > limit:
                lots.appendleft(Lot(lot.holding, records.slice(limit, size - limit), lot.lease))
                records = records.slice(0, limit)
                size = limit
            limit -= size
            count -= size
            if lot.lease not in leases:
                leases[lot.lease] = lot.lease.taken(now)
            taken.append(Lot(lot.holding, records, leases[lot.lease]))
        parts: dict[TopicPartition, list[Columns]] = {}
        for lot in taken:
            parts.setdefault(lot.holding.tp, []).append(lot.records)
        found = [records for each in parts.values() for records in each]
        handover.lots = tuple(taken)
        for lot in taken:
            lot.holding.returned(lot.records.runs(), lot.lease)
        self._lots, self.count, self.expired, handover.is_moved = lots, count, expired, True
        return found

    def remove(self, is_unwanted: Callable[[Lot], bool]) -> list[Lot]:
        """Takes lots out that nobody wants any more."""
        removed = [lot for lot in self._lots if is_unwanted(lot)]
        if removed:
            lots = deque(lot for lot in self._lots if not is_unwanted(lot))
            count = self.count - sum(len(lot.records) for lot in removed)
            self._lots, self.count = lots, count
        return removed
