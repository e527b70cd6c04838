"""The identity of a record: who wrote it, to which partition, in which transaction, and its number.

Numbers count from 0 for each producer process and partition, in the order of `send()`. Java's VerifiableProducer writes
`prefix.number` and chooses the partition itself: its numbers count over all partitions. Typed records are JSON objects
with the same text as `identity`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

NO_TRANSACTION = -1
ANY_PARTITION = -1
"""The partition of Java's records, which they do not contain."""


class Identity(NamedTuple):
    producer: str
    """A process: the name of the client and the number of its life."""
    partition: int
    number: int
    transaction: int = NO_TRANSACTION

    def __str__(self) -> str:
        return f"{self.producer}:{self.partition}:{self.number}:{self.transaction}"


def typed_value(identity: Identity) -> str:
    return json.dumps({"identity": str(identity), "number": identity.number})


def parse_identity(text: str) -> Identity:
    if text.startswith("{"):
        text = json.loads(text)["identity"]
    if ":" not in text:
        prefix, _, number = text.partition(".")
        return Identity(f"java.{prefix}", ANY_PARTITION, int(number))
    producer, partition, number, transaction = text.split(":")
    return Identity(producer, int(partition), int(number), int(transaction))


KEYS = 5


def key_of(identity: Identity) -> str:
    """The key that clients give a record. Java's records have none, so each is a key of its own."""
    if identity.partition < 0:
        return str(identity)
    return f"{identity.producer}-{identity.number % KEYS}"


def identity_of(value: bytes | None, key: bytes | None) -> Identity:
    """The identity of a record; one of a producer that does not exist if the record has another key."""
    identity = parse_identity((value or b"").decode())
    expected = None if identity.partition == ANY_PARTITION else key_of(identity).encode()
    return identity if key == expected else identity._replace(producer=f"{identity.producer} with the key {key!r}")


_HEADER = "written"
_STAMPED_BY_BROKERS = "retained-"
"""Producers whose topic has LogAppendTime: brokers replace the timestamps of their records."""
Headers = tuple[tuple[str, bytes | None], ...]


def written_fields(identity: Identity) -> dict[str, Any]:
    """Arguments for a producer: a timestamp, and a header that repeats it with the identity."""
    timestamp = time.time_ns() // 1_000_000
    return {"timestamp": timestamp, "headers": [*_headers(identity, timestamp)]}


class Received(Protocol):
    """A record of headrace, or a row of librdkafka."""

    @property
    def value(self) -> bytes | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def timestamp(self) -> int: ...


def identity_of_record(record: Received) -> Identity:
    """As `identity_of`, and one that nobody wrote if the header or the timestamp is another. Java's records have no
    header."""
    identity = identity_of(record.value, record.key)
    is_replaced = identity.producer.startswith(_STAMPED_BY_BROKERS)
    timestamp = _timestamp_in(record.headers) if is_replaced else record.timestamp
    expected = () if identity.partition == ANY_PARTITION else _headers(identity, timestamp)
    if record.headers == expected:
        return identity
    return identity._replace(producer=f"{identity.producer} with the headers {record.headers!r} at {record.timestamp}")


def _timestamp_in(headers: Headers) -> int:
    text = headers[0][1] if headers else None
    digits = (text or b"").rpartition(b" ")[2]
    return int(digits) if digits.isdigit() else -1


def _headers(identity: Identity, timestamp: int) -> Headers:
    return ((_HEADER, f"{identity} {timestamp}".encode()),)


class Seen(NamedTuple):
    """A record at its place in a log."""

    partition: int
    offset: int
    identity: Identity


Run = list[int | str]
"""Consecutive offsets with consecutive numbers of one producer: partition, first offset, count, producer, its
partition, first number, transaction. Producers write in bursts, so ledgers of runs are much shorter."""


def to_runs(records: Iterable[Seen]) -> list[Run]:
    runs: list[Run] = []
    expected: tuple[int, int, Identity] | None = None
    for partition, offset, identity in records:
        if runs and expected == (partition, offset, identity):
            runs[-1][2] = int(runs[-1][2]) + 1
        else:
            producer, own, number, transaction = identity
            runs.append([partition, offset, 1, producer, own, number, transaction])
        expected = (partition, offset + 1, identity._replace(number=identity.number + 1))
    return runs


def from_runs(runs: Iterable[Run]) -> Iterator[Seen]:
    for partition, offset, count, producer, own, number, transaction in runs:
        for step in range(int(count)):
            identity = Identity(str(producer), int(own), int(number) + step, int(transaction))
            yield Seen(int(partition), int(offset) + step, identity)
