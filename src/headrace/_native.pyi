"""The record kernel, in Rust (`rust/headrace-py`), for `headrace.records`; `Exclusive` for `sync/threaded.py`."""

from collections.abc import Callable, Iterator, Sequence
from typing import final

from typing_extensions import Buffer

class DecodeError(Exception):
    """The record bytes of a partition cannot be decoded: a bad checksum, a lying length, an old format.

    `offset` is the base offset of the bad batch, or the fetch position where even that cannot be told.
    """

    topic: str
    partition: int
    offset: int

@final
class Record:
    """One record, equal by value, hashable, picklable. Its fields become Python objects when asked for.

    It keeps the batch that it came from in memory. To keep a few records for long, keep their fields.
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
        """Milliseconds since 1970 UTC, or -1 where the record has none."""

    @property
    def timestamp_type(self) -> int:
        """0: the producer's time (CreateTime). 1: the broker's (LogAppendTime)."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Names and values in order; names may repeat. Bytes of a name that are not UTF-8 become U+FFFD."""

    @property
    def lane(self) -> str | None: ...
    @property
    def leader_epoch(self) -> int:
        """The partition leader epoch under which the record was written, or -1 where unknown."""

    @property
    def delivery_count(self) -> int | None:
        """How often its share group has delivered the record, this time included; None outside of one."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Batch:
    """Records of one partition, by column. Immutable; slices share the memory."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def lane(self) -> str | None: ...
    @property
    def next_offset(self) -> int:
        """The position after this batch, past control records, aborted ones and compaction gaps too.

        Of a slice: the offset after its last record, or the whole batch's position if it reaches the end.
        """

    @property
    def leader_epoch(self) -> int:
        """The partition leader epoch of the last record (without records: of what was passed over), or -1."""

    @property
    def first_offset(self) -> int | None: ...
    @property
    def last_offset(self) -> int | None: ...
    @property
    def nbytes(self) -> int:
        """The memory that the records take; of a slice, its share."""

    def slice(self, start: int, length: int) -> Batch:
        """The `length` records from `start` on, or as many as there are, without a copy.

        Raises ValueError for a negative number.
        """

    @property
    def delivery_count(self) -> int | None: ...
    def between(self, first: int, last: int, delivery_count: int) -> Batch:
        """The records with offsets from `first` to `last`, both included, which a share group delivers for the
        `delivery_count`th time, without a copy."""

    def runs(self) -> list[tuple[int, int]]:
        """The offsets of the records, as stretches without a gap: (first, last), both included."""

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
    """The records of one partition of a Fetch response, from `position` on.

    `data` is read during the call only and must not be written to meanwhile: the GIL is released. A batch
    that is cut off at the end is left alone. `aborted` is the response's list of (producer id, first offset).

    A bad batch ends the work: what came before it is returned, and `next_offset` is where it begins. When it
    comes first, `DecodeError` is raised. One compressed batch may decompress to `max_batch_bytes` (256 MiB by
    default); more is taken for a bomb and is a bad batch. After about 1 GiB the rest is left for the next fetch.
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
    """`decode` for several partitions (data, topic, partition, position, aborted), with the GIL released once.

    Where `decode` would raise a DecodeError there is that error in the partition's place. Work ends with the batch
    before `max_total_bytes` of records, and not before one batch is taken; for the partitions behind there is None.
    """

def next_offset(data: Buffer, position: int) -> int:
    """The position after the whole batches in `data`, from their headers alone.

    It is the `next_offset` that `decode` will give, unless a batch turns out to be bad or there is too much.
    """

def arrow_stream(batches: Sequence[Batch], *, lane: bool, requested_schema: object | None) -> object:
    """A PyCapsule "arrow_array_stream" of the batches, one Arrow record batch each."""

def arrow_schema(*, lane: bool) -> object:
    """A PyCapsule "arrow_schema" of what `arrow_stream` gives."""

@final
class Exclusive:
    """A context manager that one thread at a time may be inside of; it may nest. Another thread does not wait: it
    raises `error(message)`. A signal handler that raises (Ctrl-C) cannot leave it held, as it could a Python one.
    """

    def __new__(cls, error: Callable[[str], BaseException], message: str) -> Exclusive: ...
    @property
    def depth(self) -> int:
        """How many calls of the thread that is inside are nested; 0 if no thread is inside."""

    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...
