"""The rows of `send_all`, and the deliveries of many records."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any

from ..._arguments import short_repr
from ..._record_batch import Delivery, ProducerBatch
from ...errors import HeadraceError
from .delivery import DeliveryWaiting


class Deliveries:
    """The deliveries of many records. Await it or call `result()` to wait until all of them are delivered."""

    def __init__(self, waiting: DeliveryWaiting) -> None:
        self._waiting = waiting
        self._batches: dict[ProducerBatch, None] = {}
        self._last: ProducerBatch | None = None
        self._count = 0

    def __len__(self) -> int:
        """The number of records."""
        return self._count

    def add(self, delivery: Delivery) -> None:
        """Adds the record of a delivery. For the producer."""
        batch = delivery._batch
        if batch is not self._last:  # most records are in the batch of the previous one
            self._batches[batch] = None
            self._last = batch
        self._count += 1

    def add_batches(self, batches: Iterable[ProducerBatch]) -> None:
        """Adds all records of these batches. For the producer."""
        for batch in batches:
            self._batches[batch] = None
            self._count += len(batch)

    @property
    def is_done(self) -> bool:
        """Whether every record was delivered, or has failed."""
        return all(batch.is_done for batch in self._leaves())

    @property
    def error(self) -> HeadraceError | None:
        """Why a record was not delivered: the first such error, or None."""
        return next((batch.error for batch in self._leaves() if batch.error is not None), None)

    def result(self, timeout: float | None = None) -> int:
        """Waits until all records are delivered, and returns their number. Raises the error of the first record that
        was not delivered, and RequestTimeoutError after `timeout` seconds."""
        self._waiting.wait_for(self._batches, timeout)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, int]:
        yield from self._waiting.wait_for_async(self._batches).__await__()
        return self._outcome()

    def _outcome(self) -> int:
        errors = [batch.error for batch in self._leaves() if batch.error is not None]
        if errors:
            self._waiting.seen(errors)
            raise errors[0].with_traceback(None)
        return self._count

    def _leaves(self) -> Iterator[ProducerBatch]:
        """The batches that have the records now. Some may have been split."""
        remaining = list(self._batches)[::-1]
        while remaining:
            batch = remaining.pop()
            if parts := batch.parts:
                remaining.extend(reversed(parts))
            else:
                yield batch


def arguments_of(row: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `send` for a row of `send_all`."""
    if unknown := row.keys() - _ARGUMENTS:
        names = ", ".join(sorted(map(str, unknown)))
        raise TypeError(f"a row may have {', '.join(_ARGUMENTS)}, but not {names}: {short_repr(row)}")
    return {"value": None, **row}


_ARGUMENTS = ("value", "key", "headers", "timestamp", "partition")
