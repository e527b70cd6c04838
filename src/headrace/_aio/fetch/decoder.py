"""Decodes fetched bytes to records, off the event loop.

Compressed partitions of one response are decoded in parallel on a few threads, and `PartitionState.decoded` puts the
results in order. Uncompressed ones are decoded together: that takes a millisecond, and each thread more competes for
the interpreter lock and the processor. Small responses are decoded where they arrive: the way to another thread takes
longer.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..._machines.fetch.planner import FetchedRecords, RepeatedPartition
from ..._net.calls import Reply
from ..._net.connection import Connection
from ...config.consumer import ConsumerConfig
from ...errors import CorruptRecordError
from ...records import Batch, DecodeError, decode_all, deserialized
from .partitions import FetchedPartitions

_SMALL = 16 * 1024
_PORTION = 4 * 1024 * 1024
_ATTRIBUTES = 22  # the low byte of a batch's attributes
_CODEC = 0x07


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """The record bytes of a response, the frame that contains them, and the connection that the frame belongs to."""

    reply: Reply
    connection: Connection
    arrivals: list[FetchedRecords]

    @property
    def is_small(self) -> bool:
        return sum(len(arrival.records) for arrival in self.arrivals) <= _SMALL

    @property
    def is_compressed(self) -> bool:
        """Whether the first batch of some partition is: then decoding is work for more than one core. Without
        compression one thread keeps up with any network, and a second one only takes a core from others."""
        return any(
            len(arrival.records) > _ATTRIBUTES and arrival.records[_ATTRIBUTES] & _CODEC for arrival in self.arrivals
        )

    def give_back(self) -> None:
        if self.reply.frame is not None:
            self.connection.recycle(self.reply.frame)


class Decoder:
    """`submit` is called on the loop's thread, and on those that receive. `_decode` runs on any thread: it takes the
    lock only to hand over the result. The frame that contains the bytes goes back to its connection with the last of
    them.
    """

    def __init__(self, config: ConsumerConfig, partitions: FetchedPartitions, wake: Callable[[], None]) -> None:
        self._partitions = partitions
        self._wake = wake
        self._config = config
        self._check_crcs = config.check_crcs
        self._max_batch = config.decompressed_batch_max_bytes
        self._value, self._key = config.value_deserializer, config.key_deserializer
        self._has_deserializers = self._value is not None or self._key is not None
        self._may_block = config.has_formats
        self._count = min(4, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(self._count, "headrace-decode")

    def submit(self, delivery: Delivery) -> None:
        if not delivery.arrivals:  # the user has sought meanwhile
            delivery.give_back()
            return
        left = _Countdown(delivery)
        if delivery.is_small and not self._may_block:
            self._decode(delivery.arrivals, left)
        elif delivery.is_compressed:
            for part in _split_evenly(delivery.arrivals, self._count):
                self._threads.submit(self._decode_portions, [[arrival] for arrival in part], left)
        else:
            self._threads.submit(self._decode_portions, _portions(delivery.arrivals), left)

    def _decode_portions(self, portions: list[list[FetchedRecords]], left: _Countdown) -> None:
        for portion in portions:
            self._decode(portion, left)

    def _decode(self, arrivals: list[FetchedRecords], left: _Countdown) -> None:
        outcomes: Sequence[Batch | BaseException | None]
        with self._partitions.lock:
            room = self._partitions.fetching.room_for_records
        try:
            outcomes = decode_all(
                [(a.records, a.tp.topic, a.tp.partition, a.offset, a.aborted) for a in arrivals],
                read_committed=self._config.reads_committed,
                check_crcs=self._check_crcs,
                max_batch_bytes=self._max_batch,
                max_total_bytes=room,
                lane=self._partitions.lane,
            )
            if self._has_deserializers:
                outcomes = [self._deserialized(each) if isinstance(each, Batch) else each for each in outcomes]
        except BaseException as error:  # noqa: BLE001 - it belongs to the user; a panic of the kernel is no Exception
            outcomes = [error] * len(arrivals)
        with self._partitions.lock:
            wake = self._partitions.fetching.is_over_budget
            for arrival, outcome in zip(arrivals, outcomes, strict=True):
                wake |= self._hand_over(arrival, outcome)
        left.done(len(arrivals))
        self._partitions.poll_signal.notify()
        if wake:
            self._wake()

    @property
    def may_block(self) -> bool:
        """Whether decoding may ask a schema registry."""
        return self._may_block

    def adopt(self, partitions: Sequence[RepeatedPartition]) -> Sequence[RepeatedPartition]:
        """Records that were decoded elsewhere."""
        if not self._has_deserializers:
            return partitions
        return [
            RepeatedPartition(*each)._replace(records=self._deserialized(batch))
            if isinstance(batch := each[-1], Batch)
            else each
            for each in partitions
        ]

    def _deserialized(self, batch: Batch) -> Batch:
        """Nothing is decoded here: the user's functions run on the user's thread, when a record is asked. But formats
        ask a schema registry here, so that the user's event loop does not wait for it."""
        return deserialized(batch, self._value, self._key)

    def _hand_over(self, arrival: FetchedRecords, outcome: Batch | BaseException | None) -> bool:
        """To the partition, if it is still being read there. True if it should be fetched again: after damage, if the
        records took less room than was reserved for them, or if there was no room for them."""
        assignment = self._partitions.assignment
        state = assignment.get(arrival.tp)
        wanted = state if state is not None and state.position_version == arrival.position_version else None
        if isinstance(outcome, Batch):
            if wanted is not None:
                wanted.decoded(arrival.offset, arrival.room, outcome, arrival.next_offset)
            self._partitions.fetching.measured(len(arrival.records), outcome.nbytes)
            return wanted is not None and not wanted.in_flight and assignment.is_running_low(wanted)
        if wanted is not None and outcome is None:
            wanted.put_off(arrival.offset)
        elif wanted is not None and outcome is not None:
            wanted.damaged(arrival.offset, _fault(arrival, outcome))
        return True

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _fault(arrival: FetchedRecords, error: BaseException) -> CorruptRecordError:
    if isinstance(error, DecodeError):
        return CorruptRecordError(str(error), arrival.tp, error.offset)
    return CorruptRecordError(f"{arrival.tp} at offset {arrival.offset}: {error!r}", arrival.tp, arrival.offset)


def _portions(arrivals: list[FetchedRecords]) -> list[list[FetchedRecords]]:
    """The arrivals in order, as many together as are decoded before the user wants to see the first of them."""
    portions: list[list[FetchedRecords]] = []
    size = _PORTION
    for arrival in arrivals:
        if size >= _PORTION:
            portions.append([])
            size = 0
        portions[-1].append(arrival)
        size += len(arrival.records)
    return portions


def _split_evenly(arrivals: list[FetchedRecords], count: int) -> list[list[FetchedRecords]]:
    """The arrivals in at most `count` parts of about the same size: handing work over costs more than little work."""
    parts: list[list[FetchedRecords]] = [[] for _ in range(min(count, len(arrivals)))]
    sizes = [0] * len(parts)
    for arrival in sorted(arrivals, key=lambda arrival: len(arrival.records), reverse=True):
        least = sizes.index(min(sizes))
        parts[least].append(arrival)
        sizes[least] += len(arrival.records)
    return parts


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
