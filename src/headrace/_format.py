"""The interface between a format of keys or values (JSON, Avro, Protobuf) and everything that uses one.

`headrace.formats` has the formats. `records.py`, the consumers, the producer and Spark know only this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import pyarrow

FieldName = Literal["key", "value"]


class Source(NamedTuple):
    """Where a column of bytes comes from, or goes to: subjects of a schema registry and error messages contain it."""

    topic: str
    field: FieldName = "value"

    @property
    def subject(self) -> str:
        """The subject of a schema registry, by Confluent's default strategy (TopicNameStrategy)."""
        return f"{self.topic}-{self.field}"


class DecodedColumn(NamedTuple):
    """A decoded column. It has the type that `Format.arrow_type` returns, and the length of the column of bytes."""

    column: pyarrow.Array
    errors: Mapping[int, str]
    """The reason for each row that cannot be decoded. It is null in the column. Rows are in ascending order."""


class Format(ABC):
    """Decodes and encodes keys or values, a column at a time.

    A format is used by any thread, and by several at a time. It can be pickled: Spark sends it to executors. Its
    `repr` contains no secrets.

    Both directions may ask a schema registry. Then they block, and raise SchemaRegistryError if it cannot be reached;
    nothing was decoded then, and the same call may be repeated. Do not call them on an event loop.
    """

    @abstractmethod
    def arrow_type(self, source: Source) -> pyarrow.DataType:
        """The type of decoded columns. It does not change as long as this object exists."""

    @abstractmethod
    def decode(self, cells: pyarrow.Array, source: Source) -> DecodedColumn:
        """Decodes a binary column. Null stays null. A row that cannot be decoded is null, with a reason in `errors`."""

    def prepare(self, cells: pyarrow.Array, source: Source) -> Any:
        """Asks a schema registry for whatever `decode` of the same column needs, and returns it for `decode_prepared`.

        A background thread calls this. Raises what `decode` would raise.
        """
        return None

    def decode_prepared(self, cells: pyarrow.Array, source: Source, prepared: Any) -> DecodedColumn:
        """Like `decode`, but without requests and waits: this may be the user's event loop. `prepared` is what
        `prepare` has returned for this column."""
        return self.decode(cells, source)

    @abstractmethod
    def encode(self, values: pyarrow.Array, source: Source) -> pyarrow.Array:
        """Encodes a column as a binary column. Null stays null.

        Raises RecordEncodeError for a row that does not fit, and ConfigError if the type of the column does not.
        """
