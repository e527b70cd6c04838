"""A range of offsets of one partition: the driver plans it, a task reads it."""

from __future__ import annotations

from typing import NamedTuple

from ..types import TopicPartition

Offsets = dict[TopicPartition, int]


class OffsetRange(NamedTuple):
    """The offsets from `start` up to, but not including, `end`."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start
