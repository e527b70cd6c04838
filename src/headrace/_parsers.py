"""Parsers for the values of settings.

A parser takes the user's value and returns it in the form that is used internally, or raises ValueError with the
reason. The reason never contains the value: only the caller knows whether the value is a secret.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ._arguments import LONGEST_STRING, whole_number_of

Parser = Callable[[Any], Any]

REQUIRED: Any = dataclasses.MISSING


def setting(parse: Parser, default: Any, meaning: str, *, secret: bool = False) -> Any:
    """A field of a settings class. The value of a secret field appears neither in a repr nor in an error."""
    metadata = {"parse": parse, "meaning": meaning, "secret": secret}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def given_settings(config: Any, keywords: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The names and values from a mapping (or None) and keywords. The error shows no values: some may be passwords."""
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(
            f'settings must be a mapping, or keywords such as bootstrap_servers="host:9092", not a '
            f"{type(config).__name__}"
        )
    return [*(config or {}).items(), *keywords.items()]


def dotted(name: str) -> str:
    """The field's name in Kafka's spelling, with dots."""
    return name.replace("_", ".")


def spelled_like(given: str, name: str) -> str:
    """The field's name for a program that has written `given`: as a keyword, or with dots."""
    return name if "_" in given and "." not in given else dotted(name)


def parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value.strip()


def parse_optional_text(value: Any) -> str | None:
    return None if value is None else parse_text(value) or None


def parse_sent_text(value: Any) -> str:
    """Text that is sent to brokers."""
    return _checked_for_sending(parse_text(value))


def parse_optional_sent_text(value: Any) -> str | None:
    text = parse_optional_text(value)
    return None if text is None else _checked_for_sending(text)


def parse_id(value: Any) -> str | None:
    """An id that is sent to brokers. An empty id is an error: it usually comes from an unset variable."""
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
    """Text that is not stripped, such as a password, which may contain blanks."""
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
        try:  # as of an argument, or as text, which Kafka's settings may be
            number = int(value) if isinstance(value, str) else whole_number_of("it", value)
        except (TypeError, ValueError):
            raise ValueError("must be a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high}")
        return number

    return parse


def parse_callback(value: Any) -> Callable[[Any], Any] | None:
    """A plain function. It is called on a thread, where nobody awaits a coroutine."""
    if value is not None and not callable(value):
        raise ValueError("must be a function")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise ValueError("must be a plain function, not a coroutine function: it is called on a thread of its own")
    found: Callable[[Any], Any] | None = value
    return found


def one_of(*choices: str) -> Parser:
    """One of the given words. Upper case is accepted, and lower case is returned."""

    def parse(value: Any) -> str:
        text = parse_text(value).lower()
        if text not in choices:
            raise ValueError("must be " + " or ".join(choices))
        return text

    return parse
