"""What a browser does not know yet: the difference between two documents. Nothing here does I/O.

A document is what a page shows: `head` has its single values, `rows` its tables' rows by id. A patch has the fields
that changed, so a cluster of hundreds of groups costs little while few of them change:

    {"reset": true, "head": {…}, "rows": {"id": {…}}, "gone": []}      everything: the first patch of a stream
    {"head": {"at": 17}, "rows": {"id": {"lag": 3}}, "gone": ["id"]}   changed fields, and rows that are gone

The order of rows is the browser's matter: it sorts by fields, and not while somebody points at them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    head: Fields
    rows: Mapping[str, Fields] = dataclasses.field(default_factory=dict)


def first_patch(document: Document) -> dict[str, Any]:
    return {"reset": True, "head": document.head, "rows": document.rows, "gone": []}


def patch(before: Document, after: Document) -> dict[str, Any]:
    rows = {}
    for name, fields in after.rows.items():
        earlier = before.rows.get(name)
        if changed := fields if earlier is None else changed_fields(earlier, fields):
            rows[name] = changed
    gone = [name for name in before.rows if name not in after.rows]
    return {"head": changed_fields(before.head, after.head), "rows": rows, "gone": gone}


def changed_fields(before: Fields, after: Fields) -> Fields:
    """The fields that differ. A field that is missing afterwards is None."""
    if before is after:
        return {}
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return changed | {name: None for name in before if name not in after}
