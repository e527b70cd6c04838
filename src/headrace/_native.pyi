"""The native module, in Rust (`rust/headrace-py`): the record kernel for `records.py` and `_record_batch.py`, decoders
and encoders for `formats`, and `Exclusive` for `sync`."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, final

from typing_extensions import Buffer

from ._aio.flag import Flag
from .errors import HeadraceError
from .types import RecordMetadata

_Schema = TypeVar("_Schema")
_Imported = TypeVar("_Imported")

IS_RELEASE: bool
"""Whether this module is built as in wheels, or for development."""

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
    def topic(self) -> str:
        """The name of the topic."""

    @property
    def partition(self) -> int:
        """The number of the partition."""

    @property
    def offset(self) -> int:
        """The offset in the partition."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970 UTC, or -1 if the record has no timestamp."""

    @property
    def timestamp_type(self) -> int:
        """0: the producer set the timestamp (CreateTime). 1: the broker set it (LogAppendTime)."""

    @property
    def key(self) -> Any:
        """The key as bytes, or as the consumer's `key.deserializer` returns it. None if the record has no key.

        Raises RecordDecodeError if the key cannot be decoded. `raw_key` has the bytes.
        """

    @property
    def value(self) -> Any:
        """The value as bytes, or as the consumer's `value.deserializer` returns it. None if the record has no value.

        Raises RecordDecodeError if the value cannot be decoded. `raw_value` has the bytes.
        """

    @property
    def raw_key(self) -> bytes | None:
        """The bytes of the key, also if the consumer has a `key.deserializer`."""

    @property
    def raw_value(self) -> bytes | None:
        """The bytes of the value, also if the consumer has a `value.deserializer`."""

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Names and values in order. Names may repeat. Bytes of a name that are not UTF-8 become U+FFFD."""

    @property
    def lane(self) -> str | None:
        """`live` or `backlog` with `enable.parallel.rebalance` (KIP-333), else None."""

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

    def deserialized(self, deserializer: object) -> Batch:
        """The same records, with keys and values from `deserializer.key(row, raw)` and `deserializer.value(row, raw)`.

        `row` counts from the beginning of this batch, also for its slices. Raises ValueError for a slice.
        """

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
    """A PyCapsule "arrow_array_stream" of the batches. Small batches of the same topic are joined."""

def arrow_batches(
    batches: Sequence[Batch], *, lane: bool, import_batch: Callable[[int, _Schema], _Imported], schema: _Schema
) -> list[_Imported]:
    """The batches as Arrow record batches. Small batches are joined, also of different topics.

    `import_batch` takes the address of a C ArrowArray, and the schema of `arrow_schema`, as pyarrow's
    `RecordBatch._import_from_c` does.
    """

def arrow_schema(*, lane: bool) -> object:
    """A PyCapsule "arrow_schema" with the schema of `arrow_stream`."""

@final
class BufferMemory:
    """The bytes of all records of a producer that are not delivered yet. All its batches share it."""

    def __new__(cls, limit: int) -> BufferMemory: ...
    @property
    def limit(self) -> int: ...
    @property
    def used(self) -> int: ...
    def take(self, size: int) -> None: ...
    def release(self, size: int) -> None: ...
    def reservation(self) -> MemoryReservation:
        """One of nothing, which can grow."""

@final
class MemoryReservation:
    """A part of the memory for records that are about to be encoded. Its methods are atomic. What is left of it when
    the object is dropped is released."""

    @property
    def held(self) -> int: ...
    def grow(self, least: int, most: int) -> bool:
        """Holds at least `least` bytes, and up to `most` if there are so many. False, without a change, if there are
        fewer than `least`."""

    def hand_over(self, size: int) -> None:
        """A batch has these bytes from now on, and releases them when it is done."""

    def release(self) -> None:
        """Releases what is left of it."""

@final
class OpenBatches:
    """The batches of one topic that still take records, one for each partition. Its methods are atomic."""

    sticky: int | None
    """The partition for records without a key. None: it has to be drawn."""

    def __new__(cls, partition_count: int, hash: str, memory: BufferMemory, largest: int) -> OpenBatches:
        """`hash` is murmur2, crc32 or none (keys do not choose partitions). A record that may take more than `largest`
        bytes is not appended."""

    def append(
        self,
        value: Buffer | str | None,
        key: Buffer | str | None = None,
        headers: Sequence[tuple[str, Buffer | str | None]] | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Delivery | None:
        """Appends a record to the open batch of its partition. None, and nothing is appended, if that is not possible
        at once: there is no such batch, it is full, memory is short, or the record is too large."""

    @staticmethod
    def largest_size(
        value: Buffer | str | None,
        key: Buffer | str | None = None,
        headers: Sequence[tuple[str, Buffer | str | None]] | None = None,
    ) -> int:
        """The most bytes that the record can take as a batch of its own, before compression."""

    def partition(self, key: Buffer | str | None) -> int | None:
        """The partition that the key chooses. None: the record goes to the sticky partition."""

    def __len__(self) -> int:
        """The number of partitions."""

    def get(self, partition: int) -> ProducerBatch | None: ...
    def put(self, partition: int, batch: ProducerBatch) -> None: ...
    def take(self, partition: int) -> ProducerBatch | None:
        """The open batch of the partition, which takes no more records."""

    def grow(self, partition_count: int) -> None: ...
    def lend(self, partition: int, direct: DirectPartition) -> None:
        """Records of the partition are sent directly, until `end_direct` or `put`."""

    def is_direct(self, partition: int) -> bool: ...
    def end_direct(self, partition: int) -> None: ...
    def take_direct_bytes(self, partition: int) -> int:
        """The bytes of records without a key that were sent directly to the partition since the last call."""

@final
class DirectSender:
    """What the records that are sent directly have in common: see rust/headrace-py/src/direct.rs."""

    def __new__(
        cls,
        client_id: str | None,
        acks: int,
        timeout_ms: int,
        codec: str,
        level: int | None,
        batch_size: int,
        memory: BufferMemory,
        waiting: object,
    ) -> DirectSender: ...
    def fileno(self) -> int:
        """Readable when the loop should look at its connections."""

    def clear(self) -> None: ...
    @property
    def requests(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def records_delivered(self) -> int: ...

@final
class DirectConnection:
    """The socket of a connection, while it is lent to the threads that send. Its methods are atomic."""

    def __new__(cls, sender: DirectSender, descriptor: int, patience: float = 0.005) -> DirectConnection: ...
    def lend(self, last_id: int) -> None: ...
    @property
    def is_lent(self) -> bool: ...
    @property
    def batch(self) -> ProducerBatch | None:
        """The batch on its way."""

    def check(self) -> Literal["take back", "watch", "idle"]:
        """What the loop has to do. "watch": look again soon. "idle": it is woken up."""

    def take_waiters(self) -> list[Flag]:
        """Those who waited for batches that are done."""

    def stop(self) -> None:
        """No thread uses the socket from here on."""

    def take_back(
        self, now: float
    ) -> tuple[int, tuple[ProducerBatch, int, int, int, float, bytes] | None, bytes, bool]:
        """After `stop`. The last correlation id; the request on its way: batch, correlation id, version, sequence
        number, age in seconds, unsent bytes; bytes of its response; whether the socket is broken."""

    def close(self) -> None: ...

@final
class DirectPartition:
    """A partition whose records are sent directly, one at a time."""

    def __new__(
        cls,
        sender: DirectSender,
        connection: DirectConnection,
        topic: str,
        number: int,
        *,
        version: int,
        topic_id: bytes | None,
        producer_id: int,
        epoch: int,
        next_sequence: int,
    ) -> DirectPartition: ...
    def end(self) -> None: ...
    @property
    def next_sequence(self) -> int: ...
    @property
    def has_delivered(self) -> bool: ...
    @property
    def is_in_flight(self) -> bool: ...

@final
class DirectFetch:
    """The requests of a stream of fetches, which the receiving thread repeats."""

    def __new__(
        cls,
        *,
        client_id: str | None,
        min_bytes: int,
        read_committed: bool,
        rack: str,
        check_crcs: bool,
        max_batch_bytes: int,
        lane: str | None,
    ) -> DirectFetch: ...
    def prepare(
        self,
        changes: Sequence[tuple[object, bytes, int, tuple[str, int, int, int] | None]],
        *,
        version: int,
        max_wait_ms: int,
        max_bytes: int,
        session_id: int,
        session_epoch: int,
        room: int,
    ) -> None:
        """The request that is about to be sent. `changes` has the partitions that differ from the last call: what
        identifies it, the id of its topic, its number, and its topic, offset, leader epoch and limit, or None if it is
        not requested any more."""

@final
class DirectResponse:
    """A usual response, after which the next request was sent."""

    @property
    def correlation_id(self) -> int:
        """Of the request that was sent."""

    @property
    def partitions(self) -> list[Any]:
        """Tuples of what identifies the partition, its high watermark and last stable offset, the next offset, the
        number of bytes received, and the records (None if there are none)."""

@final
class FrameReceiver:
    """Receives on one thread, and for a poll that waits on the poll's (`PollWait`). `arm`, `disarm` and `close` may be
    called on any."""

    def __new__(cls, descriptor: int, moment: float) -> FrameReceiver:
        """`descriptor` is that of a connected socket that blocks. It must stay open while `receive` runs. After a poll
        has left, the receiving thread waits for the next one for `moment` seconds, unless the last one took longer."""

    def receive(self) -> DirectResponse | tuple[int, bytes] | None:
        """Waits for a response, with the GIL released. Returns the size of a frame and its first bytes, which are all
        of it if it is small; or None at the end of the connection. Raises OSError."""

    def arm(self, fetch: DirectFetch, correlation_id: int) -> None:
        """The request with this correlation id is about to be sent. A usual response to it is followed by the next."""

    def disarm(self) -> int | None:
        """Nothing is sent here any more. Returns the correlation id of the last request, if requests were repeated."""

    @property
    def is_noting(self) -> bool:
        """Whether a poll has received something here that it has not noted. Nobody receives meanwhile."""

    def noted(self) -> None:
        """The poll has noted what it received here."""

    def leave(self) -> None:
        """The poll does not receive here any more."""

    def hand_over(self) -> None:
        """The receiving thread is to receive now, whatever the poll has done."""

    def close(self) -> None:
        """The socket was shut down: the receiving thread is to find that."""

@final
class PollWait:
    """How a poll waits. Belongs to the thread that polls, except for `notify`."""

    def __new__(cls) -> PollWait: ...
    def notify(self) -> None:
        """Ends the wait, or the next one. On any thread."""

    def receive(self, receivers: Sequence[FrameReceiver], seconds: float) -> tuple[int, DirectResponse] | None:
        """Waits until `notify`, with the GIL released, and receives on those connections whose threads sleep. Returns
        the number of the connection and its response, which is to be noted there (`FrameReceiver.noted`). Signal
        handlers are run, and may raise."""

@final
class DirectAnswer:
    """A socket to wait for. It stays open for as long as this object."""

    def fileno(self) -> int: ...

@final
class ProducerBatch:
    """The records of one partition for a Produce request, from the first record to the broker's answer."""

    def __new__(cls, topic: str, partition: int, limit: int, created: float, waiting: object) -> ProducerBatch:
        """`limit` is the size of the batch in bytes, before compression. A single record may exceed it. `waiting` is
        how a delivery is waited for: it has the methods `result` and `wait`."""

    @staticmethod
    def of_encoded(
        topic: str, partition: int, created: float, waiting: object, encoded: EncodedBatch, count: int, size: int
    ) -> ProducerBatch:
        """A batch that is already encoded. `size` is its size before compression."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def created(self) -> float: ...
    @property
    def size(self) -> int:
        """The size of the batch in bytes, before compression."""

    def __len__(self) -> int:
        """The number of records."""

    def append(
        self,
        value: Buffer | str | None,
        key: Buffer | str | None = None,
        headers: Sequence[tuple[str, Buffer | str | None]] | None = None,
        timestamp: int = 0,
    ) -> Delivery | None:
        """Adds a record. Returns None, and adds nothing, if the batch would exceed its limit or is finished."""

    @property
    def encoded(self) -> EncodedBatch | None:
        """The batch as it is sent: after `finish`, until it is done."""

    def finish(self, codec: str = "none", level: int | None = None) -> EncodedBatch:
        """Compresses the records, with the GIL released. The batch takes no more records.

        `codec` is none, gzip, snappy, lz4 or zstd; `level` (not of snappy) is the codec's default if None. As in Java,
        lz4's default level 9 is its fast compressor, and the other levels, 1 to 17, are its high compressor.
        Raises ValueError for an unknown codec or level, and if there is no record.
        """

    @property
    def is_done(self) -> bool:
        """Whether the batch was delivered or has failed."""

    @property
    def error(self) -> HeadraceError | None: ...
    @property
    def parts(self) -> list[ProducerBatch]:
        """The batches that have the records now, if this one was too large for the broker."""

    def complete(self, base_offset: int, log_append_time: int = -1) -> list[Flag]:
        """The broker has appended it. Returns those who wait: the caller sets their flags."""

    def fail(self, error: HeadraceError) -> list[Flag]: ...
    def split(self, parts: Sequence[ProducerBatch]) -> list[Flag]: ...
    def add_waiter(self, waiter: Flag) -> None: ...
    def receive(self, seconds: float) -> None:
        """If the batch was sent directly: wait for its answer on this thread, for some milliseconds at most."""

    def answer(self) -> DirectAnswer | None:
        """Where its answer will arrive, if it was sent directly: then call `receive`."""

@final
class Delivery:
    """The delivery of a record that was sent. Await it, or call `result()`, to get its offset. Its properties can be
    read at any time.
    """

    @property
    def topic(self) -> str:
        """The topic of the record."""

    @property
    def partition(self) -> int:
        """The partition that the producer chose."""

    @property
    def is_done(self) -> bool:
        """Whether the record was delivered, or has failed."""

    @property
    def offset(self) -> int | None:
        """None until the record is delivered, and with acks=0."""

    @property
    def timestamp(self) -> int:
        """The record's timestamp, in milliseconds since 1970; the broker's, if the topic has LogAppendTime."""

    @property
    def error(self) -> HeadraceError | None:
        """Why the record was not delivered. None until then, and if it was."""

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Waits until the record is delivered. Raises the error if it was not, and RequestTimeoutError after `timeout`
        seconds. Without a timeout, it ends after delivery.timeout.ms at the latest. Not for event loops: await the
        delivery there."""

    def __await__(self) -> Generator[Any, None, RecordMetadata]: ...
    @property
    def _batch(self) -> ProducerBatch: ...

@final
class EncodedBatch(Buffer):
    """A record batch as it is sent. It supports the buffer protocol, read-only."""

    def stamp(self, producer_id: int, epoch: int, sequence: int, *, is_transactional: bool = False) -> None:
        """Writes what identifies the batch among those of its producer, and a new checksum.

        Raises BufferError while a buffer of the batch is exported.
        """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class RowError(ValueError):
    """A row of Arrow data cannot be encoded as a record.

    Its partition does not exist, its timestamp is before 1970, a header has no name, its topic is invalid, or the
    record is too large.
    """

    row: int
    """The number of the row, from 0 on, over all Arrow batches."""
    size: int | None
    """The upper bound of the record's size if it exceeds `max_record_size`; None for other errors."""
    partition: int | None
    """The record's partition if the topic does not have it; None for other errors."""

@final
class ColumnEncoder:
    """Encodes Arrow data into record batches, one Arrow batch at a time. Not for more than one thread at a time.

    Call `next_topic`, then `encode` until it returns an empty list, and repeat both until `next_topic` returns None.
    The encoder keeps the Arrow memory alive while it reads it with the GIL released.
    """

    def __new__(
        cls,
        data: object,
        *,
        default_timestamp: int,
        ignored: Sequence[str] = (),
        ignores_other_columns: bool = False,
        is_of_kafka: bool = False,
    ) -> ColumnEncoder:
        """`data` has `__arrow_c_stream__` or `__arrow_c_array__`, or is a `pyarrow.RecordBatchReader`.

        | column | type | null |
        |---|---|---|
        | value (required), key | binary or string in any layout, or a dictionary of these | no value, no key |
        | headers | list of struct<key or name: string, value: binary or string>, or a map | no headers |
        | timestamp | timestamp of any unit, date64, or int64 in milliseconds | `default_timestamp` |
        | partition | an integer | chosen by key, or sticky |
        | topic | string, or a dictionary of strings | the topic "" |

        Timestamps are rounded down to milliseconds. Those before 1970 are refused, except for -1 ms, Kafka's "no
        timestamp", in records that were read from Kafka (`is_of_kafka`), where it counts as null. The other columns of
        `headrace.Records` (offset, timestampType, lane) are ignored, and so are those named in `ignored`.

        Raises ValueError for any other column unless `ignores_other_columns`, for a repeated or a missing column, and
        TypeError for a column of a wrong type.
        """

    default_timestamp: int
    @property
    def next_size(self) -> int | None:
        """The upper bound of the bytes of the topic's next row, in a batch of its own. None after the last one in this
        Arrow batch."""

    @property
    def open_bytes(self) -> int:
        """The bytes in batches that are not full."""

    def next_topic(self) -> str | None:
        """The next topic in this Arrow batch, in order of appearance, or the first one of the next Arrow batch.

        Returns "" for rows without a topic, and None at the end. The same topic may return in a later Arrow batch.
        Exceptions of a `pyarrow.RecordBatchReader` are raised unchanged; errors of other streams, of which only the
        text is available, become RuntimeErrors. Raises RuntimeError if rows of the topic before are not encoded, and
        RowError for an invalid topic.
        """

    def encode(
        self,
        *,
        partition_count: int,
        partitioner: str,
        sticky: Sequence[int],
        batch_size: int,
        max_record_size: int,
        ignores_empty_key: bool = False,
        codec: str = "none",
        level: int | None = None,
        max_bytes: int = ...,
        room: int | None = None,
    ) -> list[tuple[int, EncodedBatch, int, int, int]]:
        """Encodes about `max_bytes` (4 MiB by default, before compression) of the topic's rows, with the GIL released.

        Returns (partition, batch, number of records, size before compression, first row), in an order that keeps the
        order of rows within each partition. Returns an empty list after all rows of the topic in this Arrow batch.
        Until then, batches that are not full may stay in the encoder, up to `max_bytes`. They and the returned ones
        take at most `room` bytes; nothing is encoded if the next row might not fit.

        The partition of a row is its own, or that of its key (`partitioner`: "murmur2" as in Java, "crc32" as in
        librdkafka, "none" to ignore keys; with `ignores_empty_key` an empty key counts as none), or the first one of
        `sticky` until a batch is complete, then the next one. After the last one follows the first one again.

        Raises RowError for a row that cannot be encoded, when all rows of the topic before it have been returned.
        Repeating the call raises it again, unless the arguments allow the row now.
        """

    def finish(self) -> list[tuple[int, EncodedBatch, int, int, int]]:
        """Finishes the batches that are not full."""

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

@final
class ArrowArray:
    """An Arrow array for `pyarrow.array()` and whatever else knows the Arrow PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __len__(self) -> int: ...

def schema_ids(cells: object, *, id_size: int) -> list[int]:
    """The different schema ids of a binary column, in order of appearance, read with the GIL released.

    `id_size` is 4 or 8: the bytes of an id, after a zero byte. Rows without an id are left out.
    """

@final
class JsonDecoder:
    """Decodes JSON as columns of one type. Any number of threads may use it at a time."""

    def __new__(cls, schema: object, *, id_size: int = 0, timezone: str = "UTC") -> JsonDecoder:
        """`schema` is the result of `__arrow_c_schema__()`. Ids of `id_size` bytes are skipped; see `schema_ids`.
        `timezone` is that of timestamps without a zone.

        Raises TypeError for a type that JSON cannot be read as, and LookupError for an unknown time zone.
        """

    def decode(self, cells: object) -> tuple[ArrowArray, list[tuple[int, str]]]:
        """Decodes an Arrow array of binary, with the GIL released. Returns the column, and (row, reason) pairs."""

def encode_json(
    values: object, field: object, *, id_size: int = 0, schema_id: int = 0
) -> tuple[ArrowArray | None, tuple[int, str] | None]:
    """Encodes an Arrow array as JSON, with the GIL released. Returns the column, or a row with the reason.

    `field` is the result of `__arrow_c_schema__()` of a field with the type of the array. Nullability and metadata of
    its fields say what is written for null; see `formats/_json_fields.py`.
    """

@final
class AvroSchema:
    """A parsed Avro schema. It is immutable; `pyarrow.schema` and the like can import its Arrow type."""

    def __new__(cls, text: str, references: Sequence[str] = ()) -> AvroSchema:
        """`references` are schemas of named types that it uses, each after those that it uses itself.

        Raises ValueError if the schema is not valid, or recursive.
        """

    def fill_defaults(self, text: str) -> str:
        """JSON, as `JsonDecoder` reads it for the Arrow type, with the defaults of fields that are absent.

        Raises ValueError, with the path, for a field that has none and does not allow null.
        """

    def __arrow_c_schema__(self) -> object: ...

@final
class AvroPlan:
    """How to read one writer's records with a reader's schema."""

    def __new__(cls, writer: AvroSchema, reader: AvroSchema) -> AvroPlan:
        """Raises ValueError if no record of the writer can be read."""

@final
class AvroDecoder:
    """Decodes Avro as columns of a reader's schema. Any number of threads may use it at a time."""

    def __new__(cls, reader: AvroSchema, *, id_size: int = 0) -> AvroDecoder: ...
    def decode(self, cells: object, plans: Mapping[int, AvroPlan | str]) -> tuple[ArrowArray, list[tuple[int, str]]]:
        """Decodes an Arrow array of binary, with the GIL released. Returns the column, and (row, reason) for bad rows.

        `plans` has one for each schema id, or the reason why its records cannot be decoded. Without framing
        (`id_size=0`), the id is 0.
        """

def encode_avro(
    schema: AvroSchema, values: object, *, id_size: int = 0, schema_id: int = 0
) -> tuple[ArrowArray | None, tuple[int, str] | None]:
    """Encodes an Arrow array of the schema's type, with the GIL released. Returns the column, or a row with the reason.

    Raises TypeError for an array of another type.
    """

@final
class ProtobufSchema:
    """The files of a Protobuf schema. Immutable."""

    @staticmethod
    def from_text(text: str, references: Sequence[tuple[str, str]]) -> ProtobufSchema:
        """A schema as a registry has it. `references` has the names and texts of imported files.

        A text is .proto, or a FileDescriptorProto in base64. Raises ValueError.
        """

    @staticmethod
    def from_descriptors(descriptors: bytes) -> ProtobufSchema:
        """A FileDescriptorSet. Its last file is the one whose messages records name. Raises ValueError."""

    def files(self) -> list[tuple[str, bytes]]:
        """Name and FileDescriptorProto of imported files that are not built in, and at last of the schema itself."""

@final
class ProtobufMessage:
    """Decodes and encodes one message as columns. Any number of threads may use it at a time."""

    def __new__(cls, schema: ProtobufSchema, name: str | None, *, unsigned: bool, recursion: int) -> ProtobufMessage:
        """Without a name, it is the first message of the schema. Raises ValueError if it cannot become columns."""

    @property
    def name(self) -> str: ...
    def decode(
        self, cells: object, *, id_size: int, type_reference: bool, schemas: Mapping[int, ProtobufSchema | str]
    ) -> tuple[ArrowArray, list[tuple[int, str]]]:
        """Decodes an Arrow array of binary, with the GIL released. Returns the column, and (row, reason) for bad rows.

        `schemas` has the writers' schemas by id, or why there is none. With `type_reference`, none is needed.
        """

    def encode(
        self, values: object, *, id_size: int, schema_id: int, type_reference: bool, schema: ProtobufSchema
    ) -> tuple[ArrowArray | None, tuple[int, str] | None]:
        """Encodes an Arrow array of structs, with the GIL released. Returns the column, or the row that does not fit.

        Raises ValueError if records cannot name the message, and TypeError for columns of other types.
        """
