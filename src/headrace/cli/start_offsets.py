"""The start offsets of `headrace tail`: parses -o.

    beginning, earliest   end, latest   120 (this offset)   -10 (the last ten of each partition)
    @2026-11-16T04:00     @-15m (15 minutes ago)
    @1763262000           @1763262000000 (since 1970: ten digits are seconds, thirteen milliseconds)

Times without a time zone are local times.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

import click

from .._machines.admin.times import milliseconds_at
from .._machines.admin.times import span_seconds as span_seconds
from ..types import TopicPartition

_NAMED = 3  # the number of partitions that a warning names


@dataclasses.dataclass(frozen=True, slots=True)
class StartOffset:
    """`kind`: beginning, end, offset, last or time (then `number` is milliseconds since 1970)."""

    kind: str
    number: int = 0
    text: str = dataclasses.field(default="", compare=False)
    """As the user wrote it."""

    def offsets(
        self, first: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The start offset of each partition. Not for times, which need a request to the brokers."""
        if self.kind == "end":
            return dict(end)
        if self.kind == "last":
            return {tp: max(first[tp], end[tp] - self.number) for tp in end}
        if self.kind == "offset":
            return {tp: min(max(first[tp], self.number), end[tp]) for tp in end}
        return dict(first)

    def warnings(self, first: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[str]:
        """Warnings if some partitions do not have the offset. The end offset itself is valid: it is the offset of the
        next record."""
        if self.kind != "offset":
            return []
        beyond = {tp: end[tp] for tp in sorted(end) if self.number > end[tp]}
        before = {tp: first[tp] for tp in sorted(first) if self.number < first[tp]}
        found = []
        if beyond:
            found.append(f"offset {self.number} is beyond the end of {_listed(beyond)}: starting at the end")
        if before:
            found.append(
                f"offset {self.number} was deleted from {_listed(before)}: starting at the first remaining offset"
            )
        return found


def _listed(offsets: Mapping[TopicPartition, int]) -> str:
    named = [f"{tp} ({offset})" for tp, offset in offsets.items()]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more


def parse_start_offset(text: str, now: float) -> StartOffset:
    """Raises BadParameter if the text has none of these forms."""
    word = text.strip().lower()
    if word in ("beginning", "earliest"):
        return StartOffset("beginning")
    if word in ("end", "latest"):
        return StartOffset("end")
    if re.fullmatch(r"\d+", word):
        return StartOffset("offset", int(word))
    if re.fullmatch(r"-\d+", word):
        return StartOffset("last", int(word[1:]))
    if word.startswith("@"):
        return StartOffset("time", _milliseconds(text.strip()[1:], now), text.strip())
    raise click.BadParameter(
        f"{text!r} is none of beginning, end, OFFSET, -LAST, @TIME, @-15m", param_hint="-o / --offset"
    )


def _milliseconds(text: str, now: float) -> int:
    try:
        return milliseconds_at(text, now)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-o / --offset") from None


def select_partitions(existing: Iterable[int], wanted: Iterable[int], topic: str) -> list[int]:
    """The partitions to read. Raises BadParameter for one that the topic does not have."""
    there, asked = sorted(existing), sorted(set(wanted))
    if unknown := sorted(set(asked) - set(there)):
        raise click.BadParameter(
            f"{topic} has no partition {unknown[0]}: it has {len(there)}, from 0 to {len(there) - 1}",
            param_hint="-p / --partition",
        )
    return asked or there
