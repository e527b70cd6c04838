"""Responses of a registry that is broken or hostile: they raise a SchemaRegistryError, or are valid. Nothing else."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import SchemaRegistryError
from headrace.formats import SchemaRegistry
from headrace.formats.registry import answers
from headrace.formats.registry import http as http_module
from headrace.formats.registry.http import Answer
from support.formats.scripted_server import Request, Response, response, scripted_server
from support.harness.fuzzing import mutated, rounds

REFERENCE = {"name": "a.proto", "subject": "s", "version": 3}
BODIES: list[Any] = [
    {"schema": '"string"'},
    {
        "id": 7,
        "schema": '{"type":"record"}',
        "schemaType": "AVRO",
        "references": [REFERENCE],
        "subject": "s",
        "version": 2,
    },
    {"id": 7, "version": "12"},
    {"error_code": 40401, "message": "Subject not found"},
    {"name": "ArtifactNotFoundException", "title": "no\nsuch artifact"},
    {"versions": [{"artifactType": "JSON", "globalId": 1}]},
    {"references": [{"groupId": None, "artifactId": "a", "version": "1", "name": "n"}], "schema": "x"},
    ["a", "b"],
]
RAW = [json.dumps(each).encode() for each in BODIES]
VALUES: list[Any] = [
    None, True, -1, 2**70, 1.5, float("nan"), "", "x" * 300, "\ud800", "9" * 5000, [], [[]], {}, {"a": 1}, [None],
]  # fmt: skip
READERS: list[Callable[[Answer], Any]] = [
    lambda answer: answers.schema_in(answer, "schema 7"),
    lambda answer: answers.schema_in(answer, "schema 7", 7),
    lambda answer: answers.content_in(answer, "schema 7"),
    lambda answer: answers.id_in(answer, "subject s"),
    lambda answer: answers.kind_in(answer, "schema 7"),
    lambda answer: answers.json_in(answer, "subjects", list),
    lambda answer: answers.references_in(answers.json_in(answer, "x").get("references"), answer, "x"),
]


def changed(value: Any, chance: random.Random) -> Any:
    """A JSON value with another value somewhere in it."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        return {**value, name: changed(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], changed(value[at], chance), *value[at + 1 :]]
    return chance.choice(VALUES)


def body(chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return json.dumps(changed(chance.choice(BODIES), chance)).encode()
    if chance.random() < 0.05:
        return b"[" * 100_000
    return mutated(chance.choice(RAW), chance, RAW)


def test_a_response_is_usable_or_raises_its_own_error() -> None:
    for chance in rounds(4_000):
        data = body(chance)
        status = chance.choice((200, 200, 200, 401, 403, 404, 409, 422, 451, 599))
        kind = chance.choice((None, "AVRO", "avro", "\udcff", "x" * 500))
        answer = Answer(status, data, kind, "http://r/x", data[:500].decode(errors="replace"))
        for read in READERS:
            text = ""
            try:
                read(answer)
            except SchemaRegistryError as error:
                text = str(error)
            assert len(text) < 3_000


def test_a_server_that_is_no_registry_ends_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of the response is changed: its first line, its headers, its length, its body."""
    monkeypatch.setattr(http_module, "_FIRST_PAUSE", 0.0001)
    whole = [response(raw=each) for each in RAW] + [
        response({}, 302, headers={"Location": "/other"}),
        response({}, 307, headers={"Location": "http://127.0.0.1:1/x"}),
        response({}, 503, headers={"Retry-After": "0"}),
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"sch\r\n0\r\n\r\n',
    ]
    sent = b""

    def script(_request: Request) -> Response:
        def send(connection: socket.socket) -> None:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_RDWR)

        return send

    with scripted_server(script) as server:
        for number, chance in enumerate(rounds(150)):
            sent = mutated(chance.choice(whole), chance, whole)
            registry = SchemaRegistry(server.url, timeout=2.0, request_timeout=1.0, retries=1)
            with contextlib.suppress(SchemaRegistryError):
                registry.schema(number + 1)
            with contextlib.suppress(SchemaRegistryError):
                registry.latest("s")
            registry.close()
