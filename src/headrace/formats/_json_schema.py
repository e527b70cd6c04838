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

`connect.type` of Kafka Connect (int8, int16, int32, float32, bytes) refines numbers and strings. References are
followed inside of the schema (`#/$defs/…`), and to other schemas by their name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ._kernel import load_pyarrow

_DEEPEST = 64
# References multiply: a schema of a few lines can ask for more fields than any machine has memory for.
_MOST_FIELDS = 10_000


def arrow_type_of(text: str, references: Mapping[str, str] | None = None) -> Any:
    """The Arrow type of a JSON Schema. `references` are texts of other schemas by name. Raises ConfigError."""
    documents = {name: _parse(each) for name, each in (references or {}).items()}
    root = _parse(text)
    return _Converter(documents).convert(root, root, ())


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
                return pyarrow.list_(self.convert(schema["items"], root, seen))
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
            return pyarrow.struct([(name, self.convert(each, root, seen)) for name, each in properties.items()])
        if isinstance(schema.get("additionalProperties"), dict):
            return pyarrow.map_(pyarrow.string(), self.convert(schema["additionalProperties"], root, seen))
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
