"""Parses Java's `sasl.jaas.config`: `LoginModule flag key="value" key='value' ... ;`

It follows Java's StreamTokenizer, with its rules for words, quotes and comments:

    word      letters, digits and . - _ $, not starting with a digit, . or -; everything else needs quotes
    quoted    up to the next quote of the same kind; a backslash before n, t, r, b, f, a, v or up to three octal digits
              is an escape for one character, and a backslash before any other character is dropped
    comment   from / to the end of the line, or from /* to */

Where Java guesses, this raises an error: for a quote that is not closed on its line, and for a name that is given
twice. Only a single entry is allowed. The class name selects the kind of login; the Java class itself is not run. No
error repeats any part of the text except names, because the text contains the password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = r"""
          (?P<nothing>  [\x00-\x20]+ | /\*(?:.*?\*/|.*) | /[^\r\n]* )
        | (?P<word>     [A-Za-z_$\xa0-\U0010ffff][\w.$\-\xa0-\U0010ffff]* )
        | (?P<quoted>   "(?:[^"\\\r\n]|\\.)*" | '(?:[^'\\\r\n]|\\.)*' )
        | (?P<mark>     [=;] )"""
_ESCAPE = r"\\([0-3]?[0-7]{1,2}|.)"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Login:
    """One entry: the class name without its package, and the options."""

    module: str
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Token:
    text: str = field(repr=False)
    is_mark: bool
    at: int

    def is_the(self, mark: str) -> bool:
        return self.is_mark and self.text == mark


def parse_jaas(text: str) -> Login:
    """Raises ValueError."""
    tokens = _tokens(text)
    module, flag = next(tokens), next(tokens)
    if module.is_mark or flag.is_mark or flag.text.lower() not in _FLAGS:
        raise ValueError('must have the form: LoginModule required username="…" password="…";')
    options: dict[str, str] = {}
    while not (name := next(tokens)).is_the(";"):
        if name.is_the(_END):
            raise ValueError("the semicolon at the end is missing")
        equals, value = next(tokens), next(tokens)
        if name.is_mark or not equals.is_the("=") or value.is_mark:
            raise _unreadable(name.at)
        if name.text in options:
            raise ValueError(f"{name.text} is given twice")
        options[name.text] = value.text
    if not next(tokens).is_the(_END):
        raise ValueError("there is more than one login module: only one is allowed")
    return Login(module.text.rpartition(".")[2], options)


_END = ""


def _tokens(text: str) -> Iterator[_Token]:
    """The tokens of the text, followed by endless end marks."""
    token = re.compile(_TOKEN, re.VERBOSE | re.DOTALL)  # not on import, which most programs do without a login
    at = 0
    while at < len(text):
        found = token.match(text, at)
        if found is None:
            raise _unreadable(at)
        if found["word"] is not None:
            yield _Token(found["word"], False, at)
        elif found["quoted"] is not None:
            yield _Token(re.sub(_ESCAPE, _unescaped, found["quoted"][1:-1], flags=re.DOTALL), False, at)
        elif found["mark"] is not None:
            yield _Token(found["mark"], True, at)
        at = found.end()
    while True:
        yield _Token(_END, True, at)


def _unescaped(found: re.Match[str]) -> str:
    escaped = found[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPES.get(escaped, escaped)


def _unreadable(at: int) -> ValueError:
    return ValueError(
        f"cannot be parsed from character {at} on: put values in quotes if they start with a digit, or contain "
        "characters other than letters, digits and . - _ $"
    )
