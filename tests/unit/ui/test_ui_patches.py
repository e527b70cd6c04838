"""What is sent to a browser: everything once, then what has changed."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.ui.patches import Document, Points, PointsChange, first_patch, patch, plain


def test_the_first_patch_has_everything() -> None:
    document = Document({"at": 1}, {"a": {"lag": 3}})
    assert first_patch(document) == {"reset": True, "head": {"at": 1}, "rows": {"a": {"lag": 3}}, "gone": []}


def test_a_patch_has_changed_fields_new_rows_and_the_ids_of_rows_that_are_gone() -> None:
    before = Document({"at": 1, "lag": 5}, {"a": {"lag": 3, "name": "a"}, "b": {"lag": 2}, "c": {"lag": 0}})
    after = Document({"at": 2, "lag": 5}, {"a": {"lag": 4, "name": "a"}, "c": {"lag": 0}, "d": {"lag": 1}})
    assert patch(before, after) == {"head": {"at": 2}, "rows": {"a": {"lag": 4}, "d": {"lag": 1}}, "gone": ["b"]}


def test_a_field_that_disappears_becomes_null() -> None:
    assert patch(Document({"x": 1}), Document({})) == {"head": {"x": None}, "rows": {}, "gone": []}


def test_zero_false_and_nothing_are_different_values() -> None:
    changed = patch(Document({"x": 0}), Document({"x": None}))
    assert changed["head"] == {"x": None}


def test_patches_lead_to_the_same_document() -> None:
    """As static/live.js applies them, over many random documents."""
    chance = random.Random(7)

    def make() -> Document:
        rows = {
            name: {"lag": chance.randrange(3), "owner": chance.choice([None, "m"])}
            for name in "abcdef"
            if chance.random() < 0.6
        }
        return Document({"at": chance.randrange(3), "n": chance.randrange(2)}, rows)

    document = make()
    rows: dict[str, dict[str, Any]] = {name: dict(fields) for name, fields in document.rows.items()}
    head = dict(document.head)
    for _ in range(200):
        following = make()
        change = patch(document, following)
        head |= change["head"]
        for name, fields in change["rows"].items():
            rows[name] = rows.get(name, {}) | fields
        for name in change["gone"]:
            del rows[name]
        document = following
        assert (head, rows) == (document.head, document.rows)


def test_of_a_curve_only_what_has_changed_is_sent() -> None:
    before = Document({}, {"a": {"history": Points(1, ((1, 5), (2, 6), (3, 7))), "lag": 3}})
    after = Document({}, {"a": {"history": Points(1, ((2, 6), (3, 7), (4, 8))), "lag": 3}})
    change = json.loads(json.dumps(patch(before, after), default=plain))
    assert change["rows"] == {"a": {"history": {"drop": 1, "add": [[4, 8]]}}}
    whole = json.loads(json.dumps(first_patch(after), default=plain))
    assert whole["rows"]["a"]["history"] == {"width": 1, "points": [[2, 6], [3, 7], [4, 8]]}


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=12, unique_by=lambda it: it[0]),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=12, unique_by=lambda it: it[0]),
    st.booleans(),
)
def test_a_change_of_a_curve_leads_to_it(
    first: list[tuple[int, int]], second: list[tuple[int, int]], same_width: bool
) -> None:
    before, after = Points(1, tuple(sorted(first))), Points(1 if same_width else 2, tuple(sorted(second)))
    change = after.since(before)
    if isinstance(change, PointsChange):
        assert (*before.pairs[change.drop :], *change.add) == after.pairs
    else:
        assert change == after
