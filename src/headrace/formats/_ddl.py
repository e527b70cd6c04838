"""Spark's text form of a schema, such as `road STRING, speed DOUBLE, tags ARRAY<STRING>`, as Arrow types."""

from __future__ import annotations

import re
from typing import Any

from .._arguments import short_repr
from ..errors import ConfigError
from ._kernel import load_pyarrow

_TOKEN = re.compile(
    r"(?:\s|--[^\n]*|/\*.*?\*/)*(?:"
    r"(?P<name>[^\W\d]\w*|`(?:[^`]|``)+`)|(?P<number>\d+)|(?P<sign>[<>(),:])|(?P<end>\Z)|"
    r"(?P<text>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"))",
    re.DOTALL,
)
_DEEPEST = 64
_REFUSED = {
    "INTERVAL": "JSON has no interval that all readers understand. Use STRING, and cast it in the query: "
    "CAST(value.field AS INTERVAL DAY TO SECOND)",
    "VARIANT": "Use STRING: it contains the JSON text of any value, and parse_json(value.field) makes a VARIANT of it",
    "GEOGRAPHY": "Use STRING or BINARY, and convert it in the query",
    "GEOMETRY": "Use STRING or BINARY, and convert it in the query",
}
_DEFAULT_COLLATION = "UTF8_BINARY"
_MICROSECOND_DIGITS = 6
_MOST_DIGITS_OF_SECOND = 9


def parse_ddl(text: str) -> Any:
    """The Arrow type of a DDL text: a struct for a list of columns, or the type of a single type's name.

    Raises ConfigError.
    """
    tokens = _Tokens(text)
    found = tokens.type(0) if tokens.is_type() else load_pyarrow().struct(tokens.fields("", 0))
    tokens.end()
    return found


class _Tokens:
    def __init__(self, text: str) -> None:
        self._text = text
        self._all: list[tuple[str, str]] = []
        at = 0
        while True:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"unexpected {short_repr(text[at:].strip()[:20])}")
            if match.lastgroup == "end":
                break
            self._all.append((str(match.lastgroup), match[match.lastgroup or 0]))
            at = match.end()
        self._at = 0

    def _error(self, reason: str) -> ConfigError:
        return ConfigError(
            f"the schema {short_repr(self._text)} is not valid: {reason}. Write it as Spark does: "
            "road STRING, speed DOUBLE, tags ARRAY<STRING>"
        )

    def _next(self) -> tuple[str, str]:
        return self._all[self._at] if self._at < len(self._all) else ("end", "")

    def _take(self, sign: str) -> bool:
        found = self._next() == ("sign", sign)
        self._at += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._error(f"expected {sign!r} instead of {self._next()[1]!r}")

    def _word(self, *words: str) -> bool:
        """Skips the words if they come next."""
        found = [text.upper() for kind, text in self._all[self._at : self._at + len(words)] if kind == "name"]
        if found != list(words):
            return False
        self._at += len(words)
        return True

    def is_type(self) -> bool:
        """Whether the text is a type without a name."""
        if len(self._all) <= 1:
            return bool(self._all)
        first, second = (text.upper() for _, text in self._all[:2])
        # Words that follow a type, and are no types themselves.
        is_long_type = {"COLLATE": "STRING", "WITHOUT": "TIMESTAMP", "WITH": "TIMESTAMP"}.get(second) == first
        return second in ("<", "(") or is_long_type

    def end(self) -> None:
        if self._at < len(self._all):
            raise self._error(f"unexpected {self._next()[1]!r}")

    def fields(self, close: str, depth: int) -> list[Any]:
        """Names with types, up to `close` or the end."""
        pyarrow = load_pyarrow()
        found: list[Any] = []
        names: set[str] = set()
        if close and self._take(close):
            return found
        while True:
            kind, text = self._next()
            if kind != "name":
                raise self._error(f"expected a name instead of {text!r}")
            self._at += 1
            name = text[1:-1].replace("``", "`") if text.startswith("`") else text
            if name in names:
                raise self._error(f"there are two fields {name}")
            names.add(name)
            self._take(":")
            data_type = self.type(depth)
            self._word("NOT", "NULL")  # of no use: what is missing in a record is null
            if self._word("COMMENT"):  # likewise
                if self._next()[0] != "text":
                    raise self._error(f"expected a text in quotes after COMMENT instead of {self._next()[1]!r}")
                self._at += 1
            found.append(pyarrow.field(name, data_type))
            if not self._take(","):
                break
        if close:
            self._expect(close)
        return found

    def type(self, depth: int) -> Any:
        pyarrow = load_pyarrow()
        if depth > _DEEPEST:
            raise self._error(f"types are nested deeper than {_DEEPEST} levels")
        kind, text = self._next()
        if kind != "name":
            raise self._error(f"expected a type instead of {text!r}")
        self._at += 1
        word = text.upper()
        match word:
            case "ARRAY":
                self._expect("<")
                item = self.type(depth + 1)
                self._word("NOT", "NULL")
                self._expect(">")
                return pyarrow.list_(item)
            case "MAP":
                self._expect("<")
                key = self.type(depth + 1)
                self._expect(",")
                value = self.type(depth + 1)
                self._expect(">")
                return pyarrow.map_(key, value)
            case "STRUCT":
                self._expect("<")
                return pyarrow.struct(self.fields(">", depth + 1))
            case "DECIMAL" | "DEC" | "NUMERIC":
                return self._decimal()
            case "STRING" | "CHAR" | "CHARACTER" | "VARCHAR":
                if word != "STRING":
                    self._length()
                self._collation()
                return pyarrow.string()
            case "TIMESTAMP" | "TIMESTAMP_LTZ" | "TIMESTAMP_NTZ":
                return self._timestamp(word)
            case "TIME":
                unit = "ns" if (self._length() or 0) > _MICROSECOND_DIGITS else "us"
                self._word("WITHOUT", "TIME", "ZONE")
                return pyarrow.time64(unit)
        simple = {
            "BOOLEAN": pyarrow.bool_,
            "BYTE": pyarrow.int8,
            "TINYINT": pyarrow.int8,
            "SHORT": pyarrow.int16,
            "SMALLINT": pyarrow.int16,
            "INT": pyarrow.int32,
            "INTEGER": pyarrow.int32,
            "LONG": pyarrow.int64,
            "BIGINT": pyarrow.int64,
            "FLOAT": pyarrow.float32,
            "REAL": pyarrow.float32,
            "DOUBLE": pyarrow.float64,
            "BINARY": pyarrow.binary,
            "DATE": pyarrow.date32,
            "VOID": pyarrow.null,
        }
        if word in simple:
            return simple[word]()
        if word in _REFUSED:
            raise self._error(f"the type {text} is not supported. {_REFUSED[word]}")
        raise self._error(f"there is no type {text}")

    def _length(self) -> int | None:
        """A number in parentheses, if it comes next."""
        if not self._take("("):
            return None
        found = self._number()
        self._expect(")")
        return found

    def _timestamp(self, word: str) -> Any:
        pyarrow = load_pyarrow()
        digits = self._length()
        if digits is not None and digits > _MOST_DIGITS_OF_SECOND:
            raise self._error(f"a timestamp has at most {_MOST_DIGITS_OF_SECOND} digits of a second, not {digits}")
        unit = "ns" if (digits or 0) > _MICROSECOND_DIGITS else "us"
        is_local = word == "TIMESTAMP_NTZ" or (word == "TIMESTAMP" and self._word("WITHOUT", "TIME", "ZONE"))
        if word == "TIMESTAMP" and not is_local:
            self._word("WITH", "LOCAL", "TIME", "ZONE")
        return pyarrow.timestamp(unit, None if is_local else "UTC")

    def _collation(self) -> None:
        if not self._word("COLLATE"):
            return
        kind, text = self._next()
        if kind != "name":
            raise self._error(f"expected the name of a collation instead of {text!r}")
        if text.upper() != _DEFAULT_COLLATION:
            raise self._error(
                f"the collation {text} is not supported: comparisons would ignore it. Use STRING, and collate it in "
                f"the query: collate(value.field, '{text}')"
            )
        self._at += 1

    def _decimal(self) -> Any:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            if self._take(","):
                scale = self._number()
            self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._error(f"decimal({precision},{scale}) has more than 38 digits, or more decimals than digits")
        return load_pyarrow().decimal128(precision, scale)

    def _number(self) -> int:
        kind, text = self._next()
        if kind != "number" or len(text) > 9:
            raise self._error(f"expected a number instead of {text!r}")
        self._at += 1
        return int(text)
