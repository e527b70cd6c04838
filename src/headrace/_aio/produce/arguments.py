"""Checks and converts arguments of `send`."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from ..._arguments import LAST_TIMESTAMP, short_repr, whole_number_of

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def headers_of(headers: Any) -> list[tuple[str, Any]]:
    """Names and values. A mapping, or pairs; names may repeat."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
        raise TypeError(f"headers must be a mapping or a list of (name, value), not {short_repr(headers)}")
    found = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"a header must be a name (str) and a value, not {short_repr(pair)}")
        found.append((pair[0], pair[1]))
    return found


def timestamp_of(timestamp: Any) -> int:
    """Milliseconds since 1970. A datetime without a time zone is local time, as in Python."""
    if isinstance(timestamp, datetime.datetime):
        number = (timestamp.astimezone(datetime.UTC) - _EPOCH) // _MILLISECOND
    else:
        number = whole_number_of("timestamp", timestamp)
    if not 0 <= number <= LAST_TIMESTAMP:
        raise ValueError(
            f"timestamp must be milliseconds since 1970, or a datetime after that, not {short_repr(timestamp)}"
        )
    return number
