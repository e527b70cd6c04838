"""Protobuf beside Google's library: random schemas and messages, both ways."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.formats import Protobuf, Source
from support.formats.random_protobuf import actual, comparable, expected, message_class, messages, schemas

SOURCE = Source("topic")
SLOW = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def rows(kind: Any, records: list[bytes | None], **options: Any) -> list[Any]:
    column, errors = Protobuf(kind, **options).decode(pa.array(records, pa.binary()), SOURCE)
    assert errors == {}
    column.validate(full=True)
    return [comparable(actual(each, kind.DESCRIPTOR)) for each in column.to_pylist()]


@SLOW
@given(st.data())
def test_columns_contain_what_the_reference_reads(data):
    kind = message_class(data.draw(schemas()))
    written = data.draw(st.lists(messages(kind), min_size=1, max_size=4))
    records = [each.SerializeToString() for each in written]
    wanted = [comparable(expected(kind.FromString(each))) for each in records]
    assert rows(kind, [*records, None]) == [*wanted, None]


@SLOW
@given(st.data())
def test_the_reference_reads_what_was_encoded(data):
    kind = message_class(data.draw(schemas()))
    written = data.draw(st.lists(messages(kind), min_size=1, max_size=4))
    unsigned = data.draw(st.booleans())
    # Nanoseconds are lost when a record is decoded. So the records are those that were decoded once.
    once = Protobuf(kind, unsigned=unsigned)
    column = once.decode(pa.array([each.SerializeToString() for each in written]), SOURCE).column
    records = once.encode(column, SOURCE).to_pylist()
    assert [comparable(expected(kind.FromString(each))) for each in records] == [
        comparable(expected(each)) for each in written
    ]
    assert once.encode(once.decode(pa.array(records), SOURCE).column, SOURCE).to_pylist() == records


@SLOW
@given(st.data())
def test_two_encodings_after_each_other_are_merged(data):
    """Concatenation is how Protobuf merges messages."""
    kind = message_class(data.draw(schemas()))
    first, second = (data.draw(messages(kind)).SerializeToString() for _ in range(2))
    merged = kind.FromString(first + second)
    # A merged time may be invalid, which Google's library notices only when it is converted.
    column, errors = Protobuf(kind).decode(pa.array([first + second]), SOURCE)
    assume(not any("are not a valid " in each for each in errors.values()))
    assert errors == {}
    assert comparable(actual(column[0].as_py(), kind.DESCRIPTOR)) == comparable(expected(merged))


@SLOW
@given(st.data())
def test_bytes_that_the_reference_refuses_are_errors(data):
    kind = message_class(data.draw(schemas()))
    record = bytearray(data.draw(messages(kind)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if record:
            record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    del record[data.draw(st.integers(0, len(record))) :]
    column, errors = Protobuf(kind).decode(pa.array([bytes(record)]), SOURCE)
    column.validate(full=True)
    try:
        reference = kind.FromString(bytes(record))
    except DecodeError:
        assert 0 in errors
        return
    # Here a field with the wrong wire type is an error. For Google's library, it is unknown.
    if 0 not in errors:
        assert comparable(actual(column[0].as_py(), kind.DESCRIPTOR)) == comparable(expected(reference))
