"""An encoder of record batches, written from the protocol specification and independent of the kernel."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass

NO_PRODUCER = -1
COMMIT, ABORT = 1, 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A record to encode."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str | bytes, bytes | None], ...] = ()
    offset_delta: int | None = None
    timestamp_delta: int = 0


def varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    raw &= (1 << 64) - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_record(entry: Entry, index: int) -> bytes:
    delta = index if entry.offset_delta is None else entry.offset_delta
    body = b"\0" + varint(entry.timestamp_delta) + varint(delta) + _nullable(entry.key) + _nullable(entry.value)
    body += varint(len(entry.headers))
    for name, value in entry.headers:
        body += _nullable(name.encode() if isinstance(name, str) else name) + _nullable(value)
    return varint(len(body)) + body


def encode_batch(
    entries: Sequence[Entry],
    *,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 1_000,
    max_timestamp: int = 2_000,
    leader_epoch: int = 7,
    producer_id: int = NO_PRODUCER,
    epoch: int = 0,
    sequence: int = 0,
    compressed: bool = False,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    magic: int = 2,
    count: int | None = None,
    crc: int | None = None,
    body: bytes | None = None,
) -> bytes:
    """One batch. `count`, `crc` and `body` override the values computed from the entries."""
    if body is None:
        body = b"".join(encode_record(e, i) for i, e in enumerate(entries))
        if compressed:
            body = gzip.compress(body, mtime=0)
    if last_offset_delta is None:
        deltas = [i if e.offset_delta is None else e.offset_delta for i, e in enumerate(entries)]
        last_offset_delta = max(deltas, default=0)
    attributes = compressed | log_append_time << 3 | transactional << 4 | control << 5
    checksummed = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            epoch if producer_id >= 0 else -1,
            sequence if producer_id >= 0 else -1,
            len(entries) if count is None else count,
        )
        + body
    )
    checksum = crc32c(checksummed) if crc is None else crc
    rest = struct.pack(">ibI", leader_epoch, magic, checksum) + checksummed
    return struct.pack(">qi", base_offset, len(rest)) + rest


def encode_marker(kind: int, *, base_offset: int, producer_id: int) -> bytes:
    """The control batch that ends a transaction: `COMMIT` or `ABORT`."""
    entry = Entry(key=struct.pack(">hh", 0, kind), value=struct.pack(">hi", 0, 3))
    return encode_batch([entry], base_offset=base_offset, producer_id=producer_id, transactional=True, control=True)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
