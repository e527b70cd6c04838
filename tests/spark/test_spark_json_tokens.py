"""JSON in typed columns beside Spark's from_json, in one session: 500 values as 17 types, in another zone than UTC.

Each result is the same, or of a kind in DIFFERENCES. docs/formats.md has the same table.
"""

from __future__ import annotations

import dataclasses
import random
import re
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from support.brokers.admin import Admin
from support.brokers.produce import Outgoing, write
from support.formats.json_tokens import SCHEMA, TEXTS, TOKENS, TYPES
from support.spark.streams import Stream

pytestmark = pytest.mark.timeout(400)

ZONE = "America/New_York"
ERROR = "error"
_EXPRESSIONS = {"date": "unix_date(v.date)", "timestamp": "unix_micros(v.timestamp)", "local": "string(v.local)"}
_EXPRESSIONS |= {"binary": "hex(v.binary)", "map": "string(map_entries(v.map))"}


@dataclasses.dataclass(frozen=True)
class Difference:
    """Patterns of the results, as texts, and of the token: what stands for the field, or the whole record."""

    title: str  # as in docs/formats.md
    types: tuple[str, ...]
    token: str
    ours: str
    spark: str

    def explains(self, case: Case) -> bool:
        return case.type_name in self.types and all(
            re.fullmatch(pattern, text, re.DOTALL) is not None
            for pattern, text in ((self.token, case.token), (self.ours, case.ours), (self.spark, case.spark))
        )


@dataclasses.dataclass(frozen=True)
class Case:
    type_name: str  # or "" for a whole record
    token: str
    ours: str
    spark: str


_VALUE = r"(?!error).*"
_QUOTES = "[\"'].*[\"']"
DIFFERENCES = (
    Difference("A number as `timestamp`", ("timestamp",), r"-?\d+", ERROR, _VALUE),
    Difference(
        "Digits in quotes as `date` or `timestamp`", ("date", "timestamp", "local"), r"[\"']-?\w+[\"']", ERROR, _VALUE
    ),
    Difference("A time without a day as `timestamp`", ("timestamp",), r'"T?\d+:.*"', ERROR, _VALUE),
    Difference(
        "A comma in a `decimal` that does not separate thousands", ("decimal", "wide"), r'".*,.*"', ERROR, _VALUE
    ),
    Difference("Other digits than 0 to 9", ("decimal", "wide", "date"), r'"٣"', ERROR, _VALUE),
    Difference("128 to 255 as `tinyint`", ("byte",), r"\d{3}", ERROR, r"-\d+"),
    Difference("A value that is no string as `string`", ("string",), r"[^\"'].*", _VALUE, _VALUE),
    Difference("Half of a surrogate pair", ("string",), r'"\\u[dD][89c].*"', ERROR, r"\?"),
    Difference("A key twice in a `map`", ("map",), r'.*"a".*"a".*', _VALUE, _VALUE),
    Difference("base64 of the URL alphabet, or without padding", ("binary",), _QUOTES, _VALUE, ERROR),
    Difference("`t` or `z` in a time", ("date", "timestamp", "local"), '".*[tz].*"', _VALUE, ERROR),
    Difference("A zone after a time without seconds", ("timestamp",), r'"[\d-]+T06:00[Z+].*"', _VALUE, ERROR),
    Difference('`"INF"` as `double` or `float`', ("float", "double"), '"INF"', "inf|Infinity", ERROR),
    Difference("The record `null`", ("",), " *null *", "None", ERROR),
    Difference("An empty record", ("",), r"\s*", ERROR, "None"),
    Difference("Text after the value", ("",), r"\{.*\}.+", ERROR, _VALUE),
    Difference("A byte order mark", ("",), "\ufeff.*", _VALUE, ERROR),
)


@pytest.fixture
def in_zone(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    yield lambda zone: spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.fixture
def load(spark: SparkSession, servers: str) -> Callable[..., DataFrame]:
    def load(topic: str, schema: str = "", **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic, **options}
        if schema:
            given |= {"value.format": "json", "value.schema": schema, "mode": "PERMISSIVE"}
        return spark.read.format("headrace").options(**given).load()

    return load


def shown(frame: DataFrame, value: Column, is_bad: Column) -> dict[int, dict[str, Any]]:
    """The values of each offset as texts and numbers, without those that are null."""
    columns = [F.expr(_EXPRESSIONS.get(name, f"string(v.{name})")).alias(name) for name in TYPES]
    found = frame.select("offset", value.alias("v"), is_bad.alias("bad"))
    rows = found.select("offset", "bad", F.col("v").isNull().alias("absent"), *columns).collect()
    return {row.offset: row.asDict() for row in rows}


def result(row: dict[str, Any], type_name: str) -> str:
    if row["bad"]:
        return ERROR
    if type_name:
        return str(row[type_name])
    return "None" if row["absent"] else str({name: row[name] for name in TYPES if row[name] is not None})


def test_every_value_is_read_as_from_json_reads_it_or_the_difference_is_documented(
    servers: str, admin: Admin, load: Callable[..., DataFrame], in_zone: Callable[[str], None]
) -> None:
    topic = admin.create("json-tokens")
    write(servers, topic, [Outgoing(text.encode()) for text in TEXTS])
    in_zone(ZONE)
    ours = shown(load(topic, SCHEMA), F.col("value"), F.col("value_error").isNotNull())
    texts = load(topic).select("offset", F.col("value").cast("string").alias("text"))
    parsed = texts.select(
        "offset", F.from_json("text", f"{SCHEMA}, _bad STRING", {"columnNameOfCorruptRecord": "_bad"}).alias("value")
    )
    spark = shown(parsed, F.col("value"), F.col("value._bad").isNotNull())
    assert len(ours) == len(spark) == len(TEXTS) > 8000
    cases = []
    for offset, text in enumerate(TEXTS):
        name = list(TYPES)[offset % len(TYPES)] if offset < len(TOKENS) * len(TYPES) else ""
        token = text[len(name) + 4 : -1] if name else text
        case = Case(name, token, result(ours[offset], name), result(spark[offset], name))
        if case.ours != case.spark:
            cases.append(case)
    unexplained = [case for case in cases if not any(each.explains(case) for each in DIFFERENCES)]
    assert unexplained == []
    assert [each.title for each in DIFFERENCES if not any(each.explains(case) for case in cases)] == []


def test_the_differences_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    assert [each.title for each in DIFFERENCES if f"\n| {each.title} |" not in page] == []


def local_times(name: str, count: int) -> list[str]:
    """Random ones, half of them around the changes of the zone."""
    chance, zone = random.Random(name), zoneinfo.ZoneInfo(name)
    found: list[str] = []
    while len(found) < count:
        at = datetime(1971, 1, 1, tzinfo=UTC) + timedelta(seconds=chance.randrange(65 * 365 * 86_400))
        after = at + timedelta(days=60)
        if chance.random() < 0.5 and at.astimezone(zone).utcoffset() != after.astimezone(zone).utcoffset():
            while after - at > timedelta(minutes=1):
                middle = at + (after - at) / 2
                is_before = middle.astimezone(zone).utcoffset() == at.astimezone(zone).utcoffset()
                at, after = (middle, after) if is_before else (at, middle)
            at += timedelta(minutes=chance.randrange(-150, 150))
        elif chance.random() < 0.5:
            continue
        local = at.astimezone(zone).replace(tzinfo=None) + timedelta(minutes=chance.choice([0, 0, 30, -30]))
        found.append(f"{local:%Y-%m-%d %H:%M:%S}")
    return found


ZONES = ("America/New_York", "Europe/Berlin", "Europe/Dublin", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia")


def micros(frame: DataFrame, column: str) -> list[int]:
    return [row[0] for row in frame.orderBy("offset").select(F.expr(f"unix_micros({column})")).collect()]


def test_times_without_a_zone_are_those_of_the_session_s_zone(
    servers: str, admin: Admin, load: Callable[..., DataFrame], in_zone: Callable[[str], None]
) -> None:
    topic = admin.create("json-zones")
    times = [time for name in ZONES for time in local_times(name, 300)]
    write(servers, topic, [Outgoing(f'{{"at": "{time}"}}'.encode()) for time in times])
    typed, plain = load(topic, "at TIMESTAMP"), load(topic)
    seen = set()
    for zone in (*ZONES, "+05:30", "GMT-8", "PST", "UTC"):
        in_zone(zone)
        parsed = plain.select("offset", F.from_json(F.col("value").cast("string"), "at TIMESTAMP").alias("value"))
        # The zone may be set after load().
        found = micros(typed, "value.at")
        assert found == micros(parsed, "value.at"), zone
        seen.add(tuple(found))
    assert len(found) == len(times)
    assert len(seen) == len(ZONES) + 4


def test_times_with_the_name_of_a_zone_are_those_of_spark(
    servers: str, admin: Admin, load: Callable[..., DataFrame]
) -> None:
    topic = admin.create("json-named-zones")
    times = [f"{time} {name}" for name in ZONES for time in local_times(name, 100)]
    write(servers, topic, [Outgoing(f'{{"at": "{time}"}}'.encode()) for time in times])
    parsed = load(topic).select("offset", F.from_json(F.col("value").cast("string"), "at TIMESTAMP").alias("value"))
    assert micros(load(topic, "at TIMESTAMP"), "value.at") == micros(parsed, "value.at")


class TestZoneOfAQuery:
    SIX = b'{"at": "2026-03-02T06:00:00", "local": "2026-03-02T06:00:00", "n": 1}'
    SIX_IN_UTC = int(datetime(2026, 3, 2, 6, tzinfo=UTC).timestamp()) * 1_000_000
    HOUR = 3_600_000_000

    @pytest.fixture
    def topic(self, servers: str, admin: Admin) -> str:
        topic = admin.create("json-zone")
        write(servers, topic, [Outgoing(self.SIX)])
        return topic

    def test_an_option_takes_precedence_over_the_session(
        self, load: Callable[..., DataFrame], topic: str, in_zone: Callable[[str], None]
    ) -> None:
        in_zone(ZONE)
        assert micros(load(topic, "at TIMESTAMP"), "value.at") == [self.SIX_IN_UTC + 5 * self.HOUR]
        assert micros(load(topic, "at TIMESTAMP", **{"value.timezone": "Asia/Tokyo"}), "value.at") == [
            self.SIX_IN_UTC - 9 * self.HOUR
        ]

    def test_a_stream_has_the_zone_of_its_session(
        self, spark: SparkSession, servers: str, topic: str, tmp_path: Path, in_zone: Callable[[str], None]
    ) -> None:
        in_zone(ZONE)
        stream = Stream(spark, servers, topic, tmp_path)
        stream.options |= {"value.format": "json", "value.schema": "at TIMESTAMP, local TIMESTAMP_NTZ"}
        stream.run()
        assert micros(stream.table(), "value.at") == [self.SIX_IN_UTC + 5 * self.HOUR]
        assert [row[0] for row in stream.table().select("value.local").collect()] == [datetime(2026, 3, 2, 6)]

    def test_an_unknown_zone_is_an_error_of_load(self, load: Callable[..., DataFrame], topic: str) -> None:
        with pytest.raises(Exception, match="timezone='Mars/Base' is unknown"):
            load(topic, "at TIMESTAMP", **{"value.timeZone": "Mars/Base"})


def test_fields_whose_names_differ_in_case_are_both_read(
    servers: str, admin: Admin, load: Callable[..., DataFrame]
) -> None:
    topic = admin.create("json-case")
    write(servers, topic, [Outgoing(b'{"v": 1, "V": 2}')])
    (row,) = load(topic, "v int, V int").select("value").collect()
    parsed = load(topic).select(F.from_json(F.col("value").cast("string"), "v int, V int").alias("value"))
    assert [row] == parsed.collect()
    assert tuple(row.value) == (1, 2)
