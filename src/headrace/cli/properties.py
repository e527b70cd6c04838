r"""Java's properties files, as Kafka's tools take their settings from.

    name=value    name: value    name value    the first =, : or blank ends the name
    # …    ! …                                 a comment
    a line that ends with \                    goes on in the next one, without the blanks that that begins with
    \t \n \r \f \u00e9; \ before anything else what follows it, as it is; in names and in values

Stricter than Java in two things that are mistakes far more often than meant: a line without any of = : and blank, and a
name that no setting could have. No error repeats anything of a line, since passwords stand there.
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
    """Raises ValueError, which names the line."""
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
    """Lines that say something, with their numbers: those that go on are joined."""
    begun, whole = 0, ""
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANKS)
        if not begun:
            if not line or line[0] in "#!":
                continue
            begun = number
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        whole += line[:-1] if goes_on else line
        if not goes_on:
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
