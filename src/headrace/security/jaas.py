"""Java's `sasl.jaas.config`: `LoginModule flag key="value" key='value' ... ;`

Only the one entry that a client's setting may hold is read. The class stands for a kind of login, since Java classes
cannot be run here. No error repeats anything of the text: it is where the password stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_FLAGS = ("required", "requisite", "sufficient", "optional")
_OPTION = re.compile(
    r"""\s*(?P<name>[A-Za-z_][\w.\-]*)\s*=\s*
        (?: "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>(?:[^'\\]|\\.)*)' | (?P<bare>[^\s"';=]+) )""",
    re.VERBOSE | re.DOTALL,
)
_HEAD = re.compile(r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)(?=[\s;])")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Login:
    """One entry: the class without its package, and its options."""

    module: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> Login:
    """Raises ValueError."""
    head = _HEAD.match(text)
    if head is None or head["flag"].lower() not in _FLAGS:
        raise ValueError('must be of the form: LoginModule required username="…" password="…";')
    options: dict[str, str] = {}
    at = head.end()
    while True:
        option = _OPTION.match(text, at)
        if option is None:
            break
        if option["name"] in options:
            raise ValueError(f"{option['name']} is given twice")
        options[option["name"]] = _value(option)
        at = option.end()
    rest = text[at:].strip()
    if not rest.startswith(";"):
        raise ValueError(
            "there is no semicolon at its end" if not rest else f"it cannot be read from character {at} on"
        )
    if rest[1:].strip():
        raise ValueError("it has more than one login module: only one can be used")
    return Login(head["module"].rpartition(".")[2], options)


def _value(option: re.Match[str]) -> str:
    if option["bare"] is not None:
        return option["bare"]
    quoted = option["double"] if option["double"] is not None else option["single"]
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), quoted, flags=re.DOTALL)
