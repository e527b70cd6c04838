"""JSON Schema as Arrow types.

| JSON Schema | Arrow |
|---|---|
| string; with format date-time, date | string; timestamp (µs, UTC), date32 |
| integer, number, boolean | int64, double, bool |
| array with items | list |
| object with properties | struct |
| object with additionalProperties only | map of strings |
| enum or const of strings | string |
| null beside another type, in type, oneOf or anyOf | that type: every column may be null |
| anything else: several types, no type, recursion | string, with the JSON text of the value |

Fields also say what is written for null, and which text is JSON (`_json_fields.py`). A property is required if the
schema says so, and may be null if the schema allows it.

`connect.type` of Kafka Connect (int8, int16, int32, float32, bytes) refines numbers and strings. References are
followed inside of the schema (`#/$defs/…`), and to other schemas by their name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ..errors import ConfigError
from ._json_fields import JSON_TEXT, OPTIONAL
from ._kernel import load_pyarrow

_DEEPEST = 64
# References multiply: a schema of a few lines can ask for more fields than any machine has memory for.
_MOST_FIELDS = 10_000


def field_of(text: str, references: Mapping[str, str] | None = None) -> Any:
    """A field with the Arrow type of a JSON Schema. `references` are texts of other schemas by name. Raises
    ConfigError."""
    documents = {name: _parse(each) for name, each in (references or {}).items()}
    root = _parse(text)
    return _Converter(documents).field("", root, root, ())


def _parse(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the JSON Schema is not valid JSON: {error}") from None
    if not isinstance(found, (dict, bool)):
        raise ConfigError(f"a JSON Schema is an object, not a {type(found).__name__}")
    return found


class _Converter:
    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self._pyarrow = load_pyarrow()
        self._fields = 0
        self._allowed: dict[tuple[int, str], bool] = {}

    def field(self, name: str, schema: Any, root: Any, seen: tuple[int, ...], *, required: bool = True) -> Any:
        data_type = self.convert(schema, root, seen)
        metadata = {}
        if not required:
            metadata[OPTIONAL] = ""
        if self._pyarrow.types.is_string(data_type) and not self._allows("string", schema, root, 0):
            metadata[JSON_TEXT] = ""
        is_nullable = self._allows("null", schema, root, 0)
        return self._pyarrow.field(name, data_type, nullable=is_nullable, metadata=metadata or None)

    def convert(self, schema: Any, root: Any, seen: tuple[int, ...]) -> Any:
        """`root` is the document that `schema` is in. `seen` are the schemas around it."""
        pyarrow = self._pyarrow
        self._fields += 1
        if self._fields > _MOST_FIELDS:
            raise ConfigError(f"the JSON Schema has more than {_MOST_FIELDS} fields, counted with those of references")
        if not isinstance(schema, dict) or id(schema) in seen or len(seen) > _DEEPEST:
            return pyarrow.string()
        seen = (*seen, id(schema))
        if isinstance(schema.get("$ref"), str):
            target, document = self._resolve(schema["$ref"], root)
            return self.convert(target, document, seen)
        for several in ("oneOf", "anyOf", "allOf"):
            if isinstance(schema.get(several), list):
                choices = [each for each in schema[several] if not _is_null(each)]
                return self.convert(choices[0], root, seen) if len(choices) == 1 else pyarrow.string()
        kinds: Any = schema.get("type")
        if isinstance(kinds, list):
            kinds = [kind for kind in kinds if kind != "null"]
            kinds = kinds[0] if len(kinds) == 1 else None
        if kinds is None and isinstance(schema.get("properties"), dict):
            kinds = "object"
        match kinds:
            case "object":
                return self._object(schema, root, seen)
            case "array" if isinstance(schema.get("items"), dict):
                return pyarrow.list_(self.field("item", schema["items"], root, seen))
            case "string":
                return self._string(schema)
            case "integer":
                sizes = {"int8": pyarrow.int8, "int16": pyarrow.int16, "int32": pyarrow.int32}
                return sizes.get(str(schema.get("connect.type")), pyarrow.int64)()
            case "number":
                return pyarrow.float32() if schema.get("connect.type") == "float32" else pyarrow.float64()
            case "boolean":
                return pyarrow.bool_()
            case "null":
                return pyarrow.null()
        return pyarrow.string()

    def _object(self, schema: dict[str, Any], root: Any, seen: tuple[int, ...]) -> Any:
        pyarrow = self._pyarrow
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            required = schema.get("required")
            names = required if isinstance(required, list) else ()
            fields = properties.items()
            return pyarrow.struct([self.field(name, each, root, seen, required=name in names) for name, each in fields])
        if isinstance(schema.get("additionalProperties"), dict):
            return pyarrow.map_(pyarrow.string(), self.field("value", schema["additionalProperties"], root, seen))
        return pyarrow.string()

    def _string(self, schema: dict[str, Any]) -> Any:
        pyarrow = self._pyarrow
        if schema.get("connect.type") == "bytes" or schema.get("contentEncoding") == "base64":
            return pyarrow.binary()
        match schema.get("format"):
            case "date-time":
                return pyarrow.timestamp("us", "UTC")
            case "date":
                return pyarrow.date32()
        return pyarrow.string()

    def _allows(self, kind: Literal["null", "string"], schema: Any, root: Any, depth: int) -> bool:
        """Whether the schema allows null, or any string."""
        if not isinstance(schema, dict):
            return schema is not False
        if depth > _DEEPEST:
            return True
        key = id(schema), kind
        if key not in self._allowed:
            self._allowed[key] = True  # for a schema that refers to itself, which restricts nothing
            self._allowed[key] = all(self._restrictions(kind, schema, root, depth))
        return self._allowed[key]

    def _restrictions(self, kind: Literal["null", "string"], schema: Any, root: Any, depth: int) -> Iterator[bool]:
        """Whether each part of the schema allows it."""
        if isinstance(schema.get("$ref"), str):
            yield self._allows(kind, *self._resolve(schema["$ref"], root), depth + 1)
        kinds = schema.get("type", kind)
        yield kind in kinds if isinstance(kinds, list) else kinds == kind
        of_kind = type(None) if kind == "null" else str
        if isinstance(schema.get("enum"), list):
            yield any(isinstance(each, of_kind) for each in schema["enum"])
        if "const" in schema:
            yield isinstance(schema["const"], of_kind)
        if kind == "null" and _is_null(schema.get("not")):
            yield False
        for several, needed in (("allOf", all), ("anyOf", any), ("oneOf", any)):
            if isinstance(schema.get(several), list):
                yield needed(self._allows(kind, each, root, depth + 1) for each in schema[several])

    def _resolve(self, reference: str, root: Any) -> tuple[Any, Any]:
        name, _, pointer = reference.partition("#")
        if name and name not in self._documents:
            raise ConfigError(f"the JSON Schema refers to {name}, which is not among its references")
        document = self._documents[name] if name else root
        target = document
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or part not in target:
                raise ConfigError(f"the JSON Schema refers to {reference}, which does not exist")
            target = target[part]
        return target, document


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"
