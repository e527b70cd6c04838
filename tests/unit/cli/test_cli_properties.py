"""Kafka's properties files, and errors for unreadable ones."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from headrace.cli.connection_options import name_and_value, read_properties
from headrace.cli.properties import parse_properties
from support.harness.shell import headrace

LOGIN = r"""
sasl.jaas.config = org.apache.kafka.common.security.scram.ScramLoginModule required \
    username="me" \
    password="a\\\\b\"c" ;
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.b=c", {"a.b": "c"}),
        ("a.b : c\r\n\td   e f\rg=", {"a.b": "c", "d": "e f", "g": ""}),
        ("# one\n  ! two = 2\n\n \t\nx==y", {"x": "=y"}),
        ("x=\\u00e9\\t\\z\\\\ ", {"x": "é\tz\\ "}),
        ("x=a\\\\\ny=b", {"x": "a\\", "y": "b"}),
        ("x=a\\\n   # b", {"x": "a# b"}),
        ("x=a\\", {"x": "a"}),
        ("a\\.b=1\na=1\na=2", {"a.b": "1", "a": "2"}),
        (
            LOGIN,
            {
                "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
                'username="me" password="a\\\\b"c" ;'
            },
        ),
    ],
)
def test_properties_files_are_read_as_java_reads_them(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found


@pytest.mark.parametrize("line", ["hunter2", "=hunter2", "hunter2!=x", "p=\\u12hunter2", '"hunter2" ;', "\\=hunter2=x"])
def test_an_error_names_the_line_and_nothing_of_it(tmp_path: Path, line: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"# first\na=1 \\\n  2\n{line}\n")
    done = headrace("topics", "-F", str(file))
    assert (done.code, done.out) == (2, b"")
    assert f"{file}: line 4 " in done.err
    assert "hunter2" not in done.err


@pytest.mark.parametrize(
    "text", ["sasl.password: hunter2", "sasl.password hunter2", "=hunter2", "sasl.password:hunter2", " : hunter2"]
)
def test_an_option_shows_its_name_only(text: str) -> None:
    done = headrace("topics", "-b", "127.0.0.1:1", "-C", text)
    assert (done.code, done.out) == (2, b"")
    assert "is not of the form NAME=VALUE" in done.err
    assert "hunter2" not in done.err


def test_an_option_is_a_name_and_a_value() -> None:
    assert name_and_value(" a = b=c ", "-C") == ("a", "b=c")
    with pytest.raises(click.BadParameter, match="cannot be read"):
        read_properties(Path("/no/such/file"))
