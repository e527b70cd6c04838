"""SchemaRegistry against the real Apicurio, beside confluent-kafka's client."""

from __future__ import annotations

import json
import pickle
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry import SchemaReference as ConfluentReference

from headrace.errors import SchemaNotFoundError, SchemaRegistryError
from headrace.formats import SchemaRegistry
from headrace.formats._registry import SchemaReference
from headrace.local import LocalRegistry

pytestmark = pytest.mark.timeout(300)

AVRO = json.dumps({"type": "record", "name": "Reading", "fields": [{"name": "road", "type": "string"}]})
JSON = json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}})
PROTOBUF = 'syntax = "proto3";\npackage traffic;\n\nmessage Reading {\n  string road = 1;\n}\n'
SCHEMAS = {"AVRO": AVRO, "JSON": JSON, "PROTOBUF": PROTOBUF}


@pytest.fixture
def subject() -> str:
    return f"subject-{uuid.uuid4().hex}"


@pytest.fixture
def ours(schema_registry: LocalRegistry) -> SchemaRegistry:
    return SchemaRegistry(schema_registry.url)


@pytest.fixture
def confluents(schema_registry: LocalRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        yield client


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_that_confluents_client_registers_is_found_here(
    kind: Any, ours: SchemaRegistry, confluents: SchemaRegistryClient, subject: str
) -> None:
    number = confluents.register_schema(subject, Schema(SCHEMAS[kind], kind))
    by_id, latest = ours.schema(number), ours.latest(subject)
    assert (by_id.id, by_id.kind, by_id.text) == (number, kind, SCHEMAS[kind])
    assert (latest.id, latest.kind, latest.text, latest.version) == (number, kind, SCHEMAS[kind], 1)
    assert latest.subject == subject
    assert ours.version(subject, 1) == latest
    assert ours.look_up(subject, SCHEMAS[kind], kind) == latest
    assert ours.register(subject, SCHEMAS[kind], kind).id == number
    assert subject in ours.subjects()


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_that_is_registered_here_is_found_by_confluents_client(
    kind: Any, ours: SchemaRegistry, confluents: SchemaRegistryClient, subject: str
) -> None:
    number = ours.register(subject, SCHEMAS[kind], kind).id
    found = confluents.get_schema(number)
    assert (found.schema_str, found.schema_type) == (SCHEMAS[kind], kind)
    assert confluents.get_latest_version(subject).schema_id == number
    assert confluents.lookup_schema(subject, Schema(SCHEMAS[kind], kind)).schema_id == number


def test_references_are_found_in_order(ours: SchemaRegistry, confluents: SchemaRegistryClient, subject: str) -> None:
    def proto(name: str, *imports: str) -> str:
        lines = [f'import "{each}.proto";' for each in imports]
        return "\n".join(['syntax = "proto3";', *lines, f"message {name} {{ int32 x = 1; }}"])

    texts = {"A": proto("A"), "B": proto("B", "A"), "C": proto("C", "B", "A")}
    confluents.register_schema(f"{subject}-a", Schema(texts["A"], "PROTOBUF"))
    to_a = ConfluentReference("A.proto", f"{subject}-a", 1)
    confluents.register_schema(f"{subject}-b", Schema(texts["B"], "PROTOBUF", [to_a]))
    to_b = ConfluentReference("B.proto", f"{subject}-b", 1)
    number = confluents.register_schema(subject, Schema(texts["C"], "PROTOBUF", [to_a, to_b]))
    found = ours.schema(number)
    assert [(it.name, it.text, it.subject, it.version) for it in found.references] == [
        ("A.proto", texts["A"], f"{subject}-a", 1),
        ("B.proto", texts["B"], f"{subject}-b", 1),
    ]
    assert ours.latest(subject).references == found.references
    assert ours.look_up(subject, texts["C"], "PROTOBUF", found.references).id == number


def test_a_schema_with_references_is_registered(ours: SchemaRegistry, subject: str) -> None:
    inner = json.dumps({"type": "record", "name": "Inner", "namespace": "n", "fields": []})
    outer = json.dumps({"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": "n.Inner"}]})
    ours.register(f"{subject}-inner", inner, "AVRO")
    number = ours.register(subject, outer, "AVRO", [SchemaReference("n.Inner", inner, f"{subject}-inner", 1)]).id
    assert [(it.name, it.text) for it in ours.schema(number).references] == [("n.Inner", inner)]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_apicurios_own_ids_are_found(
    kind: Any, ours: SchemaRegistry, schema_registry: LocalRegistry, subject: str
) -> None:
    ours.register(f"{subject}-other", SCHEMAS[kind], kind)  # so that the ids differ
    number = ours.register(subject, SCHEMAS[kind], kind).id
    root = schema_registry.url.partition("/apis/")[0]
    url = f"{root}/apis/registry/v3/groups/default/artifacts/{subject}/versions/1"
    with urllib.request.urlopen(url, timeout=30) as response:
        metadata = json.load(response)
    by_global_id = ours.schema(metadata["globalId"], "global")
    by_content_id = ours.schema(metadata["contentId"], "content")
    assert by_global_id.text == by_content_id.text == SCHEMAS[kind]
    assert by_global_id.kind == by_content_id.kind == kind
    assert (by_global_id.id, by_content_id.id) == (metadata["globalId"], number)


def test_references_of_apicurios_own_ids_are_found(
    ours: SchemaRegistry, schema_registry: LocalRegistry, subject: str
) -> None:
    inner = json.dumps({"type": "record", "name": "Inner", "namespace": "n", "fields": []})
    outer = json.dumps({"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": "n.Inner"}]})
    ours.register(f"{subject}-inner", inner, "AVRO")
    number = ours.register(subject, outer, "AVRO", [SchemaReference("n.Inner", inner, f"{subject}-inner", 1)]).id
    assert [(it.name, it.text) for it in ours.schema(number, "content").references] == [("n.Inner", inner)]


@pytest.mark.parametrize("id_kind", ["id", "global", "content"])
def test_an_unknown_id_is_named(id_kind: Any, ours: SchemaRegistry) -> None:
    with pytest.raises(SchemaNotFoundError, match=r"no schema with .*id 2000000000"):
        ours.schema(2_000_000_000, id_kind)


def test_an_unknown_subject_version_and_schema_are_named(ours: SchemaRegistry, subject: str) -> None:
    with pytest.raises(SchemaNotFoundError, match=f"no subject '{subject}'"):
        ours.latest(subject)
    with pytest.raises(SchemaNotFoundError, match=f"no subject '{subject}' with this schema"):
        ours.look_up(subject, AVRO, "AVRO")
    ours.register(subject, AVRO, "AVRO")
    with pytest.raises(SchemaNotFoundError, match=f"no version 2 of subject '{subject}'"):
        ours.version(subject, 2)
    with pytest.raises(SchemaNotFoundError, match=f"no subject '{subject}' with this schema"):
        ours.look_up(subject, '"string"', "AVRO")


def test_an_incompatible_schema_is_rejected(
    ours: SchemaRegistry, confluents: SchemaRegistryClient, subject: str
) -> None:
    ours.register(subject, AVRO, "AVRO")
    confluents.set_compatibility(subject, "FULL")
    with pytest.raises(SchemaRegistryError, match="it is incompatible with earlier versions") as failed:
        ours.register(subject, AVRO.replace('"string"', '"int"'), "AVRO")
    assert failed.value.status == 409
    assert ours.latest(subject).text == AVRO


def test_an_invalid_schema_is_rejected(ours: SchemaRegistry, subject: str) -> None:
    with pytest.raises(SchemaRegistryError, match=f"rejected the schema for subject '{subject}' as invalid") as failed:
        ours.register(subject, '{"type": "nonsense"', "AVRO")
    assert failed.value.status == 422


def test_a_subject_may_have_any_name(ours: SchemaRegistry, subject: str) -> None:
    name = f"{subject} ü?#%&+"
    ours.register(name, AVRO, "AVRO")
    assert ours.latest(name).text == AVRO


def test_a_url_that_is_not_the_registrys_api_says_so(schema_registry: LocalRegistry) -> None:
    root = schema_registry.url.partition("/apis/")[0]
    with pytest.raises(SchemaRegistryError, match="Check the URL of the schema registry"):
        SchemaRegistry(root).schema(1)


def test_a_registry_that_stops_and_comes_back_loses_nothing(tmp_path: Any) -> None:
    with LocalRegistry(data_dir=tmp_path) as registry:
        client = SchemaRegistry(registry.url, timeout=120, retries=1000)
        impatient = pickle.loads(pickle.dumps(SchemaRegistry(registry.url, retries=0)))
        known = client.register("s", AVRO, "AVRO")
        assert client.schema(known.id).text == AVRO
        registry.kill()
        assert client.schema(known.id).text == AVRO
        with pytest.raises(SchemaRegistryError, match="unavailable") as failed:
            impatient.schema(known.id)
        assert failed.value.retriable
        with ThreadPoolExecutor(4) as threads:
            asked = threading.Event()

            def fetch() -> str:
                asked.set()
                return client.latest("s").text

            waiting = [threads.submit(fetch) for _ in range(4)]
            assert asked.wait(30)
            registry.restart()
            assert [future.result(120) for future in waiting] == [AVRO] * 4
        assert impatient.schema(known.id).text == AVRO
