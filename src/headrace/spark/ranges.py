"""Ranges of offsets: how many of each partition a batch reads, and the tasks that read them. Nothing here does I/O or
remembers anything.

How `maxOffsetsPerTrigger` is shared out (`maxOffsetsPerTriggerShares`):

    fair          equal shares; what a partition cannot use goes to the others (KIP-41). A partition with little to read
                  has all of it in this batch, whatever the backlog of the others
    proportional  by how much there is to read of each, as Spark does it; at least one record of each

With fewer offsets to give than partitions, or a rest that cannot be divided, they take turns. Whose turn it is follows
from what was read so far, so that a batch that is planned again is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from ..machines.drain import fair_shares
from ..types import TopicPartition

Offsets = dict[TopicPartition, int]

# A task that reads more is split, so that what fails is not read again from far away.
LONG_RANGE = 10_000_000


class OffsetRange(NamedTuple):
    """The offsets from `start` to before `end`."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def shared_out(sizes: Offsets, most: int, shares: str, so_far: int) -> Offsets:
    """How many of `most` offsets each partition gets that has so many to read (a few more with proportional shares, as
    in Spark). Whose turn it is follows from how many were read so far."""
    hungry = {tp: sizes[tp] for tp in sorted(sizes) if sizes[tp] > 0}
    total = sum(hungry.values())
    if total <= most:
        return hungry
    if most <= 0:
        return {}
    if shares == "proportional":
        return {tp: _in_proportion(size, total, most) for tp, size in hungry.items()}
    turn = so_far // most % len(hungry)
    places = [*list(hungry)[turn:], *list(hungry)[:turn]]
    given, _ = fair_shares([hungry[tp] for tp in places], most)
    return dict(zip(places, given, strict=True))


def _in_proportion(size: int, total: int, most: int) -> int:
    share = most * (size / total)
    return min(size, math.ceil(share) if share < 1 else math.floor(share))


def split(ranges: Iterable[OffsetRange], least: int | None, longest: int | None) -> list[OffsetRange]:
    """One task for each: a range as it is, or cut into equal pieces where it is longer than `longest`, or where there
    would be fewer than `least` tasks."""
    longest = longest or LONG_RANGE
    found = [piece for each in ranges if each.size > 0 for piece in _cut(each, math.ceil(each.size / longest))]
    if least is None or len(found) >= least:
        return found
    total = sum(each.size for each in found)
    # Those that are too small to be cut keep their task; the others share what is left.
    large = [each.size for each in found if each.size / total * least >= 1]
    left, to_share = least - (len(found) - len(large)), sum(large)

    def count(size: int) -> int:
        return 1 if size / total * least < 1 else max(1, round(size / to_share * left))

    return [piece for each in found for piece in _cut(each, count(each.size))]


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, whole.size)
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [OffsetRange(whole.tp, first, last) for first, last in pairwise(edges)]
