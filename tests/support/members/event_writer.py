"""Writes the events of `members/events.py` for a Python member, and tracks its uncommitted offsets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from support.members.events import TopicAndPartition, milliseconds


class EventWriter:
    """The order is that of VerifiableConsumer: report the records, commit them, report the commit.

    A failed commit is retried the next time, until the partition is revoked.
    """

    def __init__(self, commit: Callable[[Mapping[TopicAndPartition, int]], None], refusal: type[Exception]) -> None:
        self._commit = commit
        self._refusal = refusal
        self._due: dict[TopicAndPartition, int] = {}

    def started(self) -> None:
        _say("startup_complete")

    def closed(self) -> None:
        _say("shutdown_complete")

    def read(self, offsets: Mapping[TopicAndPartition, Sequence[int]]) -> None:
        """Report the offsets that were read, ascending in each partition."""
        if offsets:
            summaries = [
                _fields_of(tp) | {"count": len(read), "minOffset": read[0], "maxOffset": read[-1]}
                for tp, read in offsets.items()
            ]
            _say("records_consumed", count=sum(map(len, offsets.values())), partitions=summaries)
            self._due |= {tp: read[-1] + 1 for tp, read in offsets.items()}

    def settle(self) -> None:
        """Commit the offsets that were read."""
        if not self._due:
            return
        try:
            self._commit(self._due)
        except self._refusal as problem:
            self.settled(problem)
        else:
            self.settled()

    @property
    def due(self) -> Mapping[TopicAndPartition, int]:
        """Uncommitted offsets, for members that commit themselves and then call `settled`."""
        return self._due

    def settled(self, problem: Exception | None = None) -> None:
        """Report that all due offsets were committed, or that the commit failed."""
        said = [_fields_of(tp) | {"offset": offset} for tp, offset in self._due.items()]
        if problem is not None:
            _say("offsets_committed", offsets=said, success=False, error=str(problem))
        else:
            self._due.clear()
            _say("offsets_committed", offsets=said, success=True)

    def assigned(self, partitions: Iterable[TopicAndPartition]) -> None:
        _say("partitions_assigned", partitions=[_fields_of(tp) for tp in partitions])

    def revoked(self, partitions: Iterable[TopicAndPartition]) -> None:
        self.settle()
        self.gave_up(partitions)

    def gave_up(self, partitions: Iterable[TopicAndPartition]) -> None:
        """Report a revoke after the last commit."""
        self._give_up("partitions_revoked", partitions)

    def lost(self, partitions: Iterable[TopicAndPartition]) -> None:
        self._give_up("partitions_lost", partitions)

    def _give_up(self, name: str, partitions: Iterable[TopicAndPartition]) -> None:
        partitions = list(partitions)
        for tp in partitions:
            self._due.pop(tp, None)
        _say(name, partitions=[_fields_of(tp) for tp in partitions])


def _fields_of(tp: TopicAndPartition) -> dict[str, object]:
    return {"topic": tp[0], "partition": tp[1]}


def _say(name: str, **fields: object) -> None:
    """Write one line at once, so that a reader never sees half of it."""
    sys.stdout.write(json.dumps({"timestamp": milliseconds(), "name": name, **fields}) + "\n")
    sys.stdout.flush()
