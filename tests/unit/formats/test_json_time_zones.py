"""The zone of JSON timestamps that have none, and zones by name."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zoneinfo
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.formats import Json, Source

VALUES = Source("readings", "value")
# The three names are abbreviations of Java, with the same offsets, but not before 1900.
ZONES = sorted(zoneinfo.available_timezones() - {"EST", "MST", "HST"})
MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instants(texts, timezone, type_name="timestamp"):
    """Microseconds since 1970 in UTC."""
    cells = pa.array([json.dumps(text).encode() for text in texts], pa.binary())
    result = Json(type_name, timezone=timezone).decode(cells, VALUES)
    assert result.errors == {}
    return result.column.cast(pa.int64()).to_pylist()


def expected(local, zone):
    """As java.time: in a gap and in an overlap, Python uses the offset before the change, too."""
    return (local.replace(tzinfo=zone).astimezone(UTC) - EPOCH) // MICROSECOND


def test_the_zone_counts_for_timestamps_without_one():
    one, other = instants(["2026-03-02T06:00:00", "2026-03-02T06:00:00Z"], "America/New_York")
    assert (one - other) / 3_600_000_000 == 5
    assert instants(["2026-07-02"], "America/New_York") == instants(["2026-07-02T04:00:00Z"], "UTC")
    assert instants(["2026-07-02"], "+05:30") == instants(["2026-07-02T00:00:00+05:30"], "UTC")


def test_timestamps_that_are_no_instants_have_no_zone():
    assert instants(["2026-03-02T06:00:00"], "America/New_York", "timestamp_ntz") == instants(
        ["2026-03-02T06:00:00"], "UTC"
    )


def test_times_in_gaps_and_overlaps_are_those_of_java_time():
    texts = [f"2026-{day}T{hour:02}:30:00" for day in ("03-29", "10-25") for hour in (1, 2, 3)]
    found = instants(texts, "Europe/Berlin")
    utc = ["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z", "2026-03-29T01:30:00Z"]
    utc += ["2026-10-24T23:30:00Z", "2026-10-25T00:30:00Z", "2026-10-25T02:30:00Z"]
    assert found == instants(utc, "UTC")


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(ZONES),
    st.lists(st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)), min_size=1, max_size=20),
    st.booleans(),
)
def test_random_times_are_those_of_python_s_zones(name, times, is_written):
    zone = zoneinfo.ZoneInfo(name)
    suffix = f" {name}" if is_written else ""
    found = instants([f"{time.isoformat()}{suffix}" for time in times], "UTC" if is_written else name)
    assert found == [expected(time, zone) for time in times]


@pytest.mark.parametrize(
    "name",
    [
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Africa/Casablanca",
        "Europe/Dublin",
        "America/Sao_Paulo",
        "Pacific/Apia",
        "Asia/Tehran",
        "Antarctica/Troll",
    ],
)
def test_every_change_of_a_zone_is_at_its_second(name):
    """All seconds around each change of the offset, from 1900 to 2100."""
    zone, times = zoneinfo.ZoneInfo(name), []
    at, end = datetime(1900, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    offset = at.astimezone(zone).utcoffset()
    while at < end:
        after = at + timedelta(days=4)
        if (changed := after.astimezone(zone).utcoffset()) != offset:
            low, high = at, after
            while high - low > timedelta(seconds=1):
                middle = low + (high - low) // 2
                middle = middle.replace(microsecond=0)
                low, high = (middle, high) if middle.astimezone(zone).utcoffset() == offset else (low, middle)
            local = high.astimezone(zone).replace(tzinfo=None)
            shift = abs(changed - offset)
            times += [
                local + sign * part + second * timedelta(seconds=1)
                for sign in (-1, 1)
                for part in (timedelta(), shift / 2, shift)
                for second in (-1, 0, 1)
            ]
            offset = changed
        at = after
    times = [time.replace(microsecond=0) for time in times]
    assert instants([time.isoformat() for time in times], name) == [expected(time, zone) for time in times]


def test_a_zone_that_does_not_exist_is_an_error_of_the_format():
    for wrong in ("Europe/Nowhere", "europe/berlin", "", "+25:00", "../UTC", "CEST"):
        with pytest.raises(ConfigError, match=r"is unknown\. Use a name such as Europe/Berlin, or an offset"):
            Json("at timestamp", timezone=wrong)


def test_a_format_keeps_its_zone():
    made = Json("at timestamp", timezone="Asia/Tokyo")
    copy = pickle.loads(pickle.dumps(made))
    assert repr(copy) == repr(made) == "Json('at timestamp', timezone='Asia/Tokyo')"
    cells = pa.array([b'{"at": "2026-03-02T09:00:00"}'])
    assert copy.decode(cells, VALUES).column[0].as_py() == {"at": datetime(2026, 3, 2, tzinfo=UTC)}
    assert made.with_timezone("UTC").decode(cells, VALUES).column[0].as_py() == {
        "at": datetime(2026, 3, 2, 9, tzinfo=UTC)
    }


def test_without_a_database_the_error_says_what_to_install():
    program = """
import sys
sys.modules["tzdata"] = None
from headrace.errors import ConfigError
from headrace.formats import Json
Json("v int, local timestamp_ntz", timezone="Europe/Berlin")
Json("at timestamp", timezone="+01:00")
try:
    Json("at timestamp", timezone="Europe/Berlin")
except ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "This machine has no time-zone database: pip install tzdata" in done.stdout
