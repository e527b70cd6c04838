"""Counters of messages, by topic, partition and error type.

A counter of the SDK takes microseconds for each addition, and a poll adds for each of its partitions. So the sums are
kept here, and read when metrics are exported. The receiver sees no difference. They outlive their clients.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from typing import Protocol

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from . import conventions as names


class RecordBatch(Protocol):
    """The records of one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    def __len__(self) -> int: ...


class MessageCounts:
    """The sums of all clients. `lock` guards them: any thread may add."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_active = True
        self._sums: dict[tuple[tuple[str, object], ...], MessageSums] = {}
        _all.add(self)

    def register(self, meter: Meter, name: str, description: str) -> None:
        meter.create_observable_counter(name, [self._observe], "{message}", description)

    def sums(self, attributes: names.Attributes) -> MessageSums:
        """The sums of all clients with these attributes."""
        with self.lock:
            return self._sums.setdefault(tuple(attributes.items()), MessageSums(self, attributes))

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        with self.lock:
            return [each for sums in self._sums.values() for each in sums.observations()] if self.is_active else []


class MessageSums:
    def __init__(self, owner: MessageCounts, attributes: names.Attributes) -> None:
        self._owner = owner
        self._attributes = attributes
        self._numbers: dict[tuple[str, int, str | None], int] = {}

    def add(self, batches: Iterable[RecordBatch], error_type: str | None = None) -> None:
        numbers = self._numbers
        with self._owner.lock:
            for batch in batches:
                place = batch.topic, batch.partition, error_type
                numbers[place] = numbers.get(place, 0) + len(batch)

    def observations(self) -> list[Observation]:
        """With the lock held."""
        found = []
        for (topic, partition, error_type), number in self._numbers.items():
            where: names.Attributes = {names.DESTINATION: topic, names.PARTITION: str(partition)}
            failure: names.Attributes = {} if error_type is None else {names.ERROR_TYPE: error_type}
            found.append(Observation(number, self._attributes | where | failure))
        return found


_all: weakref.WeakSet[MessageCounts] = weakref.WeakSet()


def _after_fork() -> None:
    """Another thread may have held a lock. The parent reports what was counted until here."""
    for counts in list(_all):
        counts.lock = threading.Lock()
        for sums in counts._sums.values():
            sums._numbers.clear()


os.register_at_fork(after_in_child=_after_fork)
