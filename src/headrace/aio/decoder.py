"""Arrived bytes become records, off the event loop.

Compressed partitions in one answer are decoded side by side on a few threads, and `PartitionState.decoded` puts
what comes out in order. Small answers are decoded where they arrive: the way to another thread takes longer.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ..config import ConsumerConfig
from ..errors import CorruptRecordError
from ..machines.fetching import Arrival
from ..net.connection import Connection, Reply
from ..records import DecodeError, decode
from .intake import Intake

_SMALL = 16 * 1024
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
    """`submit` is called on the loop's thread. `_decode` runs on any thread: it takes the intake's lock only to
    hand over the result. The frame that the bytes lie in goes back to its connection with the last of them.
    """

    def __init__(self, config: ConsumerConfig, intake: Intake, wake: Callable[[], None]) -> None:
        self._intake = intake
        self._wake = wake
        self._read_committed = config.isolation_level == "read_committed"
        self._check_crcs = config.check_crcs
        self._max_batch = config.decompressed_batch_max_bytes
        self._count = min(4, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(self._count, "headrace-decode")

    def submit(self, delivery: Delivery) -> None:
        left = _Countdown(delivery)
        if delivery.is_small:
            for arrival in delivery.arrivals:
                self._decode(arrival, left)
        else:
            for share in _shares(delivery.arrivals, self._count if delivery.is_compressed else 1):
                self._threads.submit(self._decode_all, share, left)

    def _decode_all(self, arrivals: list[Arrival], left: _Countdown) -> None:
        for arrival in arrivals:
            self._decode(arrival, left)

    def _decode(self, arrival: Arrival, left: _Countdown) -> None:
        tp = arrival.tp
        batch, fault = None, None
        try:
            batch = decode(
                arrival.records,
                topic=tp.topic,
                partition=tp.partition,
                position=arrival.offset,
                aborted=arrival.aborted,
                read_committed=self._read_committed,
                check_crcs=self._check_crcs,
                max_batch_bytes=self._max_batch,
            )
        except DecodeError as error:
            fault = CorruptRecordError(str(error), tp, error.offset)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the user and not to this thread
            fault = CorruptRecordError(f"{tp} at offset {arrival.offset}: {error!r}", tp, arrival.offset)
        with self._intake.lock:
            state = self._intake.assignment.get(tp)
            if state is not None and state.continuity == arrival.continuity:
                if batch is not None:
                    state.decoded(arrival.offset, len(arrival.records), batch, arrival.next_offset)
                elif fault is not None:
                    state.damaged(arrival.offset, fault)
            if batch is not None:
                self._intake.fetching.measured(len(arrival.records), batch.nbytes)
            wake = self._intake.fetching.is_starved or fault is not None
        left.one_done()
        self._intake.doorbell.ring()
        if wake:
            self._wake()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


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
        if self._left == 0:
            delivery.give_back()

    def one_done(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._delivery.give_back()
