"""The names of the options, and how their values are read. Whatever is wrong with one is an OptionError."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from ..arguments import LAST_OFFSET, shown
from ..errors import ConfigError


class OptionError(ConfigError, ValueError):
    """An option of the source is missing, wrong, or contradicts another one."""


# -- names ---------------------------------------------------------------------------------------------------------

OF_GROUPS = (
    "commitOffsets",
    "enable.parallel.rebalance",
    "parallel.rebalance.min.lag",
    "parallel.rebalance.backlog.share",
    "includeLane",
    "watermarkDelay",
    "group.membership",
    "share.group.id",
)
KNOWN = {
    name.lower(): name
    for name in (
        "assign",
        "subscribe",
        "subscribePattern",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "startingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "endingOffsets",
        "failOnDataLoss",
        "includeHeaders",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "maxOffsetsPerTriggerShares",
        "minPartitions",
        "maxRecordsPerPartition",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
        "groupIdPrefix",
        *OF_GROUPS,
    )
}
# Of Spark itself, or of the JVM connector alone.
WITHOUT_MEANING = {
    name.lower(): name
    for name in ("path", "useUninterruptibleThread", "useDuplicatedConsumer", "checkpointLocation", "groupIdPrefix")
}


def lowered(given: Mapping[str, str]) -> dict[str, str]:
    """By their names in lower case. Values stay as they are: a space may be part of a password."""
    return {str(name).lower(): str(value) for name, value in given.items()}


def spelt(name: str) -> str:
    """As documentation and users write it: Spark hands over names in lower case."""
    return KNOWN.get(name) or WITHOUT_MEANING.get(name, name)


def is_unknown(low: str) -> bool:
    return not (low in KNOWN or low in WITHOUT_MEANING or low.startswith("kafka."))


def check_names(given: Mapping[str, str], settings: Collection[str]) -> None:
    """Raises OptionError for one that is close to a known one, or one of the consumer's `settings` without its prefix.
    Others that are unknown are accepted."""
    for name in given:
        low = str(name).lower()
        if not is_unknown(low):
            continue
        if low in settings:
            raise OptionError(f"unknown option {name}: settings of the consumer begin with kafka., write kafka.{low}")
        close = difflib.get_close_matches(low, KNOWN, n=1, cutoff=0.8)
        if close:
            raise OptionError(f"unknown option {name}: did you mean {KNOWN[close[0]]}?")


# -- values --------------------------------------------------------------------------------------------------------


def json_by_topic(text: str, name: str, form: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name}={text!r} is not JSON ({error}): write it as {form}") from None
    if not isinstance(found, dict):
        raise OptionError(f"{name}={text!r}: JSON by topic is needed, as {form}")
    return found


def whole(value: Any, name: str, low: int = 0) -> int:
    """Of text, or of JSON: there 1.9 and true are numbers to Python, and no offsets."""
    try:
        if isinstance(value, (bool, float)):
            raise ValueError
        number = int(value)
    except (TypeError, ValueError):
        raise OptionError(f"{name}: {value!r} is not a whole number") from None
    if number < low:
        raise OptionError(f"{name}: {number}; the least is {low}")
    if number > LAST_OFFSET:
        raise OptionError(f"{name}: {shown(number)}; the most is {LAST_OFFSET}")
    return number


def count(options: Mapping[str, str], name: str) -> int | None:
    return whole(options[name], KNOWN[name], low=1) if name in options else None


def count_or(options: Mapping[str, str], name: str, default: int, low: int = 1) -> int:
    return whole(options.get(name, default), KNOWN[name], low)


def flag(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    given = options.get(name.lower(), str(default))
    value = given.strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"{KNOWN[name.lower()]}={given!r}: true or false is needed")
    return value == "true"


def choice(options: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    given = options.get(name, default)
    value = given.strip().lower()
    if value not in choices:
        raise OptionError(f"{KNOWN[name]}={given!r}: {' or '.join(choices)} is needed")
    return value


# A number alone is milliseconds, as in Spark.
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 1e-3}


def duration(text: str, name: str) -> float:
    """In seconds."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise OptionError(f"{name}={text!r}: a time is needed, as 15m, 90s or 500ms")
    try:
        return int(found[1]) * _UNITS[found[2]]
    except (ValueError, OverflowError):
        raise OptionError(f"{name}={shown(text)}: too long a time") from None


_WORDS = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}


def delay(text: str, name: str) -> int:
    """In milliseconds. As Spark's `withWatermark` takes it, `10 minutes`, or as other options do, `10m`."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]+)\s*", text.lower())
    unit = "" if found is None else _WORDS.get(found[2].removesuffix("s"), found[2])
    if found is None or unit not in _UNITS:
        raise OptionError(f"{name}={text!r}: a time is needed, as '10 minutes' or 90s")
    return round(duration(f"{found[1]}{unit}", name) * 1000)
