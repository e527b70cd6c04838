"""References of schemas: resolved in order, and bounded whatever the registry says."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import SchemaRegistryError
from headrace.formats import SchemaRegistry
from headrace.formats._registry import SchemaReference
from support.formats.scripted_server import Request, Response, response, scripted_server

Graph = dict[str, list[str]]


def serve(graph: Graph) -> Any:
    """A subject for each name, whose version 1 refers to these subjects. Schema id 1 is the subject `root`."""

    def script(request: Request) -> Response:
        name = "root" if request.target == "/schemas/ids/1" else request.target.split("/")[2]
        references = [{"name": f"{other}.proto", "subject": other, "version": 1} for other in graph[name]]
        return response({"schema": f"text of {name}", "schemaType": "PROTOBUF", "id": 9, "references": references})

    return script


def names(graph: Graph) -> tuple[list[str], int]:
    with scripted_server(serve(graph)) as server:
        schema = SchemaRegistry(server.url).schema(1)
        assert schema.kind == "PROTOBUF"
        assert all(it.text == f"text of {it.subject}" and it.name == f"{it.subject}.proto" for it in schema.references)
        assert {it.subject for it in schema.references if it.is_direct} == set(graph["root"])
        return [it.subject for it in schema.references], len(server.requests)


def test_references_are_behind_those_that_they_refer_to() -> None:
    assert names({"root": ["a", "b"], "a": ["c"], "b": [], "c": []}) == (["c", "a", "b"], 4)


def test_a_schema_that_several_refer_to_is_fetched_once() -> None:
    layers: Graph = {"root": ["a0", "b0"]}
    for depth in range(20):
        below = [f"a{depth + 1}", f"b{depth + 1}"] if depth < 19 else []
        layers[f"a{depth}"] = layers[f"b{depth}"] = below
    order, requests = names(layers)
    assert len(order) == 40
    assert requests == 41


@pytest.mark.parametrize(
    "graph", [{"root": ["a"], "a": ["a"]}, {"root": ["a"], "a": ["b"], "b": ["c"], "c": ["b"]}], ids=["itself", "loop"]
)
def test_a_cycle_is_an_error(graph: Graph) -> None:
    with scripted_server(serve(graph)) as server, pytest.raises(SchemaRegistryError, match="references in a cycle: a"):
        SchemaRegistry(server.url).schema(1)


def test_a_chain_without_end_is_an_error() -> None:
    def script(request: Request) -> Response:
        number = 0 if request.target == "/schemas/ids/1" else int(request.target.split("/")[2])
        reference = {"name": str(number + 1), "subject": str(number + 1), "version": 1}
        return response({"schema": "{}", "id": number, "references": [reference]})

    with scripted_server(script) as server:
        with pytest.raises(SchemaRegistryError, match="nested more than 50 levels"):
            SchemaRegistry(server.url).schema(1)
        assert len(server.requests) <= 52


def test_more_references_than_a_schema_can_have_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.formats.registry.references._MOST", 10)
    graph: Graph = {"root": [f"s{number}" for number in range(11)]} | {f"s{number}": [] for number in range(11)}
    with scripted_server(serve(graph)) as server, pytest.raises(SchemaRegistryError, match="more than 10 references"):
        SchemaRegistry(server.url).schema(1)


def test_two_schemas_of_one_name_are_an_error() -> None:
    def script(request: Request) -> Response:
        references = [{"name": "x", "subject": "s", "version": version} for version in (1, 2)]
        return response(
            {"schema": request.target, "id": 1, "references": references if "ids" in request.target else []}
        )

    with (
        scripted_server(script) as server,
        pytest.raises(SchemaRegistryError, match="by the name 'x': version 1 of s and version 2 of s"),
    ):
        SchemaRegistry(server.url).schema(1)


def test_only_direct_references_are_sent() -> None:
    def script(request: Request) -> Response:
        return response({"id": 1, "schema": "{}"})

    references = [SchemaReference("b", "{}", "sb", 2, is_direct=False), SchemaReference("a", "{}", "sa", 1)]
    with scripted_server(script) as server:
        SchemaRegistry(server.url).register("s", "{}", "JSON", references)
        assert server.requests[0].json == {
            "schema": "{}",
            "schemaType": "JSON",
            "references": [{"name": "a", "subject": "sa", "version": 1}],
        }
