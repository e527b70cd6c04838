"""Java's `sasl.jaas.config`: `LoginModule flag key="value" key='value' ... ;`

It is read as Java's StreamTokenizer reads it, with its rules for words, quotes and remarks:

    word      letters, digits and . - _ $, not beginning with a digit, . or -; all else needs quotes
    quoted    up to the same quote; a backslash before n, t, r, b, f, a, v, or before up to three octal digits, stands
              for one character, and before any other character for that
    remark    from / to the end of the line, or from /* to */

Where Java guesses, there is an error: a quote that its line does not close, a name that is given twice. Only the one
entry that a client's setting may hold is read. The class stands for a kind of login, since Java classes cannot be run
here. No error repeats anything of the text but names: it is where the password stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""  (?P<nothing>  [\x00-\x20]+ | /\*(?:.*?\*/|.*) | /[^\r\n]* )
        | (?P<word>     [A-Za-z_$\xa0-\U0010ffff][\w.$\-\xa0-\U0010ffff]* )
        | (?P<quoted>   "(?:[^"\\\r\n]|\\.)*" | '(?:[^'\\\r\n]|\\.)*' )
        | (?P<mark>     [=;] )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Login:
    """One entry: the class without its package, and its options."""

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
        raise ValueError('must be of the form: LoginModule required username="…" password="…";')
    options: dict[str, str] = {}
    while not (name := next(tokens)).is_the(";"):
        if name.is_the(_END):
            raise ValueError("there is no semicolon at its end")
        equals, value = next(tokens), next(tokens)
        if name.is_mark or not equals.is_the("=") or value.is_mark:
            raise _unreadable(name.at)
        if name.text in options:
            raise ValueError(f"{name.text} is given twice")
        options[name.text] = value.text
    if not next(tokens).is_the(_END):
        raise ValueError("it has more than one login module: only one can be used")
    return Login(module.text.rpartition(".")[2], options)


_END = ""


def _tokens(text: str) -> Iterator[_Token]:
    """What there is, and then ends without end."""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _unreadable(at)
        if found["word"] is not None:
            yield _Token(found["word"], False, at)
        elif found["quoted"] is not None:
            yield _Token(_ESCAPE.sub(_unescaped, found["quoted"][1:-1]), False, at)
        elif found["mark"] is not None:
            yield _Token(found["mark"], True, at)
        at = found.end()
    while True:
        yield _Token(_END, True, at)


def _unescaped(found: re.Match[str]) -> str:
    said = found[1]
    return chr(int(said, 8)) if said[0] in "01234567" else _ESCAPES.get(said, said)


def _unreadable(at: int) -> ValueError:
    return ValueError(
        f"it cannot be read from character {at} on: values with other characters than letters, digits and . - _ $ need "
        "quotes, as do those that begin with a digit"
    )
