"""Encoding of record batches, and hashes of keys, by the native kernel (`rust/headrace-kernel`)."""

from ._native import (
    BufferMemory,
    ColumnEncoder,
    Delivery,
    EncodedBatch,
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
    "EncodedBatch",
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
