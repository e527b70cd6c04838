"""The kinds of settings: how each is read from what a user wrote.

A parser takes the value as given and returns it as it is used, or raises ValueError with the reason, which never
repeats the value: whoever shows the error knows whether it may be shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

Parser = Callable[[Any], Any]

REQUIRED: Any = dataclasses.MISSING


def setting(parse: Parser, default: Any, meaning: str, *, secret: bool = False) -> Any:
    """A field of a settings class. A secret one is shown by no repr and in no error."""
    metadata = {"parse": parse, "meaning": meaning, "secret": secret}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def dotted(name: str) -> str:
    """A field's name as Kafka writes it."""
    return name.replace("_", ".")


def parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value.strip()


def parse_optional_text(value: Any) -> str | None:
    return None if value is None else parse_text(value) or None


def parse_verbatim(value: Any) -> str | None:
    """A password: blanks may be part of it."""
    if value is not None and not isinstance(value, str):
        raise ValueError("must be a string")
    return value or None


def parse_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


def whole_number(low: int, high: int = 2**31 - 1) -> Parser:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError("must be a whole number")
        try:
            number = int(value)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high}")
        return number

    return parse


def one_of(*choices: str) -> Parser:
    """One of a few words, in lower case whatever the user's was."""

    def parse(value: Any) -> str:
        text = parse_text(value).lower()
        if text not in choices:
            raise ValueError("must be " + " or ".join(choices))
        return text

    return parse
