"""Arrived bytes become records, off the event loop.

Compressed partitions in one answer are decoded side by side on a few threads, and `PartitionState.decoded` puts
what comes out in order. Uncompressed ones are decoded together: that takes a millisecond, and with each hand-over the
threads that need the interpreter lock or the processor are one more. Small answers are decoded where they arrive: the
way to another thread takes longer.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..config import ConsumerConfig
from ..errors import CorruptRecordError
from ..machines.fetching import Arrival
from ..net.connection import Connection, Reply
from ..records import Batch, DecodeError, decode_all
from .lane import Lane

_SMALL = 16 * 1024
_PORTION = 4 * 1024 * 1024
_ATTRIBUTES = 22  # the low byte of a batch's attributes
_CODEC = 0x07


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """An answer's record bytes, the frame that they lie in, and the connection that the frame belongs to."""

    reply: Reply
    connection: Connection
    arrivals: list[Arrival]

    @property
    def is_small(self) -> bool:
        return sum(len(arrival.records) for arrival in self.arrivals) <= _SMALL

    @property
    def is_compressed(self) -> bool:
        """Whether the first batch of some partition is: then decoding is work for more than one core. Without
        compression one thread keeps up with any network, and a second one only takes the broker's core away."""
        return any(
            len(arrival.records) > _ATTRIBUTES and arrival.records[_ATTRIBUTES] & _CODEC for arrival in self.arrivals
        )

    def give_back(self) -> None:
        if self.reply.frame is not None:
            self.connection.recycle(self.reply.frame)


class Decoder:
    """`submit` is called on the loop's thread. `_decode` runs on any thread: it takes the lane's lock only to
    hand over the result. The frame that the bytes lie in goes back to its connection with the last of them.
    """

    def __init__(self, config: ConsumerConfig, lane: Lane, wake: Callable[[], None]) -> None:
        self._lane = lane
        self._wake = wake
        self._read_committed = config.isolation_level == "read_committed"
        self._check_crcs = config.check_crcs
        self._max_batch = config.decompressed_batch_max_bytes
        self._count = min(4, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(self._count, "headrace-decode")

    def submit(self, delivery: Delivery) -> None:
        if not delivery.arrivals:  # the user has moved on meanwhile
            delivery.give_back()
            return
        left = _Countdown(delivery)
        if delivery.is_small:
            self._decode(delivery.arrivals, left)
        elif delivery.is_compressed:
            for share in _shares(delivery.arrivals, self._count):
                self._threads.submit(self._decode_portions, [[arrival] for arrival in share], left)
        else:
            self._threads.submit(self._decode_portions, _portions(delivery.arrivals), left)

    def _decode_portions(self, portions: list[list[Arrival]], left: _Countdown) -> None:
        for portion in portions:
            self._decode(portion, left)

    def _decode(self, arrivals: list[Arrival], left: _Countdown) -> None:
        outcomes: Sequence[Batch | Exception | None]
        with self._lane.lock:
            room = self._lane.fetching.room_for_records
        try:
            outcomes = decode_all(
                [(a.records, a.tp.topic, a.tp.partition, a.offset, a.aborted) for a in arrivals],
                read_committed=self._read_committed,
                check_crcs=self._check_crcs,
                max_batch_bytes=self._max_batch,
                max_total_bytes=room,
                lane=self._lane.name,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the user and not to this thread
            outcomes = [error] * len(arrivals)
        with self._lane.lock:
            wake = self._lane.fetching.is_starved
            for arrival, outcome in zip(arrivals, outcomes, strict=True):
                wake |= self._hand_over(arrival, outcome)
        left.done(len(arrivals))
        self._lane.doorbell.ring()
        if wake:
            self._wake()

    def _hand_over(self, arrival: Arrival, outcome: Batch | Exception | None) -> bool:
        """To the partition, if it is still being read there. True if it should be fetched again: after damage, if the
        records took less room than was kept for them, or if they found none."""
        assignment = self._lane.assignment
        state = assignment.get(arrival.tp)
        wanted = state if state is not None and state.continuity == arrival.continuity else None
        if isinstance(outcome, Batch):
            if wanted is not None:
                wanted.decoded(arrival.offset, arrival.room, outcome, arrival.next_offset)
            self._lane.fetching.measured(len(arrival.records), outcome.nbytes)
            return wanted is not None and not wanted.in_flight and assignment.is_hungry(wanted)
        if wanted is not None and outcome is None:
            wanted.put_off(arrival.offset)
        elif wanted is not None and outcome is not None:
            wanted.damaged(arrival.offset, _fault(arrival, outcome))
        return True

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _fault(arrival: Arrival, error: Exception) -> CorruptRecordError:
    if isinstance(error, DecodeError):
        return CorruptRecordError(str(error), arrival.tp, error.offset)
    return CorruptRecordError(f"{arrival.tp} at offset {arrival.offset}: {error!r}", arrival.tp, arrival.offset)


def _portions(arrivals: list[Arrival]) -> list[list[Arrival]]:
    """The arrivals in order, as many together as are decoded before the user wants to see the first of them."""
    portions: list[list[Arrival]] = []
    size = _PORTION
    for arrival in arrivals:
        if size >= _PORTION:
            portions.append([])
            size = 0
        portions[-1].append(arrival)
        size += len(arrival.records)
    return portions


def _shares(arrivals: list[Arrival], count: int) -> list[list[Arrival]]:
    """The arrivals in at most `count` parts of about the same size: handing work over costs more than little work."""
    shares: list[list[Arrival]] = [[] for _ in range(min(count, len(arrivals)))]
    sizes = [0] * len(shares)
    for arrival in sorted(arrivals, key=lambda arrival: len(arrival.records), reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(arrival)
        sizes[least] += len(arrival.records)
    return shares


class _Countdown:
    """Gives a frame back when the last partition in it is decoded."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._left = len(delivery.arrivals)
        self._lock = threading.Lock()

    def done(self, count: int) -> None:
        with self._lock:
            self._left -= count
            last = self._left == 0
        if last:
            self._delivery.give_back()
