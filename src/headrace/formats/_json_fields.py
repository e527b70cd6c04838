"""What a pyarrow field says about the JSON that is written for it.

| field | null |
|---|---|
| nullable | is written |
| not nullable, `OPTIONAL` | leaves the field out |
| not nullable | is an error |

Text of a field with `JSON_TEXT` is JSON already. Decoded columns have the same types without these rules: whatever is
missing in a record is null.
"""

from __future__ import annotations

from typing import Any

from ._kernel import load_pyarrow

# Keys of a field's metadata, which the encoder knows.
OPTIONAL = "headrace.json.optional"
JSON_TEXT = "headrace.json.text"


def nullable(data_type: Any) -> Any:
    """The type with fields, items and values that may be null, without metadata."""
    pyarrow = load_pyarrow()
    types = pyarrow.types
    if types.is_struct(data_type):
        return pyarrow.struct([pyarrow.field(field.name, nullable(field.type)) for field in data_type])
    if types.is_list(data_type):
        return pyarrow.list_(nullable(data_type.value_type))
    if types.is_large_list(data_type):
        return pyarrow.large_list(nullable(data_type.value_type))
    if types.is_map(data_type):
        return pyarrow.map_(data_type.key_type, nullable(data_type.item_type))
    return data_type


def written(field: Any) -> Any:
    """The field with the type that the encoder takes: without large types, whose JSON is the same."""
    return field.with_type(_written_type(field.type))


def _written_type(data_type: Any) -> Any:
    pyarrow = load_pyarrow()
    types = pyarrow.types
    if types.is_struct(data_type):
        return pyarrow.struct([written(field) for field in data_type])
    if types.is_list(data_type) or types.is_large_list(data_type):
        return pyarrow.list_(written(data_type.value_field))
    if types.is_map(data_type):
        return pyarrow.map_(data_type.key_type, written(data_type.item_field))
    if types.is_large_string(data_type):
        return pyarrow.string()
    return pyarrow.binary() if types.is_large_binary(data_type) else data_type
