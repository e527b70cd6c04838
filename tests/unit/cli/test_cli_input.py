"""Parsing of command input and its errors: JSON lines, times, directory names."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from headrace.cli.produce import _read_json, _TopicWriter
from headrace.cli.start_offsets import StartOffset, parse_start_offset
from headrace.errors import HeadraceError, NetworkError
from support.harness.shell import headrace


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"headers": {"ab": "c", "n": None}}, {"headers": [("ab", b"c"), ("n", None)]}),
        ({"headers": [["ab", "c"], ["ab", {"base64": "/w=="}]]}, {"headers": [("ab", b"c"), ("ab", b"\xff")]}),
        ({"headers": None, "timestamp": None, "partition": None}, {}),
        ({"timestamp": -1, "partition": -1}, {}),
        ({"timestamp": 2**63 - 1, "partition": 0}, {"timestamp": 2**63 - 1, "partition": 0}),
    ],
)
def test_a_line_of_json_becomes_a_record(line: dict[str, Any], expected: dict[str, Any]) -> None:
    found = _read_json(json.dumps({"value": "v", **line}).encode(), "line 1", None)
    assert found == {"key": None, "value": b"v", "headers": [], **expected}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"headers": "ab"}, "headers must be an object"),
        ({"headers": ["ab"]}, "headers must be an object"),
        ({"headers": [["a", "b", "c"]]}, "headers must be an object"),
        ({"headers": [[1, "b"]]}, "headers must be an object"),
        ({"headers": 3}, "headers must be an object"),
        ({"headers": False}, "headers must be an object"),
        ({"timestamp": "abc"}, '"abc" is not a valid timestamp'),
        ({"timestamp": 1.5}, "1.5 is not a valid timestamp"),
        ({"timestamp": 2**63}, "is not a valid timestamp"),
        ({"timestamp": -2}, "-2 is not a valid timestamp"),
        ({"partition": True}, "true is not a valid partition"),
        ({"partition": "1"}, '"1" is not a valid partition'),
        ({"partition": 2**31}, "is not a valid partition"),
    ],
)
def test_a_line_that_is_no_record_is_refused(line: dict[str, Any], said: str) -> None:
    with pytest.raises(HeadraceError, match=f"^file, line 7: not a record in JSON: .*{said}"):
        _read_json(json.dumps({"value": "v", **line}).encode(), "file, line 7", None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"hello\n", "Expecting value at column 1"),
        (b'{"value": \r\n', "Expecting value at column 11"),
        (b'{"value": "v"} x', "Extra data at column 16"),
    ],
)
def test_an_error_in_json_has_one_line_number(line: bytes, said: str) -> None:
    with pytest.raises(HeadraceError) as raised:
        _read_json(line, "<stdin>, line 7", None)
    assert str(raised.value) == f"<stdin>, line 7: not a record in JSON: {said}"


class SlowProducer:
    """Gets no acknowledgement."""

    def flush(self, timeout: float) -> None:
        raise HeadraceError("too late") from NetworkError("connection refused")

    def close(self, timeout: float) -> None: ...


@pytest.mark.parametrize(("count", "said"), [(1, "1 record was not"), (1_200, "1,200 records were not")])
def test_records_without_acknowledgement_are_counted(count: int, said: str) -> None:
    writer = _TopicWriter.__new__(_TopicWriter)
    delivery: Any = SimpleNamespace(is_done=False, error=None)
    writer._producer, writer._failed, writer._written = SlowProducer(), None, 0  # type: ignore[assignment]
    writer._waiting = deque([("line", delivery)] * count)
    assert writer.close(10) == 0
    with pytest.raises(HeadraceError, match=f"^{said} acknowledged within 10 s: connection refused$"):
        writer.check()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("topics", "--timeout", "abc"), "'abc' is not a valid number of seconds"),
        (("tail", "-t", "t", "-c", "x"), "'x' is not a valid whole number"),
        (("topics", "--timeout", "0"), "0.0 is not in the range 0.1<=x<=3600"),
        (("topics", "-b", "127.0.0.1:1", "-C", "foo=bar"), "unknown setting foo: no setting has a similar name"),
        (("topics", "-b", "127.0.0.1:1", "-C", "clientid=bar"), "unknown setting clientid: did you mean client.id?"),
    ],
)
def test_invalid_options_are_named_in_plain_words(args: tuple[str, ...], said: str) -> None:
    done = headrace(*args)
    assert (done.code, done.text) == (2, "")
    assert said in done.err


def test_the_help_names_the_units_of_numbers() -> None:
    shown = headrace("tail", "--help").text
    assert "--timeout SECONDS" in shown
    assert "--count NUMBER" in shown


def test_seconds_and_milliseconds_since_1970() -> None:
    in_seconds, in_milliseconds = (parse_start_offset(f"@1763262000{zeros}", 0.0) for zeros in ("", "000"))
    assert in_seconds == in_milliseconds == StartOffset("time", 1_763_262_000_000)


@pytest.mark.parametrize("text", ["@123456789", "@20261116004", "@176326200000", "@17632620000000"])
def test_numbers_that_are_neither_seconds_nor_milliseconds_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"in seconds \(10 digits\) or milliseconds \(13\)"):
        parse_start_offset(text, 0.0)


def test_a_directory_with_a_name_that_a_shell_would_take_apart(tmp_path: Path) -> None:
    directory = tmp_path / "My Shop!"
    assert headrace("new", str(directory)).text.endswith(f"\nheadrace run '{directory}'\n")
    assert f"# headrace run '{directory}'  " in (directory / "spark-pipeline.yml").read_text()


def test_help_has_examples_and_summaries_that_are_not_cut() -> None:
    whole = headrace("--help").text
    commands = [line.split()[0] for line in whole.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    assert len(commands) == 13
    assert "...\n" not in (whole + headrace("demo", "--help").text).replace("[ARGS]...", "")
    for command in commands:
        assert "Examples:\n" in headrace(command, "--help").text, command
