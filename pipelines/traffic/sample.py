"""Readings to try the pipeline with: the n-th is the same in every run.

`headrace run` without -b writes them to the topic of the pipeline. Of every 250 one is broken in some way.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

TOPIC = "readings"
PARTITIONS = 6
BEGIN = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
# Name, limit in km/h, how much slower it is at the worst.
ROADS = (
    ("A1", 120, 0.75),
    ("A7", 100, 0.60),
    ("B5", 80, 0.30),
    ("B73", 70, 0.20),
    ("Ring 2", 50, 0.45),
    ("Ring 3", 50, 0.10),
)
SENSORS = 8  # of each road; each tells once a second
_A_SECOND = len(ROADS) * SENSORS
_RUSH_HOUR = 30 * 60.0  # the worst moment, in seconds from the beginning
_BROKEN_EVERY = 250


def records(first: int, count: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Key, value and timestamp (milliseconds) of the records from `first` on."""
    drawn = -1
    chances: tuple[tuple[float, float, float], ...] = ()
    for number in range(first, first + count):
        second, place = divmod(number, _A_SECOND)
        if second != drawn:
            drawn, chances = second, _chances(second)
        late, faster, fuller = chances[place]
        road, limit, slower = ROADS[place % len(ROADS)]
        sensor = f"{road.replace(' ', '')}-{place // len(ROADS)}"
        at = BEGIN + timedelta(seconds=second, milliseconds=int(1000 * late))
        rush = math.exp(-(((second - _RUSH_HOUR) / 900) ** 2))
        speed = limit * (1 - slower * rush) * (0.85 + 0.2 * faster)
        reading = {
            "sensor": sensor,
            "road": road,
            "at": at.isoformat(timespec="milliseconds"),
            "speed": round(speed, 1),
            "limit": limit,
            "occupancy": round(min(1.0, 0.08 + 0.6 * slower * rush * (0.8 + 0.4 * fuller)), 3),
        }
        value = json.dumps(reading)
        if number % _BROKEN_EVERY == _BROKEN_EVERY - 1:
            value = _broken(reading, value, number // _BROKEN_EVERY % 6)
        yield sensor.encode(), value.encode(), round(at.timestamp() * 1000)


def _chances(second: int) -> tuple[tuple[float, float, float], ...]:
    """Three numbers from 0 to 1 for each record of a second."""
    draw = random.Random(second).random
    return tuple((draw(), draw(), draw()) for _ in range(_A_SECOND))


def _broken(reading: dict[str, object], value: str, kind: int) -> str:
    if kind == 0:
        return value[: len(value) // 2]
    changes: dict[int, dict[str, object]] = {
        1: {"speed": None},
        2: {"speed": 999.0},
        3: {"at": "now"},
        4: {"road": None},
        5: {"limit": 0},
    }
    return json.dumps(reading | changes[kind])
