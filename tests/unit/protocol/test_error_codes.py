"""Broker errors become Python errors, with any text a broker may send."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._protocol.codes import kafka_error, printable
from headrace.errors import AuthorizationError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("No such thing.", "No such thing."),
        ("größe 数", "größe 数"),
        ("no\n2026-11-16 CRITICAL root: all is lost", "no 2026-11-16 CRITICAL root: all is lost"),
        ("\x1b[31mred\x9b0m\x07", " [31mred 0m "),
        ("a\0b\x7fc\u202ed\u2028e", "a b c d e"),
        ("", ""),
        ("x" * 50, "x" * 50),
        ("x" * 51, "x" * 50 + " …"),
    ],
)
def test_text_of_peers_is_made_printable_and_short(text: str, shown: str) -> None:
    assert printable(text, 50) == shown


def test_an_error_has_a_printable_and_short_part_of_the_broker_s_message() -> None:
    remark = "no\nCRITICAL root: all is lost \x1b[31m" + "A" * 20_000
    error = kafka_error(E.invalid_request, "FindCoordinator of group größe", remark)
    assert str(error).startswith(
        "FindCoordinator of group größe: INVALID_REQUEST (42): no CRITICAL root: all is lost  ["
    )
    assert str(error).isprintable()
    assert len(str(error)) < 1100


def test_names_in_an_error_are_made_printable_and_short() -> None:
    error = kafka_error(E.topic_authorization_failed, "Metadata of topic t\n\x1b[2J" + "u" * 30_000)
    assert isinstance(error, AuthorizationError)
    assert str(error).isprintable()
    assert len(str(error)) < 1100
