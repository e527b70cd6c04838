"""kio entities from plain mappings: responses of a scripted broker, and expected requests."""

from __future__ import annotations

import dataclasses
import datetime
import typing
from collections.abc import Callable, Mapping
from typing import Any


def build(entity: type[Any], fields: Mapping[str, Any]) -> Any:
    """The kio entity with those of `fields` that this version has. A missing field without a default raises TypeError,
    as with any dataclass."""
    return entity(**{name: make(fields[name]) for name, make in _makers(entity).items() if name in fields})


_makers_of: dict[type[Any], dict[str, Callable[[Any], Any]]] = {}


def _makers(entity: type[Any]) -> dict[str, Callable[[Any], Any]]:
    """For each field, the conversion from the plain value to kio's type."""
    makers = _makers_of.get(entity)
    if makers is None:
        hints = typing.get_type_hints(entity)
        makers = _makers_of[entity] = {
            field.name: _maker(hints[field.name], field.metadata.get("kafka_type"))
            for field in dataclasses.fields(entity)
        }
    return makers


def _maker(hint: Any, kafka_type: str | None) -> Callable[[Any], Any]:
    entity = _entity_in(hint)
    if entity is not None:
        inner: type[Any] = entity

        def make(value: Any) -> Any:
            if value is None:
                return None
            if isinstance(value, Mapping):
                return build(inner, value)
            return tuple(build(inner, item) for item in value)

        return make
    if kafka_type == "timedelta_i32":
        return lambda value: datetime.timedelta(milliseconds=value)
    return lambda value: tuple(value) if isinstance(value, list) else value


def _entity_in(hint: Any) -> type[Any] | None:
    if dataclasses.is_dataclass(hint):
        return typing.cast(type[Any], hint)
    return next((found for arg in typing.get_args(hint) if (found := _entity_in(arg))), None)
