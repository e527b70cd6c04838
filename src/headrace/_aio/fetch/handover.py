"""Records on their way from the buffers to the user, and how they are taken back.

A signal handler may raise between two instructions on the main thread (Ctrl-C). Records that have not arrived at the
user by then must be returned by a later poll.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..._machines.fetch.assignment import Assignment, TakenFrom
from ..._machines.fetch.partition import PartitionState, Position
from ...records import Batch, Records
from ...types import TopicPartition


@dataclasses.dataclass(slots=True)
class Handover:
    """The records of one poll, and from where they were taken.

    Whatever a poll takes is noted before it is taken, and `is_confirmed` is set by the very last statement of poll():
    records that are not confirmed have not arrived, and are taken back. No signal comes between that statement and the
    return: CPython handles signals when a function begins, when a loop jumps back, and after calls.
    """

    taken: list[TakenFrom] = dataclasses.field(default_factory=list)
    is_confirmed: bool = False
    untrack: Callable[[], None] | None = None  # with commit.mode=done: the records are no longer in flight


class Delivered(NamedTuple):
    """The records of a poll, and the last one of an iteration. It is only compared, never read."""

    handover: Handover
    record: object


class RecordOrigin(NamedTuple):
    """Where records were taken from: a partition, and since when it was read there. A seek makes it another one."""

    assignment: Assignment
    tp: TopicPartition
    start: int
    origin: int
    end: Position | None

    @property
    def state(self) -> PartitionState | None:
        state = self.assignment.get(self.tp)
        return state if state is not None and state.start == self.start else None

    @property
    def unmoved_state(self) -> PartitionState | None:
        """The same, even if its buffer was dropped since: then the records that were not handed out come again."""
        state = self.assignment.get(self.tp)
        return state if state is not None and state.origin == self.origin else None


@dataclasses.dataclass(slots=True)
class Unseen:
    """Records of one origin that an iteration hands out, and how many of them it has handed out."""

    origin: RecordOrigin
    records: Records
    taken: int = 0


def give_back(left: Iterable[Unseen]) -> None:
    """The next poll returns what was not handed out."""
    for each in left:
        state = each.origin.state
        if state is not None and (unseen := each.records[each.taken :]):
            state.position = Position(unseen[0].offset)
            state.give_back(unseen._batches)


def fetch_again(left: Iterable[Unseen]) -> None:
    """The same, after `give_back` was interrupted at any place."""
    for each in left:
        state = each.origin.state
        if state is not None and each.taken < len(each.records):
            state.position = Position(each.records[each.taken].offset)
            state.refetch()


def by_origin(records: Records) -> dict[tuple[TopicPartition, str | None], Records]:
    """The records of each partition and lane."""
    found: dict[tuple[TopicPartition, str | None], list[Batch]] = {}
    for batch in records._batches:
        found.setdefault((TopicPartition(batch.topic, batch.partition), batch.lane), []).append(batch)
    return {place: Records(batches) for place, batches in found.items()}
