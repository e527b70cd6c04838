"""Encoding of record batches, hashes of keys, and records that are sent directly, by the native module (`rust/`)."""

from ._native import (
    BufferMemory,
    ColumnEncoder,
    Delivery,
    DirectConnection,
    DirectPartition,
    DirectSender,
    EncodedBatch,
    MemoryReservation,
    OpenBatches,
    ProducerBatch,
    RowError,
    crc32,
    murmur2,
)

__all__ = [
    "BufferMemory",
    "ColumnEncoder",
    "Delivery",
    "DirectConnection",
    "DirectPartition",
    "DirectSender",
    "EncodedBatch",
    "MemoryReservation",
    "OpenBatches",
    "ProducerBatch",
    "RowError",
    "crc32",
    "murmur2",
    "positive_murmur2",
]

_WITHOUT_SIGN = 0x7FFFFFFF


def positive_murmur2(key: bytes) -> int:
    """As Java's partitioner uses it. (Its absolute value would be another partition.)"""
    return murmur2(key) & _WITHOUT_SIGN
