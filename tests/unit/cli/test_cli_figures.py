"""Figures of the command line that need no broker: lags, trends, offsets, lines, tables."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
import pytest

from headrace._protocol.admin_messages import ADMIN_APIS
from headrace._protocol.messages import encode_request
from headrace.cli.formatting import numbers, printable, seconds, table
from headrace.cli.lag import Threshold
from headrace.cli.lag import shown as lag_table
from headrace.cli.lag_queries import Sample
from headrace.cli.pipeline_process import main_table
from headrace.cli.record_format import Filter, LineColumns, renderer
from headrace.cli.start_offsets import StartOffset, parse_start_offset, span_seconds
from headrace.errors import HeadraceError
from headrace.monitor.checkpoints import read_checkpoints
from headrace.monitor.model import PartitionView, Trend
from headrace.records import Record
from headrace.types import TopicPartition

TP = TopicPartition("t", 0)


def row(tp: TopicPartition, following: int, end: int, lag: int, owner: str | None = None, **more: Any) -> PartitionView:
    return PartitionView(tp, "", following, following, 0, end, lag, owner=owner, **more)


def test_a_next_offset_beyond_the_end_belongs_to_another_log() -> None:
    beyond = row(TP, 100, 90, 0)
    assert beyond.is_beyond
    text = lag_table("g", Sample(0.0, [beyond]), None)
    assert text.endswith(
        "t-0: the next offset is beyond the end of the log (topic recreated or truncated, or another cluster)"
    )
    assert not row(TP, 90, 90, 0).is_beyond


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([("a@h", "a-1"), ("b@h", "b-1")], ["a@h", "b@h"]),
        ([("a@h", "a-1"), ("a@h", "a-1")], ["a@h", "a@h"]),  # one member, two partitions
        ([("a@h", "a-12345678-90"), ("a@h", "a-12345679-90")], ["a@h 12345678", "a@h 12345679"]),  # classic groups
        (
            [("a@h", "QBcNYP34-x"), ("a@h", "Zk1NYP34-x"), (None, None)],
            ["a@h QBcNYP34", "a@h Zk1NYP34", "-"],
        ),  # KIP-848
        (
            [("a@h", "a-0000000000000000-1"), ("a@h", "a-0000000000000000-2")],
            ["a@h 0000000000000000-1", "a@h 0000000000000000-2"],
        ),
    ],
)
def test_members_are_told_apart(members: list[tuple[str | None, str | None]], expected: list[str]) -> None:
    found = [
        row(TopicPartition("t", n), 0, 1, 1, owner=owner, member=member) for n, (owner, member) in enumerate(members)
    ]
    lines = lag_table("g", Sample(0.0, found), None).splitlines()
    assert [line.split(maxsplit=6)[6] for line in lines[2:]] == expected


def many(count: int) -> Sample:
    """Partition n has a lag of n. The last partition was truncated."""
    found = [row(TopicPartition("t", n), 0, n, n, owner="consumer-with-a-long-name@host") for n in range(count - 1)]
    return Sample(0.0, [*found, row(TopicPartition("t", count - 1), 9, 5, 0)])


def test_a_watch_has_the_worst_partitions_first() -> None:
    lines = lag_table("g", many(5), None, is_watch=True).splitlines()
    assert [line.split()[1] for line in lines[2:-1]] == ["4", "3", "2", "1", "0"]
    lines = lag_table("g", many(5), None).splitlines()
    assert [line.split()[1] for line in lines[2:-1]] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("rows", "partitions", "note"),
    [
        (11, ["4", "3", "2", "1", "0"], None),  # all rows, and a line for the cursor
        (9, ["4", "3", "2"], "… 2 more rows, with 1 record"),
        (3, ["4"], "… 4 more rows, with 6 records"),  # at least one row
    ],
)
def test_a_watch_fits_on_the_screen(rows: int, partitions: list[str], note: str | None) -> None:
    trend = Trend(1.0, 2.0, 3.0)
    screen = os.terminal_size((40, rows))
    lines = click.unstyle(lag_table("a group", many(5), trend, screen, is_watch=True)).splitlines()
    last = 2 + len(partitions)
    assert [line.split()[1] for line in lines[2:last]] == partitions
    assert lines[last:-2] == ([] if note is None else [note])
    assert lines[-2].startswith("t-4: the next offset is beyond the end")
    assert lines[-1].startswith("1 records/s written, 2 consumed:")
    assert len(lines) < rows or rows == 3
    assert max(map(len, lines)) == 40, "the owner's name must not wrap"
    assert lines[2].split()[0] == "t"


def test_a_threshold_is_passed_by_records_or_by_age() -> None:
    done, late = row(TP, 5, 5, 0), row(TP, 1, 5, 4, seconds=70.0)
    assert not Threshold(records=4).is_passed(Sample(0, [done, late]))
    assert Threshold(records=3).is_passed(Sample(0, [done, late]))
    assert not Threshold(seconds=70).is_passed(Sample(0, [done, late]))
    assert Threshold(seconds=60).is_passed(Sample(0, [done, late]))
    unread = row(TP, 1, 5, 4)
    assert Threshold(seconds=60).is_passed(Sample(0, [unread, late]))
    with pytest.raises(HeadraceError, match="the age of the lag of t-0 is unknown"):
        Threshold(seconds=80).is_passed(Sample(0, [unread, late]))


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", StartOffset("beginning")),
        ("Latest", StartOffset("end")),
        ("12", StartOffset("offset", 12)),
        ("-3", StartOffset("last", 3)),
        ("@1700000000123", StartOffset("time", 1_700_000_000_123)),
        ("@-15m", StartOffset("time", 100_000)),
        ("@1970-01-01T00:01:00.5+00:00", StartOffset("time", 60_500)),
    ],
)
def test_a_start_offset_is_an_offset_a_time_or_an_end(text: str, start: StartOffset) -> None:
    assert parse_start_offset(text, 1000.0) == start


@pytest.mark.parametrize("text", ["", "x", "1.5", "@", "@soon", "--3"])
def test_an_invalid_start_offset_is_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_start_offset(text, 1000.0)


def test_a_start_offset_becomes_an_offset_of_each_partition() -> None:
    first, end = {TP: 10}, {TP: 50}
    found = [
        StartOffset(kind, number).offsets(first, end)[TP]
        for kind, number in [
            ("beginning", 0),
            ("end", 0),
            ("offset", 5),
            ("offset", 20),
            ("offset", 99),
            ("last", 3),
            ("last", 99),
        ]
    ]
    assert found == [10, 50, 10, 20, 50, 47, 10]


def test_a_span_has_a_number_and_a_unit() -> None:
    assert [span_seconds(text) for text in ("5s", "1.5m", "2h", "1d", "250ms", "5", "m")] == [
        5,
        90,
        7200,
        86_400,
        0.25,
        None,
        None,
    ]
    shown = [seconds(value) for value in (None, 0.04, 0.94, 1.2, 59.6, 61, 3600, 3725, 90_000, 86_400)]
    assert shown == [None, "0.0 s", "0.9 s", "1 s", "1 min", "1 min 1 s", "1 h", "1 h 2 min", "1 d 1 h", "1 d"]


def test_a_table_is_aligned() -> None:
    text = table(("name", "count"), [("a", 1_000), ("longer", None)])
    assert text == click.style("name    count", bold=True) + "\na       1,000\nlonger      -"
    assert numbers([5, 0, 1, 2, 9]) == "0-2,5,9"
    assert numbers([]) == ""


RECORD = Record("t", 1, 2, timestamp=3, key=b"k", value=b"\x1b[2Jv\xff", headers=[("h", b"1")])


def test_a_terminal_is_not_given_commands() -> None:
    assert renderer("text", LineColumns(), True)([RECORD]) == "\ufffd[2Jv\ufffd\n".encode()
    assert renderer("text", LineColumns(keys=True), True)([RECORD]) == "k\t\ufffd[2Jv\ufffd\n".encode()
    assert renderer("text", LineColumns(), False)([RECORD]) == b"\x1b[2Jv\xff\n"
    assert renderer("text", LineColumns(keys=True), False)([RECORD]) == b"k\t\x1b[2Jv\xff\n"


def test_a_terminal_is_not_given_commands_by_names_that_others_choose() -> None:
    named = Record("t", 1, 2, timestamp=3, headers=[("h\x1b[2J", b"1")])
    assert renderer("text", LineColumns(headers=True), True)([named]) == "h\ufffd[2J=1\t\n".encode()
    assert "\x1b[2J" not in table(("client", "host"), [("me\x1b[2J", "h\x9b2J")]).splitlines()[1]
    shown = lag_table("g\x1b[2J", Sample(0, [row(TP, 1, 5, 4, owner="me\x1b[2J@x")]), None)
    assert "\x1b[2J" not in shown
    assert "me\ufffd[2J@x" in shown


@pytest.mark.parametrize(
    ("timestamp", "shown"),
    [
        (-1, "-"),
        (2**62, str(2**62)),
        (2**63 - 1, str(2**63 - 1)),
        (-(2**63), str(-(2**63))),
        (253_402_300_800_000 + 86_400_000, "253402387200000"),  # the second day of the year 10000
        (-86_400_000 * 100, "1969-09-2"),
        (86_400_000 * 100, "1970-04-1"),
    ],
)
def test_a_time_in_no_year_that_is_known_is_shown_as_its_number(timestamp: int, shown: str) -> None:
    records = [Record("t", 1, 2, timestamp=3, value=b"before"), Record("t", 1, 3, timestamp=timestamp, value=b"v")]
    lines = renderer("text", LineColumns(offsets=True), False)(records).decode().splitlines()
    assert lines[0].endswith("\tbefore")
    assert lines[1].startswith(f"1:3\t{shown}")
    assert f'"timestamp": {timestamp},' in renderer("json", LineColumns(), False)(records).decode()


def test_a_filter_matches_keys_and_values() -> None:
    empty = Record("t", 0, 0)
    assert not Filter()
    assert Filter(re.compile(b"v"), re.compile(b"^k$"))([RECORD, empty]) == [RECORD]
    assert Filter(key=re.compile(b"x"))([RECORD, empty]) == []


def test_the_table_that_matters_most(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "_checkpoints" / "spark_catalog" / "default" / "orders").mkdir(parents=True)
    names = ["daily", "orders", "totals"]
    assert main_table(names, "SELECT * FROM orders", tmp_path) == "orders"
    assert main_table(names, None, tmp_path) == "totals"
    assert main_table(["orders"], "SELECT 1", tmp_path) == "orders"
    assert main_table([], None, tmp_path) is None


def test_every_version_of_the_requests_can_be_written() -> None:
    """Responses are tested with a real broker; this test is for the versions that it does not choose."""
    fields = {
        "groups": ("g",),
        "group_ids": ("g",),
        "include_authorized_operations": False,
        "topics": [],
        "timeout": 1000,
        "validate_only": False,
        "resources": [],
        "groups_names": ("g",),
        "group_id": "g",
        "resource_type_filter": 3,
        "resource_name_filter": "g",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    for api in ADMIN_APIS:
        chosen = {**fields, "groups": [{"group_id": "g", "topics": None}]} if api.key == 90 else fields
        for version in range(api.lowest, api.highest + 1):
            assert encode_request(api, version, 1, "me", chosen)


def test_the_schemas_in_a_checkpoint_are_not_a_topic(tmp_path: Path) -> None:
    for name, text in (
        ("offsets", 'v1\n{}\n{"t":{"0":7},"headrace:schemas":{"value":{"columns":"0a"}}}'),
        ("commits", "v1"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").write_text(text)
    (found,) = read_checkpoints(tmp_path)
    assert {str(tp): done.frontier for tp, done in found.done.items()} == {"t-0": 7}


BIDI = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]


@pytest.mark.parametrize("code", BIDI)
def test_characters_that_change_the_direction_of_text_are_shown_by_their_code(code: int) -> None:
    """A topic could look like another one: user<U+202E>sgol is shown as userlogs."""
    assert printable(f"user{chr(code)}sgol") == f"user<U+{code:04X}>sgol"
    assert f"a<U+{code:04X}>b" in table(("topic",), [(f"a{chr(code)}b",)])
    text = lag_table(f"g{chr(code)}", Sample(0.0, [row(TopicPartition(f"t{chr(code)}", 0), 0, 1, 1)]), None)
    assert text.count(f"<U+{code:04X}>") == 2
    assert chr(code) not in text


@pytest.mark.parametrize("columns", [LineColumns(), LineColumns(offsets=True, keys=True, headers=True)])
def test_a_terminal_shows_no_direction_of_a_record(columns: LineColumns) -> None:
    text = "a\u202eb"
    data = text.encode()
    record = Record("t", 0, 1, timestamp=2, key=data, value=data, headers=[(text, data)])
    shown = renderer("text", columns, for_terminal=True)([record]).decode()
    assert "\u202e" not in shown
    assert shown.count("a<U+202E>b") == (4 if columns.keys else 1)
    raw = renderer("text", LineColumns(), for_terminal=False)([record])
    assert raw == text.encode() + b"\n", "a pipe gets the bytes"


def test_letters_of_all_scripts_and_emoji_are_kept() -> None:
    for text in ("grüße", "שלום", "مرحبا", "क्\u200dष", "👩\u200d💻", "a\tb"):
        assert printable(text) == text
