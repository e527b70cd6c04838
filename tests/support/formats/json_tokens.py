"""JSON values, written in every way that a writer may think of, to be read as each type: by headrace and by Spark."""

from __future__ import annotations

from pathlib import Path

TYPES = {
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "decimal": "DECIMAL(10,2)",
    "wide": "DECIMAL(38,10)",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
    "array": "ARRAY<INT>",
    "map": "MAP<STRING, INT>",
    "struct": "STRUCT<a: INT>",
}
"""The name of a field, and its type."""

SCHEMA = ", ".join(f"{name} {type_name}" for name, type_name in TYPES.items())

TOKENS = [
    line
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("##")
]

DOCUMENTS = [
    '', ' ', '\n', 'null', ' null ', '{}', '[]', '[{}]', '[{"int":1}]', '[{"int":1},{"int":2}]', '{"int":1}{"int":2}',
    '{"int":1} x', '{"int":1}]', '{"int":1', "{'int':1}", '{int:1}', '{"int":1,"int":2}', '{"int":1,"int":null}',
    '{"int":1,"string":"a"}', '{"INT":1}', '{"Int":1}', '{"in\\u0074":1}', '\ufeff{"int":1}', ' {"int":1}',
    '\x0b{"int":1}', '"text"', '1', 'true', '{"int":1,}', '{,"int":1}', '{"other":{"deep":[1,{"x":"y"}]},"int":1}',
    '{"other":1_0,"int":1}', '{"other":\'x\',"int":1}', '{"other":NaN,"int":1}', '{"other":+INF,"int":1}',
    '{"other":01,"int":1}', '{"":1,"int":2}', '{"other":"\\q","int":1}', '{"other":"\t","int":1}',
    '{"struct":{"a":1},"struct":{}}', '{"array":[1],"array":null}',
]  # fmt: skip
"""Whole records, which have all types as fields."""

TEXTS = [f'{{"{name}":{token}}}' for token in TOKENS for name in TYPES] + DOCUMENTS
