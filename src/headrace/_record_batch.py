"""Encoding of record batches, and the partition of a key, by the native kernel (`rust/headrace-kernel`)."""

from ._native import BatchBuilder, EncodedBatch, crc32, murmur2

__all__ = ["BatchBuilder", "EncodedBatch", "crc32", "murmur2"]
