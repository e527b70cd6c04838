"""Times and time spans as people write them.

    @2026-11-16T04:00     @2026-11-16T04:00Z     @-15m (15 minutes ago)
    @1763262000           @1763262000000 (since 1970: ten digits are seconds, thirteen milliseconds)

Times without a time zone are local times.
"""

from __future__ import annotations

import re
from datetime import datetime

_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|min|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SINCE_1970 = {10: 1000, 13: 1}
"""The number of digits, and the unit in milliseconds. These are the times of this century; other numbers of digits are
ambiguous."""


def span_seconds(text: str) -> float | None:
    """`30s`, `5m`, `2h`, `1d` in seconds; None for any other text."""
    found = _SPAN.fullmatch(text.strip())
    return None if found is None else float(found[1]) * _UNITS[found[2]]


def milliseconds_at(text: str, now: float) -> int:
    """The time of a text without its `@`, in milliseconds since 1970. `now` is in seconds. Raises ValueError."""
    if text.isdecimal() and len(text) in _SINCE_1970:
        return int(text) * _SINCE_1970[len(text)]
    try:
        if text.startswith("-") and (span := span_seconds(text[1:])) is not None:
            found = round((now - span) * 1000)
        elif text.isdecimal() and len(text) > 8:  # Python might parse it as a date and an hour
            raise ValueError
        else:
            found = round(datetime.fromisoformat(text).timestamp() * 1000)
        if found < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a valid time: give 2026-11-16T04:00, -15m, or the time since 1970 in seconds (10 digits) "
            "or milliseconds (13)"
        ) from None
    return found
