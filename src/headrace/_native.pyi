"""The native module, in Rust (`rust/headrace-py`): the record kernel for `records.py` and `_record_batch.py`, and
`Exclusive` for `sync`."""

from collections.abc import Callable, Iterator, Sequence
from typing import final

from typing_extensions import Buffer

class DecodeError(Exception):
    """A record batch cannot be decoded: its checksum or a length is wrong, or its format is too old.

    `offset` is the base offset of the bad batch, or the fetch position if the base offset cannot be read.
    """

    topic: str
    partition: int
    offset: int

@final
class Record:
    """One record. Records compare by value, and can be hashed and pickled. Fields become Python objects on access.

    A record keeps its whole batch in memory. To keep a few records for a long time, keep their fields instead.
    """

    def __new__(
        cls,
        topic: str,
        partition: int,
        offset: int,
        *,
        timestamp: int = -1,
        timestamp_type: int = 0,
        key: bytes | bytearray | None = None,
        value: bytes | bytearray | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        lane: str | None = None,
        leader_epoch: int = -1,
        delivery_count: int | None = None,
    ) -> Record: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970 UTC, or -1 if the record has no timestamp."""

    @property
    def timestamp_type(self) -> int:
        """0: the producer set the timestamp (CreateTime). 1: the broker set it (LogAppendTime)."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Names and values in order. Names may repeat. Bytes of a name that are not UTF-8 become U+FFFD."""

    @property
    def lane(self) -> str | None: ...
    @property
    def leader_epoch(self) -> int:
        """The partition leader epoch in which the record was written, or -1 if unknown."""

    @property
    def delivery_count(self) -> int | None:
        """How often the share group has delivered the record, including this time. None outside of a share group."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Batch:
    """The records of one partition, stored in columns. Immutable. Slices share the memory."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def lane(self) -> str | None: ...
    @property
    def next_offset(self) -> int:
        """The position after this batch, including control records, aborted records and compaction gaps.

        For a slice: the offset after its last record, or the position after the whole batch if the slice reaches its
        end.
        """

    @property
    def leader_epoch(self) -> int:
        """The partition leader epoch of the last record, or of the skipped batches if there are no records, or -1."""

    @property
    def first_offset(self) -> int | None: ...
    @property
    def last_offset(self) -> int | None: ...
    @property
    def nbytes(self) -> int:
        """The memory used by the records, in bytes. For a slice, its portion."""

    def slice(self, start: int, length: int) -> Batch:
        """At most `length` records from index `start` on, without a copy.

        Raises ValueError if a number is negative.
        """

    @property
    def delivery_count(self) -> int | None: ...
    def between(self, first: int, last: int, delivery_count: int) -> Batch:
        """The records with offsets from `first` to `last`, both included, with this delivery count, without a copy."""

    def runs(self) -> list[tuple[int, int]]:
        """The offsets of the records as contiguous ranges: (first, last), both included."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Record: ...
    def __iter__(self) -> Iterator[Record]: ...

def decode(
    data: Buffer,
    *,
    topic: str,
    partition: int,
    position: int,
    aborted: Sequence[tuple[int, int]] = (),
    read_committed: bool = False,
    check_crcs: bool = True,
    max_batch_bytes: int = ...,
    lane: str | None = None,
) -> Batch:
    """Decode the records of one partition of a Fetch response, from `position` on.

    `data` is read only during the call and must not be written to meanwhile: the GIL is released. A truncated batch at
    the end is ignored. `aborted` is the response's list of (producer id, first offset).

    Decoding stops at a bad batch: the records before it are returned, and `next_offset` is its base offset. If the bad
    batch is the first one, `DecodeError` is raised. One compressed batch may decompress to `max_batch_bytes` (256 MiB
    by default); a larger one counts as bad. After about 1 GiB, the rest is left for the next fetch.
    """

def decode_all(
    partitions: Sequence[tuple[Buffer, str, int, int, Sequence[tuple[int, int]]]],
    *,
    read_committed: bool,
    check_crcs: bool,
    max_batch_bytes: int,
    max_total_bytes: int,
    lane: str | None = None,
) -> list[Batch | DecodeError | None]:
    """Decode several partitions (data, topic, partition, position, aborted), releasing the GIL once.

    The result has a DecodeError in place of a partition for which `decode` would raise it. Decoding stops before the
    batch that would exceed `max_total_bytes`, but decodes at least one batch. The partitions after that are None.
    """

def next_offset(data: Buffer, position: int) -> int:
    """The position after the complete batches in `data`, read from their headers only.

    It equals the `next_offset` of `decode`, unless a batch is bad or there is too much data for one call.
    """

def arrow_stream(batches: Sequence[Batch], *, lane: bool, requested_schema: object | None) -> object:
    """A PyCapsule "arrow_array_stream" of the batches, one Arrow record batch each."""

def arrow_schema(*, lane: bool) -> object:
    """A PyCapsule "arrow_schema" with the schema of `arrow_stream`."""

@final
class BatchBuilder:
    """Collects the records of one batch for a Produce request. Not for more than one thread at a time."""

    def __new__(cls, limit: int) -> BatchBuilder:
        """`limit` is the size of the batch in bytes, before compression. A single record may exceed it."""

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]] = (),
    ) -> bool:
        """Adds a record. Returns False, and adds nothing, if the batch would exceed its limit."""

    @property
    def size(self) -> int:
        """The size of the batch in bytes, before compression."""

    def __len__(self) -> int:
        """The number of records."""

    def finish(self, codec: str = "none", level: int | None = None) -> EncodedBatch:
        """Compresses the records, with the GIL released, and ends the builder.

        `codec` is none, gzip, snappy, lz4 or zstd; `level` (of gzip and zstd only) is the codec's default if None.
        Raises ValueError for an unknown codec or level, and if there is no record.
        """

@final
class EncodedBatch(Buffer):
    """A record batch as it is sent. It supports the buffer protocol, read-only."""

    def stamp(self, producer_id: int, epoch: int, sequence: int, *, is_transactional: bool = False) -> None:
        """Writes what identifies the batch among those of its producer, and a new checksum.

        Raises BufferError while a buffer of the batch is exported.
        """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def murmur2(key: Buffer) -> int:
    """The hash of Java's default partitioner, as a signed number of 32 bits."""

def crc32(key: Buffer) -> int:
    """The hash of librdkafka's default partitioner."""

@final
class Exclusive:
    """A reentrant lock that raises instead of waiting: if another thread holds it, entering raises `error(message)`.
    Unlike a lock written in Python, it cannot stay held when a signal handler raises (Ctrl-C).
    """

    def __new__(cls, error: Callable[[str], BaseException], message: str) -> Exclusive: ...
    @property
    def depth(self) -> int:
        """How deeply the holding thread has nested it; 0 if no thread holds it."""

    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...
