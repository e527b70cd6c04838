"""The kinds of settings: how each is read from what a user wrote.

A parser takes the value as given and returns it as it is used, or raises ValueError with the reason, which never
repeats the value: whoever shows the error knows whether it may be shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Parser = Callable[[Any], Any]

REQUIRED: Any = dataclasses.MISSING
LONGEST_STRING = 2**15 - 1  # bytes of UTF-8: a broker closes the connection on a longer one


def setting(parse: Parser, default: Any, meaning: str, *, secret: bool = False) -> Any:
    """A field of a settings class. A secret one is shown by no repr and in no error."""
    metadata = {"parse": parse, "meaning": meaning, "secret": secret}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def given_settings(config: Any, keywords: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Names and values out of a mapping (or None) and keywords. The error shows no value: there may be passwords."""
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(
            f'settings are given as a mapping, or as keywords such as bootstrap_servers="host:9092", not as a '
            f"{type(config).__name__}"
        )
    return [*(config or {}).items(), *keywords.items()]


def dotted(name: str) -> str:
    """A field's name as Kafka writes it."""
    return name.replace("_", ".")


def parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value.strip()


def parse_optional_text(value: Any) -> str | None:
    return None if value is None else parse_text(value) or None


def parse_sent_text(value: Any) -> str:
    """What brokers are told."""
    return _checked_for_sending(parse_text(value))


def parse_optional_sent_text(value: Any) -> str | None:
    text = parse_optional_text(value)
    return None if text is None else _checked_for_sending(text)


def parse_id(value: Any) -> str | None:
    """What brokers know somebody by. An empty one is a variable that was not set, and not a wish to have none."""
    if value is not None and not parse_text(value):
        raise ValueError("must not be empty")
    return parse_optional_sent_text(value)


def _checked_for_sending(text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("must be text without lone surrogates") from None
    if size > LONGEST_STRING:
        raise ValueError(f"must be at most {LONGEST_STRING} bytes of UTF-8")
    return text


def parse_verbatim(value: Any) -> str | None:
    """A password: blanks may be part of it."""
    if value is not None and not isinstance(value, str):
        raise ValueError("must be a string")
    return _checked_for_sending(value) if value else None


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
