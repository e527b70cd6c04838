"""Where a reset moves a group: parses the argument `to`.

earliest, latest      the first offset of the log, or its end
120                   this offset
+100, -100            so many records after, or before, the committed offset
@2026-11-17T10:00Z    the first record at or after this time; also a datetime, @-1h, @1763373600000
-1h                   the first record of the last hour
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re

from ..._arguments import LAST_OFFSET, short_repr, whole_number_of
from ...errors import ConfigError
from .times import milliseconds_at, span_seconds

_FORMS = "earliest, latest, OFFSET, +RECORDS, -RECORDS, @TIME, -1h"


class TargetKind(enum.Enum):
    EARLIEST = enum.auto()
    LATEST = enum.auto()
    OFFSET = enum.auto()
    SHIFT = enum.auto()
    TIME = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class ResetTarget:
    """`number` is an offset, a number of records, or milliseconds since 1970."""

    kind: TargetKind
    number: int = 0


def reset_target(to: object, now: float) -> ResetTarget:
    """`now` is in seconds since 1970. Raises TypeError, and ConfigError for an invalid text."""
    if isinstance(to, datetime.datetime):
        return ResetTarget(TargetKind.TIME, max(0, round(to.timestamp() * 1000)))
    if not isinstance(to, str):
        try:
            number = whole_number_of("to", to)
        except TypeError:
            text = f"to must be an offset, a datetime or one of {_FORMS}, not {short_repr(to)}"
            raise TypeError(text) from None
        return ResetTarget(TargetKind.OFFSET, _bounded(number, to))
    word = to.strip().lower()
    if word in ("earliest", "beginning"):
        return ResetTarget(TargetKind.EARLIEST)
    if word in ("latest", "end"):
        return ResetTarget(TargetKind.LATEST)
    if re.fullmatch(r"[0-9]{1,19}", word):
        return ResetTarget(TargetKind.OFFSET, _bounded(int(word), to))
    if re.fullmatch(r"[+-][0-9]{1,19}", word):
        _bounded(abs(int(word)), to)
        return ResetTarget(TargetKind.SHIFT, int(word))
    try:
        if word.startswith("@"):
            return ResetTarget(TargetKind.TIME, milliseconds_at(to.strip()[1:], now))
        if word.startswith("-") and span_seconds(word[1:]) is not None:
            return ResetTarget(TargetKind.TIME, milliseconds_at(word, now))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    raise ConfigError(f"{short_repr(to)} is none of {_FORMS}")


def _bounded(offset: int, given: object) -> int:
    if not 0 <= offset <= LAST_OFFSET:
        raise ConfigError(f"{short_repr(given)} is not an offset: it must be from 0 to {LAST_OFFSET}")
    return offset
