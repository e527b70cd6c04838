"""Formats records as lines. All records of a poll are formatted together, with a few C calls per record.

text   the value; with further columns, separated by tabs
json   one object per line; bytes that are not UTF-8 as {"base64": …}
hex    like text, with keys and values in hexadecimal
"""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from json.encoder import encode_basestring_ascii
from operator import attrgetter

from ..records import Record
from .formatting import printable

Render = Callable[[Iterable[Record]], bytes]


class JsonText(bytes):
    """A decoded key or value, as JSON. It is part of a line in JSON as it is."""


_NO_TIMESTAMP = -1

_value_of = attrgetter("value")


@dataclasses.dataclass(frozen=True, slots=True)
class LineColumns:
    """The columns that are shown in addition to the value."""

    offsets: bool = False
    keys: bool = False
    headers: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """Keeps the records that match all patterns."""

    value: re.Pattern[bytes] | None = None
    key: re.Pattern[bytes] | None = None

    def __bool__(self) -> bool:
        return self.value is not None or self.key is not None

    def __call__(self, records: Iterable[Record]) -> list[Record]:
        found = list(records)
        if self.value is not None:
            search = self.value.search
            found = [record for record in found if search(record.value or b"")]
        if self.key is not None:
            search = self.key.search
            found = [record for record in found if search(record.key or b"")]
        return found


def renderer(form: str, columns: LineColumns, for_terminal: bool) -> Render:
    """A function that formats records as lines, each with a newline."""
    if form == "json":
        return _json_lines
    show = bytes.hex if form == "hex" else _safe if for_terminal else None
    if columns == LineColumns():
        if show is None:
            return _values
        return lambda records: "".join([show(record.value or b"") + "\n" for record in records]).encode()
    text = show or _text
    return lambda records: "".join([_row(record, columns, text) for record in records]).encode(errors="surrogateescape")


def _values(records: Iterable[Record]) -> bytes:
    try:
        return b"\n".join(map(_value_of, records)) + b"\n"
    except TypeError:  # a value is null (rare)
        return b"\n".join([record.value or b"" for record in records]) + b"\n"


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _safe(data: bytes) -> str:
    return printable(data.decode(errors="replace"))


def _row(record: Record, columns: LineColumns, text: Callable[[bytes], str]) -> str:
    cells = []
    if columns.offsets:
        cells += [f"{record.partition}:{record.offset}", _time(record.timestamp)]
    if columns.headers:
        cells.append(",".join(f"{printable(name)}={text(value or b'')}" for name, value in record.headers))
    if columns.keys:
        cells.append(text(record.key or b""))
    cells.append(text(record.value or b""))
    return "\t".join(cells) + "\n"


def _time(timestamp: int) -> str:
    if timestamp == _NO_TIMESTAMP:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # out of range: a producer may write any number
        return str(timestamp)


def _json_lines(records: Iterable[Record]) -> bytes:
    """Formats by hand, because json.dumps() of a dict takes four times as long."""
    topics: dict[str, str] = {}
    lines = []
    for record in records:
        topic = record.topic
        quoted = topics.get(topic) or topics.setdefault(topic, encode_basestring_ascii(topic))
        lines.append(
            f'{{"topic": {quoted}, "partition": {record.partition}, "offset": {record.offset}, '
            f'"timestamp": {record.timestamp}, "key": {_quoted(record.key)}, "value": {_quoted(record.value)}, '
            f'"headers": {_headers(record)}}}\n'
        )
    return "".join(lines).encode()


def _quoted(data: bytes | None) -> str:
    if data is None:
        return "null"
    if type(data) is JsonText:
        return data.decode()
    try:
        return encode_basestring_ascii(data.decode())
    except UnicodeDecodeError:
        return f'{{"base64": "{base64.b64encode(data).decode()}"}}'


def _headers(record: Record) -> str:
    found = record.headers
    if not found:
        return "[]"
    return "[" + ", ".join(f"[{encode_basestring_ascii(name)}, {_quoted(value)}]" for name, value in found) + "]"
