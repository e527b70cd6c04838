"""Where `headrace tail` starts: what -o takes.

    beginning, earliest   end, latest   120 (this offset)   -10 (the last ten of each partition)
    @2026-11-16T04:00     @-15m (a quarter of an hour ago)
    @1763262000           @1763262000000 (since 1970: ten digits are seconds, thirteen milliseconds)

Times without a zone are those of this machine.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from datetime import datetime

import click

from ..types import TopicPartition

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_NAMED = 3  # partitions, in a remark about some of them
_SINCE_1970 = {10: 1000, 13: 1}
"""By how many digits there are: milliseconds in the unit. Those of this century; others could be either."""


def span_seconds(text: str) -> float | None:
    """`30s`, `5m`, `2h`, `1d` in seconds; None if it is no such thing."""
    found = _SPAN.fullmatch(text.strip())
    return None if found is None else float(found[1]) * _UNITS[found[2]]


@dataclasses.dataclass(frozen=True, slots=True)
class StartPlace:
    """`kind`: beginning, end, offset, last or time (then `number` is milliseconds since 1970)."""

    kind: str
    number: int = 0
    text: str = dataclasses.field(default="", compare=False)
    """As the user wrote it."""

    def offsets(
        self, first: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where each partition starts; not for a time, which the brokers have to be asked for."""
        if self.kind == "end":
            return dict(end)
        if self.kind == "last":
            return {tp: max(first[tp], end[tp] - self.number) for tp in end}
        if self.kind == "offset":
            return {tp: min(max(first[tp], self.number), end[tp]) for tp in end}
        return dict(first)

    def misses(self, first: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[str]:
        """What to say about an offset that some partitions do not have. The number of the end is not beyond it: it is
        that of the next record."""
        if self.kind != "offset":
            return []
        beyond = {tp: end[tp] for tp in sorted(end) if self.number > end[tp]}
        before = {tp: first[tp] for tp in sorted(first) if self.number < first[tp]}
        said = []
        if beyond:
            said.append(f"offset {self.number} is beyond the end of {_listed(beyond)}: starting at the end")
        if before:
            said.append(f"offset {self.number} was deleted from {_listed(before)}: starting at the first that is left")
        return said


def _listed(offsets: Mapping[TopicPartition, int]) -> str:
    named = [f"{tp} ({offset})" for tp, offset in offsets.items()]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more


def parse_place(text: str, now: float) -> StartPlace:
    """Raises BadParameter for what is none of the forms."""
    word = text.strip().lower()
    if word in ("beginning", "earliest"):
        return StartPlace("beginning")
    if word in ("end", "latest"):
        return StartPlace("end")
    if re.fullmatch(r"\d+", word):
        return StartPlace("offset", int(word))
    if re.fullmatch(r"-\d+", word):
        return StartPlace("last", int(word[1:]))
    if word.startswith("@"):
        return StartPlace("time", _milliseconds(text.strip()[1:], now), text.strip())
    raise click.BadParameter(
        f"{text!r} is none of beginning, end, OFFSET, -LAST, @TIME, @-15m", param_hint="-o / --offset"
    )


def _milliseconds(text: str, now: float) -> int:
    if text.isdecimal() and len(text) in _SINCE_1970:
        return int(text) * _SINCE_1970[len(text)]
    if text.startswith("-") and (span := span_seconds(text[1:])) is not None:
        return round((now - span) * 1000)
    try:
        if text.isdecimal() and len(text) > 8:  # which Python may take for a date and the hours of a time
            raise ValueError
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a valid time: give 2026-11-16T04:00, -15m, or the time since 1970 in seconds (10 digits) "
            "or milliseconds (13)",
            param_hint="-o / --offset",
        ) from None


def chosen(all_of_them: Iterable[int], wanted: Iterable[int], topic: str) -> list[int]:
    """The partitions to read. Raises BadParameter for one that the topic does not have."""
    there, asked = sorted(all_of_them), sorted(set(wanted))
    if unknown := sorted(set(asked) - set(there)):
        raise click.BadParameter(
            f"{topic} has no partition {unknown[0]}: it has {len(there)}, from 0 on", param_hint="-p / --partition"
        )
    return asked or there
