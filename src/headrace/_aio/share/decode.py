"""Decodes the acquired records of a ShareFetch answer.

A broker sends whole batches. Records in them that were not acquired belong to other members, or to none yet: they are
dropped. Acquired offsets without a record are gaps.
"""

from __future__ import annotations

import dataclasses
import struct

from ..._machines.share.offset_map import OffsetMap
from ..._machines.share.responses import AcquiredData
from ...config.consumer import ConsumerConfig
from ...errors import CorruptRecordError
from ...records import Batch, DecodeError, decode, deserialized

_HEAD = struct.Struct(">qi")  # base offset, length of what follows
_LAST_OFFSET_DELTA = 23
_HEADER = 61


@dataclasses.dataclass(frozen=True, slots=True)
class Decoded:
    batches: list[Batch]
    gaps: list[tuple[int, int]]
    damaged: list[tuple[int, int]]
    error: CorruptRecordError | None


def decode_arrival(arrival: AcquiredData, config: ConsumerConfig) -> Decoded:
    """Skips damaged batches."""
    tp = arrival.acquired.tp
    data = memoryview(b"") if arrival.records is None else memoryview(arrival.records)
    position = min(first for first, _, _ in arrival.ranges)
    found: list[Batch] = []
    bad: list[tuple[int, int]] = []
    error: CorruptRecordError | None = None
    while True:
        data, batch = _from_batch_with(data, position)
        if batch is None:
            break
        try:
            part = decode(
                data,
                topic=tp.topic,
                partition=tp.partition,
                position=position,
                check_crcs=config.check_crcs,
                max_batch_bytes=config.decompressed_batch_max_bytes,
            )
        except DecodeError as problem:
            error = error or CorruptRecordError(f"{problem}. The batch was rejected", tp, problem.offset)
        else:
            if config.value_deserializer is not None or config.key_deserializer is not None:
                part = deserialized(part, config.value_deserializer, config.key_deserializer)
            found.append(part)
            if part.next_offset > position:
                position = part.next_offset  # up to a damaged batch, or to the limit of one decode
                continue
            error = error or CorruptRecordError(
                f"{tp} at offset {batch[0]} cannot be decoded. The batch was rejected", tp, batch[0]
            )
        bad.append(batch)
        position = batch[1] + 1
    return _acquired(arrival, found, bad, error)


def _from_batch_with(data: memoryview, position: int) -> tuple[memoryview, tuple[int, int] | None]:
    """The data from the first batch that ends at or after the position, and the offsets of that batch."""
    at = 0
    while len(data) - at >= _HEADER:
        base, size = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + size
        if size <= 0 or end > len(data):
            break
        last = base + int(struct.unpack_from(">i", data, at + _LAST_OFFSET_DELTA)[0])
        if last >= position:
            return data[at:], (max(base, position), last)
        at = end
    return data[:0], None


def _acquired(
    arrival: AcquiredData, found: list[Batch], bad: list[tuple[int, int]], error: CorruptRecordError | None
) -> Decoded:
    batches: list[Batch] = []
    gaps: list[tuple[int, int]] = []
    damaged: list[tuple[int, int]] = []
    for first, last, delivery_count in arrival.ranges:
        parts = [part for each in found if len(part := each.between(first, last, delivery_count))]
        batches += parts
        if sum(map(len, parts)) == last - first + 1:
            continue
        rest: OffsetMap[bool] = OffsetMap()
        rest.set(first, last, True)
        for part in parts:
            for run in part.runs():
                rest.remove(*run)
        for damage in bad:
            damaged += [(run.first, run.last) for run in rest.remove(*damage)]
        gaps += [(run.first, run.last) for run in rest]
    return Decoded(batches, gaps, damaged, error)
