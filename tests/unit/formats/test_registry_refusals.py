"""A schema that the registry refuses is an error of its records. A registry that is away is an error of the call."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from headrace.errors import SchemaRegistryError
from headrace.formats import Avro, Protobuf, SchemaRegistry, Source
from headrace.formats.registry import connection as connection_module
from support.formats.scripted_server import Request, Response, response, scripted_server

VALUES = Source("readings")
PROTO = 'syntax = "proto3"; message M {}'
FORMATS = {
    Avro: ({"schema": '"int"'}, b"\x0e", 7),
    Protobuf: ({"schema": PROTO, "schemaType": "PROTOBUF"}, b"\0", {}),
}
LOOP = {"references": [{"name": "again", "subject": "again", "version": 1}]}


def _decode(used: type, refusal: Response):
    """Decodes a record with schema 1, one with schema 2, for which the registry sends `refusal`, and one with 1."""
    good, body, value = FORMATS[used]

    def script(request: Request) -> Response:
        if request.target.endswith("/ids/2"):
            return refusal
        if "/again/" in request.target:
            return response({**good, **LOOP, "id": 3})
        return response({**good, "id": 1, "subject": "readings-value", "version": 1})

    with scripted_server(script) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_module, "LARGEST_ANSWER", 10_000)
        registry = SchemaRegistry(server.url, retries=0)
        cells = pa.array([b"\0" + number.to_bytes(4, "big") + body for number in (1, 2, 1)])
        made = used(registry)
        found = made.decode(cells, VALUES)
        assert made.decode(cells, VALUES) == found  # from the cache
        asked = sum(request.target.endswith("/ids/2") for request in server.requests)
    assert found.column.to_pylist() == [value, None, value]
    assert asked == 1
    return found.errors


def _unusable(**changes: object) -> bytes:
    return response({"schema": '"int"', **changes})


@pytest.mark.parametrize("used", FORMATS)
@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (response({"error_code": 40403, "message": "unknown"}, 404), "has no schema with id 2"),
        (response({"error_code": 40301, "message": "not yours"}, 403), r"denies access .* \(not yours\)"),
        (response({"error_code": 41001}, 410), "HTTP 410"),
        (response({"error_code": 42201, "message": "bad"}, 422), "as invalid"),
        (response({"name": "Denied"}, 451), "HTTP 451"),
        (_unusable(schemaType="XML"), "of type 'XML'"),
        (_unusable(schemaType="JSON"), "is JSON, not"),
        (_unusable(schema="{", schemaType="AVRO"), "cannot be read|is AVRO, not"),
        (_unusable(schema="{", schemaType="PROTOBUF"), "cannot be read|is PROTOBUF, not"),
        (_unusable(schema='"string"', schemaType="AVRO"), "cannot be read|is AVRO, not"),
        (_unusable(**LOOP), "references in a cycle"),
        (_unusable(schema="x" * 20_000), "larger than"),
    ],
)
def test_a_schema_that_cannot_be_used_is_an_error_of_its_records(used, refusal, reason):
    errors = _decode(used, refusal)
    assert errors.keys() == {1}
    assert re.search(reason, errors[1]), errors


@pytest.mark.parametrize("used", FORMATS)
@pytest.mark.parametrize(
    "refusal",
    [
        None,
        response({}, 400),
        response({"error_code": 40101}, 401),
        response({}, 403),  # of a gateway: the registry itself has an error code
        response(raw=b"<html>Denied</html>", status=403),
        response({}, 404),
        response({}, 407),
        response({}, 422),
        response({}, 500),
        response({}, 501),
        response({}, 503),
        response(raw=b"<html>Log in</html>"),
        response([]),
    ],
)
def test_a_registry_that_fails_is_an_error_of_the_call(used, refusal):
    with pytest.raises(SchemaRegistryError) as failed:
        _decode(used, refusal)
    assert failed.value.scope == "registry"
