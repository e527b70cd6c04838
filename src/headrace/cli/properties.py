r"""Parses Java's properties files, which Kafka's tools use for settings.

    name=value    name: value    name value    the first =, : or space ends the name
    # …    ! …                                 a comment
    a line that ends with \                    continues in the next line, whose leading spaces are dropped
    \t \n \r \f \u00e9                         escapes, in names and values
    \ before another character                 that character

It is stricter than Java in two cases that are usually mistakes: a line without =, : or space, and a name that no
setting can have. Errors do not quote the line, because it may contain a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_ENTRY = re.compile(r"(?P<name>(?:[^\\=: \t\f]|\\.)*)(?P<between>[ \t\f]*[=:]?[ \t\f]*)(?P<value>.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|(?P<char>.))", re.DOTALL)
_CHARS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Raises ValueError with the number of the line."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        entry = _ENTRY.fullmatch(line)
        assert entry is not None
        name = _unescaped(entry["name"], number)
        if not entry["between"] or not _NAME.fullmatch(name):
            raise ValueError(f"line {number} is not of the form NAME=VALUE")
        found[name] = _unescaped(entry["value"], number)
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, without comments and empty lines. Continued lines are joined."""
    begun, whole = 0, ""
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANKS)
        if not begun:
            if not line or line[0] in "#!":
                continue
            begun = number
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        whole += line[:-1] if continues else line
        if not continues:
            yield begun, whole
            begun, whole = 0, ""
    if begun:
        yield begun, whole


def _unescaped(text: str, number: int) -> str:
    def char(escape: re.Match[str]) -> str:
        if escape["code"]:
            return chr(int(escape["code"], 16))
        if escape["char"] == "u":
            raise ValueError(f"line {number} has a \\u without four hexadecimal digits after it")
        return _CHARS.get(escape["char"], escape["char"])

    return _ESCAPE.sub(char, text)
