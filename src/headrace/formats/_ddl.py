"""Spark's text form of a schema, such as `road STRING, speed DOUBLE, tags ARRAY<STRING>`, as Arrow types."""

from __future__ import annotations

import re
from typing import Any

from .._arguments import short_repr
from ..errors import ConfigError
from ._kernel import load_pyarrow

_TOKEN = re.compile(r"\s*(?:(?P<name>[^\W\d]\w*|`(?:[^`]|``)+`)|(?P<number>\d+)|(?P<text>'[^']*')|(?P<sign>[<>(),:]))")
_DEEPEST = 64


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
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"unexpected {short_repr(text[at:].strip()[:20])}")
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
        after = self._all[1][1] if len(self._all) > 1 else ""
        return len(self._all) == 1 or after in ("<", "(")

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
            if self._word("COMMENT"):
                self._at += self._next()[0] == "text"
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
            case "CHAR" | "VARCHAR":
                self._expect("(")
                self._number()
                self._expect(")")
                return pyarrow.string()
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
            "STRING": pyarrow.string,
            "BINARY": pyarrow.binary,
            "DATE": pyarrow.date32,
            "VOID": pyarrow.null,
        }
        if word in simple:
            return simple[word]()
        if word in ("TIMESTAMP", "TIMESTAMP_LTZ"):
            return pyarrow.timestamp("us", "UTC")
        if word == "TIMESTAMP_NTZ":
            return pyarrow.timestamp("us")
        raise self._error(f"there is no type {text}")

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
