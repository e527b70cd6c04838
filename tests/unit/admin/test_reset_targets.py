"""What `--to` and `plan_reset(to=…)` accept."""

from __future__ import annotations

import datetime
from typing import Any

import click
import pytest

from headrace._machines.admin.reset_target import ResetTarget, TargetKind, reset_target
from headrace.cli.groups_reset import parse_topic
from headrace.errors import ConfigError

NOW = 1_763_373_600.0  # 2025-11-17T10:00:00Z


@pytest.mark.parametrize(
    ("to", "kind", "number"),
    [
        ("earliest", TargetKind.EARLIEST, 0),
        (" Beginning ", TargetKind.EARLIEST, 0),
        ("latest", TargetKind.LATEST, 0),
        ("end", TargetKind.LATEST, 0),
        ("0", TargetKind.OFFSET, 0),
        ("120", TargetKind.OFFSET, 120),
        (120, TargetKind.OFFSET, 120),
        (2**63 - 1, TargetKind.OFFSET, 2**63 - 1),
        ("+100", TargetKind.SHIFT, 100),
        ("-100", TargetKind.SHIFT, -100),
        ("-1h", TargetKind.TIME, 1_763_370_000_000),
        ("-90m", TargetKind.TIME, 1_763_368_200_000),
        ("-1.5 h", TargetKind.TIME, 1_763_368_200_000),
        ("-500ms", TargetKind.TIME, 1_763_373_599_500),
        ("-90s", TargetKind.TIME, 1_763_373_510_000),
        ("-5min", TargetKind.TIME, 1_763_373_300_000),
        ("-2d", TargetKind.TIME, 1_763_200_800_000),
        ("@-1h", TargetKind.TIME, 1_763_370_000_000),
        ("@2025-11-17T10:00:00Z", TargetKind.TIME, 1_763_373_600_000),
        ("@2025-11-17T11:00:00.5+01:00", TargetKind.TIME, 1_763_373_600_500),
        ("@1970-01-01T00:00Z", TargetKind.TIME, 0),
        ("@1763373600000", TargetKind.TIME, 1_763_373_600_000),
        ("@1763373600", TargetKind.TIME, 1_763_373_600_000),
        (datetime.datetime(2025, 11, 17, 10, tzinfo=datetime.UTC), TargetKind.TIME, 1_763_373_600_000),
    ],
)
def test_a_target_is_a_word_an_offset_a_shift_or_a_time(to: Any, kind: TargetKind, number: int) -> None:
    assert reset_target(to, NOW) == ResetTarget(kind, number)


@pytest.mark.parametrize(
    "to",
    [
        *("", "sideways", "+1h", "1h", "-", "--5", "5.0", "-5.5", "@", "@yesterday", "@12", "@-", "²", "٣"),
        *("9" * 19, "9" * 5000, "+" + "9" * 19, -1, 2**63, "@-99999999999d", "@9999-99-99"),
        *("@1900-01-01T00:00Z", "@1969-12-31T23:59:59.999Z"),
    ],
)
def test_any_other_text_is_refused_with_what_is_possible(to: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        reset_target(to, NOW)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("to", [None, True, 1.5, b"earliest", ["earliest"]])
def test_a_target_of_another_type_is_a_type_error(to: Any) -> None:
    with pytest.raises(TypeError, match="to must be an offset"):
        reset_target(to, NOW)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("orders", ["orders"]),
        ("orders:3", [("orders", 3)]),
        ("orders:0,2-4", [("orders", 0), ("orders", 2), ("orders", 3), ("orders", 4)]),
    ],
)
def test_a_topic_may_name_its_partitions(text: str, found: list[Any]) -> None:
    assert parse_topic(text) == found


@pytest.mark.parametrize("text", ["orders:", "orders:x", "orders:-1", "orders:2-1", "orders:0-9999999", "orders:1:2"])
def test_partitions_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not TOPIC"):
        parse_topic(text)
