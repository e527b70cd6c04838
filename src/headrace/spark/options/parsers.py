"""The names of the options, and how their values are parsed. Every parser raises OptionError for an invalid value."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from ..._arguments import LAST_OFFSET, short_repr
from ...errors import ConfigError


class OptionError(ConfigError, ValueError):
    """An option of the source is missing, invalid, or contradicts another one."""


# -- names ---------------------------------------------------------------------------------------------------------

GROUP_OPTIONS = (
    "commitOffsets",
    "enable.parallel.rebalance",
    "parallel.rebalance.min.lag",
    "parallel.rebalance.backlog.share",
    "includeLane",
    "watermarkDelay",
    "group.membership",
    "share.group.id",
)
SINK_OPTIONS = ("topic", "exactlyOnce", "sinkId", "decisionTopic", "batchId", "firstBatchId")
FIELD_FORMAT_OPTIONS = (
    "format",
    "schema",
    "schema.version",
    "schema.id",
    "subject",
    "message",
    "framing",
    "flatten",
    "timeZone",
)
REGISTRY_OPTIONS = (
    "schema.registry.url",
    "schema.registry.username",
    "schema.registry.password",
    "schema.registry.token",
    "schema.registry.ssl.ca.location",
    "schema.registry.ssl.certificate.location",
    "schema.registry.ssl.key.location",
    "schema.registry.ssl.key.password",
)
FORMAT_OPTIONS = (
    *(f"{field}.{name}" for field in ("key", "value") for name in FIELD_FORMAT_OPTIONS),
    *REGISTRY_OPTIONS,
    "auto.register.schemas",
    "mode",
    "columns",
)
KNOWN_OPTIONS = {
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
        *GROUP_OPTIONS,
        *FORMAT_OPTIONS,
    )
}
# Options of Spark itself, of the JVM connector only, or of the sink.
IGNORED_OPTIONS = {
    name.lower(): name
    for name in (
        "path",
        "useUninterruptibleThread",
        "useDuplicatedConsumer",
        "checkpointLocation",
        "groupIdPrefix",
        *SINK_OPTIONS,
    )
}


def lowercase_names(given: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case. Values are not changed: a space may be part of a password."""
    return {str(name).lower(): str(value) for name, value in given.items()}


def documented_name(name: str) -> str:
    """The name as the documentation and users write it: Spark passes names in lower case."""
    return KNOWN_OPTIONS.get(name) or IGNORED_OPTIONS.get(name, name)


def is_unknown(name: str) -> bool:
    return not (name in KNOWN_OPTIONS or name in IGNORED_OPTIONS or name.startswith("kafka."))


def check_names(given: Mapping[str, str], settings: Collection[str]) -> None:
    """Raises OptionError for a name that is similar to a known one, and for one of the consumer's `settings` without
    its prefix. Accepts all other unknown names."""
    for name in given:
        low = str(name).lower()
        if not is_unknown(low):
            continue
        if low in settings:
            raise OptionError(
                f"Unknown option {name}: settings of the consumer have the prefix kafka., use kafka.{low}"
            )
        close = difflib.get_close_matches(low, KNOWN_OPTIONS, n=1, cutoff=0.8)
        if close:
            raise OptionError(f"Unknown option {name}: did you mean {KNOWN_OPTIONS[close[0]]}?")


# -- values --------------------------------------------------------------------------------------------------------


_INTEGER = re.compile(r"[+-]?[0-9]+")


def parse_json_by_topic(text: str, name: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name}={text!r} is not valid JSON ({error}). Use the form {example}") from None
    if not isinstance(found, dict):
        raise OptionError(f"{name}={text!r} is not a JSON object by topic. Use the form {example}")
    return found


def parse_integer(value: Any, name: str, low: int = 0) -> int:
    """From text or JSON. As in Java: Python also accepts 1.9 and true in JSON, and spaces and underscores in text."""
    is_integer = _INTEGER.fullmatch(value) if isinstance(value, str) else type(value) is int
    if not is_integer:
        raise OptionError(f"{name}: {short_repr(value)} is not an integer")
    try:
        number = int(value)
    except ValueError:  # more digits than Python converts
        raise OptionError(f"{name}: {short_repr(value)} is above the maximum, {LAST_OFFSET}") from None
    if number < low:
        raise OptionError(f"{name}: {number} is below the minimum, {low}")
    if number > LAST_OFFSET:
        raise OptionError(f"{name}: {short_repr(number)} is above the maximum, {LAST_OFFSET}")
    return number


def parse_count(options: Mapping[str, str], name: str) -> int | None:
    return parse_integer(options[name], KNOWN_OPTIONS[name], low=1) if name in options else None


def parse_count_or_default(options: Mapping[str, str], name: str, default: int, low: int = 1) -> int:
    return parse_integer(options.get(name, default), KNOWN_OPTIONS[name], low)


def parse_boolean(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    given = options.get(name.lower(), str(default))
    value = given.strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"{documented_name(name.lower())}={given!r} must be true or false")
    return value == "true"


def parse_choice(options: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    given = options.get(name, default)
    value = given.strip().lower()
    if value not in choices:
        raise OptionError(f"{KNOWN_OPTIONS[name]}={given!r} must be {' or '.join(choices)}")
    return value


# A number without a unit is milliseconds, as in Spark.
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 1e-3}


def parse_duration(text: str, name: str) -> float:
    """In seconds."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise OptionError(f"{name}={text!r} is not a duration. Use a form such as 15m, 90s or 500ms")
    try:
        return int(found[1]) * _UNITS[found[2]]
    except (ValueError, OverflowError):
        raise OptionError(f"{name}={short_repr(text)} is too long a duration") from None


_UNIT_NAMES = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}


def parse_delay_ms(text: str, name: str) -> int:
    """In milliseconds. Accepts the form of Spark's `withWatermark`, `10 minutes`, and that of other options, `10m`."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]+)\s*", text.lower())
    unit = "" if found is None else _UNIT_NAMES.get(found[2].removesuffix("s"), found[2])
    if found is None or unit not in _UNITS:
        raise OptionError(f"{name}={text!r} is not a duration with a unit. Use a form such as '10 minutes' or 90s")
    return round(parse_duration(f"{found[1]}{unit}", name) * 1000)
