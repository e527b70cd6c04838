"""Formats of keys and values: typed Arrow columns instead of bytes, in both directions.

```python
from headrace.formats import Json

table = records.to_arrow(value=Json("road string, speed double"))
```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .._format import DecodedColumn, Format, Source

if TYPE_CHECKING:
    from .avro import Avro
    from .json import Json
    from .protobuf import Protobuf
    from .registry import SchemaRegistry

# Imported on first access: most programs use one of them.
_LAZY = {
    "Avro": "avro",
    "Json": "json",
    "Protobuf": "protobuf",
    "SchemaRegistry": "registry",
}

__all__ = ["Avro", "DecodedColumn", "Format", "Json", "Protobuf", "SchemaRegistry", "Source"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
