"""What a browser does not know yet: the difference between two documents. Nothing here does I/O.

A document is what a page shows: `head` has its single values, `rows` its tables' rows by id. A patch has the fields
that changed, so a cluster of hundreds of groups costs little while few of them change:

    {"reset": true, "head": {…}, "rows": {"id": {…}}, "gone": []}      everything: the first patch of a stream
    {"head": {"at": 17}, "rows": {"id": {"lag": 3}}, "gone": ["id"]}   changed fields, and rows that are gone
    {…, "rows": {"id": {"history": {"drop": 1, "add": [[16, 3]]}}}, …} a curve: points that are gone, and new ones

The order of rows is the browser's matter: it sorts by fields, and not while somebody points at them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Points:
    """A curve that grows at its end, and loses points at its beginning."""

    width: int
    """The distance of points without a gap, in seconds."""
    pairs: tuple[tuple[int, int], ...]
    """Time and value."""

    @property
    def document(self) -> dict[str, Any]:
        return {"width": self.width, "points": self.pairs}

    def since(self, before: Points) -> Points | PointsChange:
        """What has changed; all of it if the curve before is not the beginning of this one."""
        if self.width != before.width or not self.pairs:
            return self
        drop = next((at for at, it in enumerate(before.pairs) if it[0] >= self.pairs[0][0]), len(before.pairs))
        kept = before.pairs[drop:]
        if self.pairs[: len(kept)] != kept:
            return self
        return PointsChange(drop, self.pairs[len(kept) :])


@dataclasses.dataclass(frozen=True, slots=True)
class PointsChange:
    drop: int
    add: tuple[tuple[int, int], ...]

    @property
    def document(self) -> dict[str, Any]:
        return {"drop": self.drop, "add": self.add}


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
    changed = {
        name: _changed(before.get(name), value)
        for name, value in after.items()
        if name not in before or before[name] != value
    }
    return changed | {name: None for name in before if name not in after}


def _changed(before: Any, after: Any) -> Any:
    return after.since(before) if isinstance(after, Points) and isinstance(before, Points) else after


def plain(value: Any) -> Any:
    """For `json.dumps`: what is not a plain value."""
    if isinstance(value, Points | PointsChange):
        return value.document
    raise TypeError(f"{type(value).__name__} is no part of a document")
