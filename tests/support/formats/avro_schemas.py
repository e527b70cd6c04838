"""Random Avro schemas with data, evolved schemas, and the expected values of columns."""

from __future__ import annotations

import itertools
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

from hypothesis import strategies as st

_NUMBER = itertools.count()
_INT = st.integers(-(2**31), 2**31 - 1)
_LONG = st.integers(-(2**63), 2**63 - 1)
_FLOAT = st.floats(width=32, allow_nan=False)
_TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))

PRIMITIVES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": _INT,
    "long": _LONG,
    "float": _FLOAT,
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=5),
    "string": st.text(max_size=5),
}


def _in_milliseconds(moment):
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _named(kind: str, **rest: object) -> dict[str, object]:
    return {"type": kind, "name": f"{kind.title()}{next(_NUMBER)}", **rest}


def logical() -> st.SearchStrategy:
    """Schemas with a logical type, and their data."""
    utc = _TIMES.map(lambda moment: moment.replace(tzinfo=UTC))
    digits = st.integers(-(10**8) + 1, 10**8 - 1).map(lambda number: Decimal(number).scaleb(-3))
    return st.one_of(
        st.just(({"type": "int", "logicalType": "date"}, st.dates(date(1, 1, 1), date(9999, 12, 31)))),
        st.just(({"type": "int", "logicalType": "time-millis"}, st.times().map(_in_milliseconds))),
        st.just(({"type": "long", "logicalType": "time-micros"}, st.times())),
        st.just(({"type": "long", "logicalType": "timestamp-millis"}, utc.map(_in_milliseconds))),
        st.just(({"type": "long", "logicalType": "timestamp-micros"}, utc)),
        st.just(({"type": "long", "logicalType": "local-timestamp-millis"}, _TIMES.map(_in_milliseconds))),
        st.just(({"type": "long", "logicalType": "local-timestamp-micros"}, _TIMES)),
        st.just(({"type": "string", "logicalType": "uuid"}, st.uuids())),
        st.just(({"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 3}, digits)),
        st.builds(
            lambda size: (_named("fixed", size=size, logicalType="decimal", precision=8, scale=3), digits),
            st.integers(4, 17),
        ),
        st.just(({"type": "string", "logicalType": "unknown"}, st.text(max_size=3))),
    )


def leaves() -> st.SearchStrategy:
    return st.one_of(
        st.sampled_from(sorted(PRIMITIVES)).map(lambda name: (name, PRIMITIVES[name])),
        logical(),
        st.integers(0, 5).map(lambda size: (_named("fixed", size=size), st.binary(min_size=size, max_size=size))),
        st.lists(st.sampled_from("ABCDE"), min_size=1, unique=True).map(
            lambda symbols: (_named("enum", symbols=symbols), st.sampled_from(symbols))
        ),
    )


def _array(inner):
    schema, data = inner
    return {"type": "array", "items": schema}, st.lists(data, max_size=3)


def _map(inner):
    schema, data = inner
    return {"type": "map", "values": schema}, st.dictionaries(st.text(max_size=3), data, max_size=3)


def _optional(inner):
    schema, data = inner
    if isinstance(schema, list) or schema == "null":
        return schema, data
    return ["null", schema], st.none() | data


def _record(inners):
    fields = [{"name": f"f{index}", "type": schema} for index, (schema, _) in enumerate(inners)]
    data = {f"f{index}": each for index, (_, each) in enumerate(inners)}
    return _named("record", fields=fields), st.fixed_dictionaries(data)


def _union(inners):
    """Branches whose values Python can distinguish."""
    chosen = {}
    for kind in inners:
        chosen[kind] = PRIMITIVES[kind]
    return list(chosen), st.one_of(*chosen.values())


def schemas(branches=("null", "string", "long", "boolean", "bytes", "double")) -> st.SearchStrategy:
    """(schema, strategy of its data). Unions with several types are made of `branches`."""
    unions = st.lists(st.sampled_from(branches), unique=True, min_size=2)
    return st.recursive(
        leaves() | unions.map(_union),
        lambda inner: st.one_of(
            inner.map(_array), inner.map(_map), inner.map(_optional), st.lists(inner, max_size=4).map(_record)
        ),
        max_leaves=8,
    )


def records() -> st.SearchStrategy:
    """Records to be read with another schema.

    No union has both string and bytes: fastavro reads a string as the first branch that strings can be promoted to,
    which is bytes in ["bytes", "string"]. Java looks for a branch of the same type first, and so do we.
    """
    either = st.sampled_from(["string", "bytes"])
    inner = either.flatmap(lambda text: schemas(("null", text, "long", "boolean", "double")))
    return st.lists(inner, min_size=1, max_size=5).map(_record)


_PROMOTIONS = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}
_ADDED = [
    ("int", 7),
    ("string", "ä"),
    (["null", "string"], None),
    (["string", "null"], "x"),
    ({"type": "array", "items": "long"}, [1, -1]),
    ({"type": "map", "values": "double"}, {"k": 0.5}),
]


@st.composite
def evolved(draw, schema):
    """A reader's schema for data of a writer's schema, which must be a record."""
    fields = []
    for field in schema["fields"]:
        change = draw(st.sampled_from(["same", "same", "drop", "promote", "nullable", "rename"]))
        kind, aliases = field["type"], {}
        if change == "drop":
            continue
        if change == "promote" and isinstance(kind, str) and kind in _PROMOTIONS:
            kind = draw(st.sampled_from(_PROMOTIONS[kind]))
        elif change == "nullable" and not isinstance(kind, list) and kind != "null":
            kind = ["null", kind]
        name = field["name"]
        if change == "rename":
            aliases, name = {"aliases": [name]}, f"{name}_renamed"
        fields.append({"name": name, "type": kind, **aliases})
    for index, (kind, default) in enumerate(draw(st.lists(st.sampled_from(_ADDED), max_size=2))):
        fields.append({"name": f"added{index}", "type": kind, "default": default})
    return {**schema, "fields": draw(st.permutations(fields))}


def expected(schema, value):
    """The expected value in a column of the schema, for a value that fastavro has read."""
    if isinstance(schema, list):
        return _expected_of_union(schema, value)
    if isinstance(schema, str):
        return value
    kind = schema["type"]
    if isinstance(value, uuid.UUID):
        return str(value)
    match kind:
        case "array":
            return [expected(schema["items"], each) for each in value]
        case "map":
            return {key: expected(schema["values"], each) for key, each in value.items()}
        case "record":
            return {field["name"]: expected(field["type"], value[field["name"]]) for field in schema["fields"]}
    return value


def _expected_of_union(branches, value):
    members = [branch for branch in branches if branch != "null"]
    if value is None or not members:
        return None
    if len(members) == 1:
        return expected(members[0], value)
    kinds = {bool: "boolean", str: "string", int: "long", bytes: "bytes", float: "double"}
    found = kinds[type(value)]
    return {f"member{index}": value if member == found else None for index, member in enumerate(members)}
