"""The response reader: kio's writer and reader as oracles, then input that kio's reader rejects."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import tracemalloc
import typing
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import OutOfBoundValue

from headrace._protocol import reader
from headrace._protocol.messages import (
    API_VERSIONS,
    APIS,
    DESCRIBE_TRANSACTIONS,
    FETCH,
    METADATA,
    PRODUCE,
    Api,
    decode_response,
)
from headrace.errors import ProtocolError
from support.brokers.fake_broker import UNKNOWN_TAG_DATA, answer, encode, frame

STEADY = settings(deadline=None, derandomize=True, max_examples=10)
ANSWERS = [(api, version) for api in APIS for version in range(api.lowest, api.highest + 1)]
each_answer = pytest.mark.parametrize(("api", "version"), ANSWERS, ids=str)

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_PLAIN: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in _INTEGERS.items()},
    "bool": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    "records": st.binary(max_size=300),
    "bytes": st.binary(max_size=30),
    "error_code": st.sampled_from(ErrorCode),
    "uuid": st.none() | st.integers(1, 2**128 - 1).map(lambda number: uuid.UUID(int=number)),
    "timedelta_i32": st.integers(-1, 2**31 - 1).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(0, 2**40).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 2**41).map(lambda ms: EPOCH + datetime.timedelta(milliseconds=ms)),
}


def values(hint: Any, kafka_type: str | None) -> st.SearchStrategy[Any]:
    args = typing.get_args(hint)
    if type(None) in args:
        inner = next(arg for arg in args if arg is not type(None))
        return st.none() | values(inner, kafka_type)
    if typing.get_origin(hint) is tuple:
        return st.lists(values(args[0], kafka_type), max_size=3).map(tuple)
    if dataclasses.is_dataclass(hint):
        return entities(hint)
    return _PLAIN[str(kafka_type)]


def entities(kind: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind,
        **{
            field.name: values(hints[field.name], field.metadata.get("kafka_type"))
            for field in dataclasses.fields(kind)
        },
    )


def written_by_kio(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def as_read(entity: Any) -> Any:
    """`entity` as headrace's reader returns it: times as milliseconds. kio uses datetime objects, and None for -1."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if field.metadata.get("kafka_type") == "datetime_i64":
            changes[field.name] = -1 if value is None else round((value - EPOCH) / datetime.timedelta(milliseconds=1))
        elif dataclasses.is_dataclass(value):
            changes[field.name] = as_read(value)
        elif isinstance(value, tuple):
            changes[field.name] = tuple(as_read(item) if dataclasses.is_dataclass(item) else item for item in value)
    return dataclasses.replace(entity, **changes)


@each_answer
def test_the_reader_parses_responses_as_kio_does(api: Api, version: int) -> None:
    kind = load_response_schema(api.key, version)

    @STEADY
    @given(entities(kind))
    def check(entity: Any) -> None:
        raw = written_by_kio(entity)
        ours, end = reader.read_to(kind, memoryview(raw))
        theirs, size = entity_reader(kind)(raw, 0)
        assert theirs == entity
        assert ours == as_read(entity)
        assert end == size == len(raw)
        assert encode(entity) == raw, "the tests' encoder must agree"

    check()


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api, version in ANSWERS if load_response_schema(api.key, version).__flexible__],
    ids=str,
)
def test_unknown_tagged_fields_are_skipped_at_every_level(api: Api, version: int) -> None:
    kind = load_response_schema(api.key, version)

    @STEADY
    @given(entities(kind))
    def check(entity: Any) -> None:
        raw = encode(entity, unknown_tags=True)
        assert UNKNOWN_TAG_DATA in raw
        assert reader.read_to(kind, memoryview(raw)) == (as_read(entity), len(raw))
        with pytest.raises(KeyError):
            entity_reader(kind)(raw, 0)

    check()


def test_an_unknown_error_code_is_parsed_as_a_number() -> None:
    kind = load_response_schema(API_VERSIONS.key, 4)
    raw = encode(answer(API_VERSIONS, 4, error_code=999, api_keys=(), throttle_time=0))
    code = reader.read(kind, memoryview(raw)).error_code
    assert (code, type(code)) == (999, int)
    with pytest.raises(ValueError, match="999"):
        entity_reader(kind)(raw, 0)


def test_a_known_error_code_is_parsed_as_kio_s_enum() -> None:
    kind = load_response_schema(API_VERSIONS.key, 4)
    raw = encode(answer(API_VERSIONS, 4, error_code=35, api_keys=(), throttle_time=0))
    assert reader.read(kind, memoryview(raw)).error_code is ErrorCode.unsupported_version


def fetch_answer(records: bytes | None) -> Any:
    partition = {"partition_index": 0, "error_code": 0, "high_watermark": 1, "aborted_transactions": None}
    topic = {"topic_id": uuid.UUID(int=1), "partitions": [{**partition, "records": records}]}
    return answer(FETCH, 18, throttle_time=0, error_code=0, session_id=0, responses=[topic])


def test_parsed_records_are_a_view_of_the_frame() -> None:
    raw = bytearray(frame(5, fetch_answer(b"x" * 1000))[4:])
    body = decode_response(FETCH, 18, memoryview(raw))
    records = body.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records == b"x" * 1000
    raw[raw.index(b"xxx")] = ord("y")
    assert records[0] == ord("y"), "a copy would not have changed"


def test_null_records_of_a_fetch_response_are_none() -> None:
    body = decode_response(FETCH, 18, memoryview(frame(5, fetch_answer(None))[4:]))
    assert body.responses[0].partitions[0].records is None


def test_a_transaction_that_has_not_begun_has_the_start_time_minus_one() -> None:
    """kio's reader rejects -1, since its field is not nullable."""
    state = {
        "error_code": 0,
        "transactional_id": "tx",
        "transaction_state": "Empty",
        "transaction_timeout": 60_000,
        "transaction_start_time": EPOCH - datetime.timedelta(milliseconds=1),
        "producer_id": 7,
        "producer_epoch": 0,
        "topics": (),
    }
    raw = frame(5, answer(DESCRIBE_TRANSACTIONS, 0, throttle_time=0, transaction_states=[state]))[4:]
    (found,) = decode_response(DESCRIBE_TRANSACTIONS, 0, memoryview(raw)).transaction_states
    assert (found.transaction_state, found.transaction_start_time) == ("Empty", -1)
    with pytest.raises(OutOfBoundValue):
        entity_reader(load_response_schema(DESCRIBE_TRANSACTIONS.key, 0))(raw, 5)


@pytest.mark.parametrize("version", range(10, PRODUCE.highest + 1))
def test_a_produce_response_names_the_new_leader(version: int) -> None:
    partition = {
        "index": 2,
        "error_code": ErrorCode.not_leader_or_follower,
        "base_offset": -1,
        "record_errors": (),
        "current_leader": {"leader_id": 3, "leader_epoch": 9},
    }
    topic = {"name": "t", "topic_id": uuid.UUID(int=1), "partition_responses": [partition]}
    nodes = [{"node_id": 3, "host": "h", "port": 1, "rack": None}]
    raw = frame(5, answer(PRODUCE, version, responses=[topic], node_endpoints=nodes))[4:]
    body = decode_response(PRODUCE, version, memoryview(raw))
    (found,) = body.responses[0].partition_responses
    assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (3, 9)
    assert (body.node_endpoints[0].host, found.log_append_time) == ("h", -1)


# -- malformed responses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(b"", "unpack_from", id="nothing"),
        pytest.param(b"\0\0" + b"\xff\xff\xff\xff", "the count at position \\d+ is -1", id="null instead of an array"),
        pytest.param(b"\0\0" + b"\xff\xff\xff\xfe", "the count at position \\d+ is -2", id="a negative count"),
        pytest.param(
            b"\0\0" + b"\x7f\xff\xff\xff",
            "a length of 2147483647 bytes at position \\d+ exceeds the",
            id="an impossible count",
        ),
        pytest.param(b"\0\0" + b"\0\0\0\x02" + b"\0" * 7, "", id="an array that is cut off"),
    ],
)
def test_malformed_legacy_structures_are_protocol_errors(raw: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=f"cannot decode ApiVersionsResponse v0: .*{reason}"):
        reader.read(load_response_schema(API_VERSIONS.key, 0), memoryview(raw))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(b"\x00", "the count at position \\d+ is -1", id="null instead of an array"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff", "more than five bytes", id="an endless varint"),
        pytest.param(b"\xff\xff\xff\xff\x0f", "bytes at position \\d+ exceeds the", id="an impossible count"),
        pytest.param(
            b"\x01" + b"\0\0\0\0" + b"\x01\x63\x64",
            "a length of 100 bytes at position \\d+ exceeds the",
            id="a tag that is cut off",
        ),
        pytest.param(
            b"\x01" + b"\0\0\0\0" + b"\x01\x01\x02" + b"\0" * 8, "longer than its 2", id="a tag with a wrong length"
        ),
        pytest.param(b"\x01" + b"\0\0\0\0" + b"\xff\xff\xff\xff\x0f", "", id="four billion tags"),
    ],
)
def test_malformed_flexible_structures_are_protocol_errors(raw: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=f"cannot decode ApiVersionsResponse v4: .*{reason}"):
        reader.read(load_response_schema(API_VERSIONS.key, 4), memoryview(b"\0\0" + raw))


def test_text_that_is_not_utf_8_is_a_protocol_error() -> None:
    raw = bytearray(encode(metadata_answer("the-cluster")))
    raw[raw.index(b"the-cluster")] = 0xFF
    with pytest.raises(ProtocolError, match="utf-8"):
        reader.read(load_response_schema(METADATA.key, 13), memoryview(raw))


def metadata_answer(cluster_id: str | None) -> Any:
    return answer(
        METADATA, 13, throttle_time=0, brokers=(), cluster_id=cluster_id, controller_id=-1, topics=(), error_code=0
    )


def test_null_where_text_has_to_be_is_a_protocol_error() -> None:
    raw = bytearray(encode(answer(METADATA, 13, **METADATA_FIELDS)))
    raw[raw.index(b"\x05host")] = 0  # the compact length of null
    with pytest.raises(ProtocolError, match=r"the length at position \d+ is -1"):
        reader.read(load_response_schema(METADATA.key, 13), memoryview(raw))


METADATA_FIELDS = {
    "throttle_time": 0,
    "brokers": [{"node_id": 1, "host": "host", "port": 1, "rack": None}],
    "cluster_id": None,
    "controller_id": -1,
    "topics": (),
    "error_code": 0,
}


@each_answer
def test_mutated_responses_raise_only_protocol_errors(api: Api, version: int) -> None:
    """A truncated response raises ProtocolError; one with changed bytes raises it or decodes to other values."""
    kind = load_response_schema(api.key, version)

    @settings(STEADY, max_examples=25)
    @given(
        entities(kind),
        st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]))),
        st.floats(0, 1, exclude_max=True),
    )
    def check(entity: Any, changes: list[tuple[float, int]], kept: float) -> None:
        raw = bytearray(frame(7, entity)[4:])
        if not changes:
            with pytest.raises(ProtocolError):
                decode_response(api, version, memoryview(raw)[: int(kept * len(raw))])
            return
        for where, byte in changes:
            raw[int(where * len(raw))] = byte
        with contextlib.suppress(ProtocolError):
            decode_response(api, version, memoryview(raw))

    check()


@pytest.mark.parametrize("cut", range(40))
def test_a_truncated_response_is_a_protocol_error(cut: int) -> None:
    raw = frame(7, answer(METADATA, 13, **METADATA_FIELDS))[4:]
    with pytest.raises(ProtocolError):
        decode_response(METADATA, 13, memoryview(raw[: min(cut, len(raw) - 1)]))


def test_a_huge_count_in_a_response_allocates_little_memory() -> None:
    raw = memoryview(b"\0\0" + b"\xff\xff\xff\xff\x0f" + b"\0" * 100)
    kind = load_response_schema(API_VERSIONS.key, 4)
    reader.reader_of(kind)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            reader.read(kind, raw)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_malformed_response_header_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="ResponseHeader"):
        decode_response(METADATA, 13, memoryview(b"\0\0\0\x01" + b"\xff" * 10))
