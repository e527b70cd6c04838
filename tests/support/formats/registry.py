"""A schema registry in memory, with the calls that formats make. It can be unreachable, and counts its requests."""

from __future__ import annotations

import json
from collections import Counter

from headrace.errors import SchemaNotFoundError, SchemaRegistryError
from headrace.formats._registry import RegisteredSchema


class MemoryRegistry:
    def __init__(self, kind: str = "AVRO", first_id: int = 1) -> None:
        self.kind = kind
        self.next_id = first_id
        self.by_id: dict[int, RegisteredSchema] = {}
        self.subjects: dict[str, list[RegisteredSchema]] = {}
        self.is_away = False
        self.asked: Counter[object] = Counter()

    def __repr__(self) -> str:
        return "MemoryRegistry()"

    def add(self, subject: str, schema: object, references=()) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return self.register(subject, text, self.kind, references).id

    def _ask(self, *what: object) -> None:
        self.asked[what] += 1
        if self.is_away:
            raise SchemaRegistryError("the schema registry cannot be reached", retriable=True)

    def schema(self, schema_id, id_kind="id"):
        self._ask("schema", schema_id, id_kind)
        if schema_id not in self.by_id:
            raise SchemaNotFoundError(f"the schema registry has no schema with id {schema_id}", status=404)
        return self.by_id[schema_id]

    def latest(self, subject):
        self._ask("latest", subject)
        if subject not in self.subjects:
            raise SchemaNotFoundError(f"the schema registry has no subject {subject}", status=404)
        return self.subjects[subject][-1]

    def look_up(self, subject, text, kind, references=()):
        self._ask("look_up", subject)
        for found in self.subjects.get(subject, []):
            if found.text == text or (kind != "PROTOBUF" and json.loads(found.text) == json.loads(text)):
                return found
        raise SchemaNotFoundError(f"the subject {subject} has no such schema: register it", status=404)

    def register(self, subject, text, kind, references=()):
        self._ask("register", subject)
        versions = self.subjects.setdefault(subject, [])
        made = RegisteredSchema(self.next_id, kind, text, tuple(references), subject, len(versions) + 1)
        self.next_id += 1
        versions.append(made)
        self.by_id[made.id] = made
        return made
