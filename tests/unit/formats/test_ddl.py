"""Spark's text form of a schema."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import ConfigError
from headrace.formats import Json, Source
from headrace.formats._ddl import parse_ddl

UTC_MICROS, LOCAL_MICROS = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("STRING COLLATE UTF8_BINARY", pa.string()),
        ("CHAR(3)", pa.string()),
        ("CHARACTER(3) COLLATE utf8_binary", pa.string()),
        ("VARCHAR(3)", pa.string()),
        ("TIMESTAMP(3)", UTC_MICROS),
        ("TIMESTAMP(9)", pa.timestamp("ns", "UTC")),
        ("TIMESTAMP_LTZ(6)", UTC_MICROS),
        ("TIMESTAMP_NTZ(7)", pa.timestamp("ns")),
        ("TIMESTAMP WITHOUT TIME ZONE", LOCAL_MICROS),
        ("TIMESTAMP(6) WITHOUT TIME ZONE", LOCAL_MICROS),
        ("TIMESTAMP WITH LOCAL TIME ZONE", UTC_MICROS),
        ("TIME", pa.time64("us")),
        ("TIME(3)", pa.time64("us")),
        ("TIME(9)", pa.time64("ns")),
    ],
)
def test_types_of_several_words_are_read(text, expected):
    assert parse_ddl(text) == expected
    inside = pa.struct([pa.field("a", expected), pa.field("b", pa.list_(expected))])
    assert parse_ddl(f"a {text} NOT NULL, b ARRAY<{text}> COMMENT 'x'") == inside


@pytest.mark.parametrize(
    "text",
    [
        "a INT COMMENT 'it''s', b STRING",
        "a INT COMMENT 'it\\'s, b', b STRING",
        'a INT COMMENT "say ""x"", or \'y\'", b STRING NOT NULL COMMENT "z"',
        "a INT -- the first, of two\n, b STRING -- the second",
        "/* a\nb */ a /**/ INT, b STRING",
        "a: INT, b: STRING\n",
    ],
)
def test_comments_have_no_effect(text):
    assert parse_ddl(text) == pa.struct([("a", pa.int32()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a INTERVAL", r"the type INTERVAL is not supported.*Use STRING, and cast it"),
        ("a interval day to second", r"the type interval is not supported"),
        ("a ARRAY<VARIANT>", r"the type VARIANT is not supported.*parse_json\(value\.field\)"),
        ("a GEOMETRY(4326)", "the type GEOMETRY is not supported"),
        ("a STRING COLLATE UTF8_LCASE", r"the collation UTF8_LCASE is not supported.*collate\(value.field"),
        ("a STRING COLLATE", "expected the name of a collation"),
        ("a INT COMMENT", "expected a text in quotes after COMMENT"),
        ("a INT COMMENT 'open", "unexpected"),
        ("a TIMESTAMP(10)", "at most 9 digits of a second, not 10"),
        ("a INT, a STRING", "there are two fields a"),
        ("a INT /* open", "unexpected"),
    ],
)
def test_what_is_not_supported_says_what_to_use(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_ddl(text)


def test_names_that_differ_in_case_are_different_fields():
    cells = pa.array([b'{"v": 1, "V": 2}'])
    assert Json("v int, V int").decode(cells, Source("t")).column.to_pylist() == [{"v": 1, "V": 2}]
