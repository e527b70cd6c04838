"""`headrace tail` and `headrace produce` with --value and --key, against a real registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from operator import itemgetter
from typing import Any

import pytest

from headrace import LocalBroker, Producer
from headrace.formats import SchemaRegistry
from headrace.local import LocalRegistry
from headrace.ui.server import BackgroundPage, PageOptions
from support.formats.scripted_server import response, scripted_server
from support.harness.page_client import PageClient

pytestmark = pytest.mark.timeout(300)

READING = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "road", "type": "string"},
        {"name": "speed", "type": ["null", "double"], "default": None},
        {"name": "raw", "type": "bytes"},
        {"name": "lanes", "type": {"type": "array", "items": "int"}, "default": [1]},
    ],
}
PROTOBUF = 'syntax = "proto3";\n\nmessage Reading {\n  string road = 1;\n  int64 seen = 2;\n}\n'


def run(*args: str, input: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *args],
        input=input,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def topic(schema_registry: LocalRegistry) -> str:
    name = f"typed-{uuid.uuid4().hex}"
    registry = SchemaRegistry(schema_registry.url)
    registry.register(f"{name}-value", json.dumps(READING), "AVRO")
    registry.register(f"{name}-key", '"string"', "AVRO")
    return name


def test_avro_that_is_produced_is_shown_as_json(
    kafka_broker: LocalBroker, schema_registry: LocalRegistry, topic: str
) -> None:
    cluster = ("-b", kafka_broker.bootstrap_servers, "-t", topic)
    typed = ("--value", "avro", "--key", "avro", "--registry", schema_registry.url)
    lines = [{"key": f"k{n}", "value": {"road": f"A{n}", "speed": n / 2 or None, "raw": "/w=="}} for n in range(3)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = run("produce", *cluster, "--create", "--format", "json", *typed, input=text)
    assert done.returncode == 0, done.stderr

    read = ("tail", *cluster, "-o", "beginning", "-e")
    shown = run(*read, "--format", "json", *typed)
    assert shown.returncode == 0, shown.stderr
    found = sorted((row["key"], row["value"]) for row in map(json.loads, shown.stdout.splitlines()))
    assert found == [(line["key"], {**line["value"], "lanes": [1]}) for line in lines]

    raw_lines = run(*read, "--format", "hex").stdout.splitlines()
    assert len(raw_lines) == 3
    assert all(line.startswith("00") for line in raw_lines)
    grep = run(*read, "--grep", '"A2"', *typed)
    assert json.loads(grep.stdout)["road"] == "A2"


def test_protobuf_that_is_produced_is_shown_as_json(kafka_broker: LocalBroker, schema_registry: LocalRegistry) -> None:
    name = f"typed-{uuid.uuid4().hex}"
    SchemaRegistry(schema_registry.url).register(f"{name}-value", PROTOBUF, "PROTOBUF")
    cluster = ("-b", kafka_broker.bootstrap_servers, "-t", name)
    typed = ("--value", "protobuf", "--registry", schema_registry.url)
    lines = [{"road": "A1", "seen": 7}, {"road": "A2"}]
    done = run("produce", *cluster, "--create", *typed, input="".join(json.dumps(line) + "\n" for line in lines))
    assert done.returncode == 0, done.stderr
    shown = run("tail", *cluster, "-o", "beginning", "-e", *typed)
    assert shown.returncode == 0, shown.stderr
    assert sorted(map(json.loads, shown.stdout.splitlines()), key=itemgetter("road")) == [
        {"road": "A1", "seen": 7},
        {"road": "A2", "seen": 0},
    ]


def test_a_record_that_cannot_be_decoded_is_null_and_named(
    kafka_broker: LocalBroker, schema_registry: LocalRegistry, topic: str
) -> None:
    with Producer(kafka_broker.client_config) as producer:
        producer.send(topic, b"no avro").result(60)
    cluster = ("-b", kafka_broker.bootstrap_servers, "-t", topic)
    typed = ("--value", "avro", "--registry", schema_registry.url)
    done = run("tail", *cluster, "-o", "beginning", "-e", "--format", "json", *typed)
    assert done.returncode == 0
    assert json.loads(done.stdout)["value"] is None
    assert f"{topic}-0, offset 0: the value cannot be decoded: " in done.stderr

    good = '{"road": "A1", "raw": ""}\n'
    wrong = run("produce", *cluster, *typed, input=f'{good}{{"road": "A1", "speed": "fast", "raw": ""}}\n')
    assert wrong.returncode == 1
    assert "line 2: the value does not fit the schema: $.speed: " in wrong.stderr
    missing = run("produce", *cluster, *typed, input='{"road": "A1"}\n')
    assert missing.returncode == 1
    assert "line 1: the value does not fit the schema: $.raw: is absent, and has no default" in missing.stderr


def test_the_page_decodes_the_newest_records(
    kafka_broker: LocalBroker, schema_registry: LocalRegistry, topic: str
) -> None:
    """`headrace ui --registry`: each record by the id that it contains, whatever its format; others as they are."""
    cluster = ("-b", kafka_broker.bootstrap_servers, "-t", topic)
    typed = ("--value", "avro", "--key", "avro", "--registry", schema_registry.url)
    line = json.dumps({"key": "k", "value": {"road": "A1", "speed": 2.5, "raw": "/w=="}}) + "\n"
    done = run("produce", *cluster, "--create", "--format", "json", *typed, input=line)
    assert done.returncode == 0, done.stderr
    unknown, broken = (
        b"\0\0\xff\xff\xff?",
        b"\0" + SchemaRegistry(schema_registry.url).latest(f"{topic}-value").id.to_bytes(4, "big"),
    )
    with Producer(kafka_broker.client_config) as producer:
        for value in (b"plain", unknown, broken + b"\x7f"):
            producer.send(topic, value).result(60)
    settings = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    with BackgroundPage(PageOptions(settings, port=0, registry=SchemaRegistry(schema_registry.url))) as page:
        found = PageClient(page.url).get(f"/api/records?topic={topic}").json["records"]
    shown = {it["offset"]: (it["key"], it["value"]) for it in found}
    key, value = shown[0]
    assert (key["text"], key["format"]) == ('"k"', "avro")
    decoded = {"road": "A1", "speed": 2.5, "raw": "/w==", "lanes": [1]}  # with the default of a field
    assert (json.loads(value["text"]), value["format"]) == (decoded, "avro")
    assert shown[1] == (None, {"text": "plain", "bytes": 5})
    assert "error" in shown[2][1]
    assert shown[3][1]["error"]


def test_the_login_of_a_registry_is_sent_and_never_shown() -> None:
    with scripted_server(lambda _request: response({"message": "no"}, 401)) as server:
        command = ("produce", "-b", "127.0.0.1:1", "-t", "t", "--value", "avro", "--registry", server.url)
        secrets: list[Any] = [
            (run(*command, "--registry-user", "me", HEADRACE_REGISTRY_PASSWORD="pass-word"), "Basic "),
            (run(*command, HEADRACE_REGISTRY_TOKEN="to-ken"), "Bearer "),
        ]
        for request, (done, kind) in zip(server.requests, secrets, strict=True):
            assert request.headers["authorization"].startswith(kind)
            assert done.returncode == 1
            assert "rejected the login" in done.stderr
            assert "pass-word" not in done.stderr + done.stdout
            assert "to-ken" not in done.stderr + done.stdout
        without = run(*command, "--registry-user", "me")
        assert without.returncode == 2
        assert "HEADRACE_REGISTRY_PASSWORD" in without.stderr
