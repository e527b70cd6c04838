"""The native decoders and encoders (`rust/headrace-formats`), and what all formats need to call them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._format import DecodedColumn, Source
from .._native import (
    ArrowArray,
    AvroDecoder,
    AvroPlan,
    AvroSchema,
    JsonDecoder,
    ProtobufMessage,
    ProtobufSchema,
    encode_avro,
    encode_json,
    schema_ids,
)
from ..errors import RecordEncodeError

__all__ = [
    "ArrowArray",
    "AvroDecoder",
    "AvroPlan",
    "AvroSchema",
    "JsonDecoder",
    "ProtobufMessage",
    "ProtobufSchema",
    "as_cells",
    "decoded",
    "encode_avro",
    "encode_json",
    "encoded",
    "from_native",
    "load_pyarrow",
    "schema_ids",
]


def load_pyarrow() -> Any:
    """The module pyarrow. Raises ImportError that says what to install."""
    try:
        import pyarrow
    except ImportError as e:
        raise ImportError("headrace.formats needs pyarrow: pip install 'headrace[formats]'") from e
    return pyarrow


def as_cells(array: Any) -> Any:
    """A column of bytes or text, in the layout that the native decoders read."""
    pyarrow = load_pyarrow()
    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks()
    return array if array.type == pyarrow.binary() else array.cast(pyarrow.binary())


def from_native(array: ArrowArray) -> Any:
    """The native array for pyarrow, without a copy."""
    return load_pyarrow().array(array)


def decoded(result: tuple[ArrowArray, Iterable[tuple[int, str]]]) -> DecodedColumn:
    column, errors = result
    return DecodedColumn(from_native(column), dict(errors))


def encoded(result: tuple[ArrowArray | None, tuple[int, str] | None], source: Source) -> Any:
    """The column. Raises RecordEncodeError for the row that cannot be encoded."""
    column, bad = result
    if bad is not None:
        raise RecordEncodeError(bad[0], source.field, bad[1])
    return from_native(column)  # type: ignore[arg-type]
