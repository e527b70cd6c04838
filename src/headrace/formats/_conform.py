"""Columns in the type that an encoder expects."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ._kernel import load_pyarrow


def conform(array: Any, wanted: Any, path: str) -> Any:
    """The array as an array of the type `wanted`. Fields of structs are found by name; missing ones are null.

    Raises ConfigError, with the path of the field, if the type does not fit, a field is unknown, or a value would not
    be the same in the other type.
    """
    pyarrow = load_pyarrow()
    types = pyarrow.types
    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pyarrow.ExtensionArray):
        array = array.storage
    if array.type == wanted:
        return array
    if types.is_struct(wanted) and types.is_struct(array.type):
        return _struct(array, wanted, path)
    if types.is_list(wanted) and (types.is_list(array.type) or types.is_large_list(array.type)):
        begin, end = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
        items = conform(array.values.slice(begin, end - begin), wanted.value_type, f"{path}[]")
        offsets = _from_zero(array.offsets, begin)
        return pyarrow.ListArray.from_arrays(offsets, items, type=wanted, mask=_mask(array))
    if types.is_map(wanted) and types.is_map(array.type):
        begin, end = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
        keys = conform(array.keys.slice(begin, end - begin), wanted.key_type, f"{path} (keys)")
        items = conform(array.items.slice(begin, end - begin), wanted.item_type, f"{path}[]")
        offsets = _from_zero(array.offsets, begin)
        return pyarrow.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=_mask(array))
    if types.is_nested(wanted) and not types.is_null(array.type):
        raise ConfigError(f"{path} has the type {array.type}; expected {wanted}")
    try:
        return array.cast(wanted)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise ConfigError(f"{path} has the type {array.type}, which cannot be written as {wanted}: {error}") from None


def _struct(array: Any, wanted: Any, path: str) -> Any:
    pyarrow = load_pyarrow()
    given = {field.name: index for index, field in enumerate(array.type)}
    names = [field.name for field in wanted]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ConfigError(f"{path} has the field {unknown[0]}, which the schema does not have: {', '.join(names)}")
    children = [
        conform(array.field(given[field.name]), field.type, f"{path}.{field.name}")
        if field.name in given
        else pyarrow.nulls(len(array), field.type)
        for field in wanted
    ]
    return pyarrow.StructArray.from_arrays(children, fields=list(wanted), mask=_mask(array))


def _from_zero(offsets: Any, begin: int) -> Any:
    import pyarrow.compute  # pandas imports it, pyarrow does not

    return pyarrow.compute.subtract(offsets, begin).cast(pyarrow.int32())


def _mask(array: Any) -> Any:
    """Which rows are null, or None if no row is."""
    return array.is_null() if array.null_count else None
