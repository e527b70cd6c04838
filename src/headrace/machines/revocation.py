"""KIP-983: a revoke is requested in one poll and completed in a later one.

    requested   -> next          a rebalance wants the partition back
    next        -> thereafter    the user delays it (delay_revoke)
    thereafter  -> next          every poll moves the delayed ones up
    next        -> revoked       a poll that starts while it is there, and the user was told of it, completes it
    next, thereafter -> given back   a later rebalance leaves the partition here after all
    next, thereafter -> lost     the group no longer waits: fenced, or delayed beyond the deadline
    lost        -> forgotten     by the next poll

A partition is in at most one of the lists. Nothing here waits, sends or reads a clock. The lists belong to the thread
that polls.

Only a partition that was delayed is lost by its deadline. One that was not is given up by the poll after the one that
reports it, however late that is: the deadline is a little before the group's own, and a user who delays nothing has all
of the group's time.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ..types import TopicPartition
from .membership import Partitions


class Revocations:
    """The lists above, and until when the group waits for what is on them."""

    def __init__(self) -> None:
        self.next: Partitions = frozenset()
        self.thereafter: Partitions = frozenset()
        self.lost: Partitions = frozenset()
        self._deadlines: dict[TopicPartition, float] = {}
        self._delayed: Partitions = frozenset()  # at least once

    @property
    def pending(self) -> Partitions:
        """What is asked back and still here."""
        return self.next | self.thereafter

    # -- polls -------------------------------------------------------------------------------------------------

    def completed(self, partitions: Partitions) -> None:
        """The poll that begins has revoked these."""
        self._remove(partitions)

    def poll_begins(self) -> None:
        """After what was on `next` is completed."""
        self.lost = frozenset()
        self.next, self.thereafter = self.next | self.thereafter, frozenset()

    def requested(self, partitions: Partitions, deadline: float) -> Partitions:
        """A rebalance wants these back, until then. Returns those of them that are news."""
        news = partitions - self.pending
        self.next |= news
        self._deadlines.update(dict.fromkeys(news, deadline))
        return news

    def given_back(self, partitions: Partitions) -> None:
        self._remove(partitions)

    def is_lost(self, partitions: Partitions) -> None:
        """The group has taken these, or will, without waiting any longer."""
        self._remove(partitions)
        self.lost |= partitions

    def overdue(self, now: float) -> Partitions:
        """What the group does not wait for any longer."""
        return frozenset(tp for tp in self._delayed if now >= self._deadlines[tp])

    @property
    def next_deadline(self) -> float:
        """When something is overdue, if nothing happens until then."""
        return min((self._deadlines[tp] for tp in self._delayed), default=math.inf)

    def _remove(self, partitions: Partitions) -> None:
        self.next -= partitions
        self.thereafter -= partitions
        self._delayed -= partitions
        for tp in partitions:
            self._deadlines.pop(tp, None)

    # -- the user ----------------------------------------------------------------------------------------------

    def delay(self, partitions: Collection[TopicPartition], owned: Partitions) -> bool:
        """Puts the revoke of these off to the poll after the next. False if some are not here any more; the others
        are delayed all the same."""
        moved = self.next & frozenset(partitions)
        self.next -= moved
        self.thereafter |= moved
        self._delayed |= moved
        return owned.issuperset(partitions)
