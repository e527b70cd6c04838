"""KIP-983: a revoke is requested in one poll and completed in a later one.

    requested   -> next          a rebalance revokes the partition
    next        -> thereafter    the user delays it (delay_revoke)
    thereafter  -> next          every poll moves the delayed ones up
    next        -> completed     by a poll that starts after another has reported it
    next, thereafter -> cancelled    a later rebalance leaves the partition here after all
    next, thereafter -> lost     the group no longer waits: fenced, or delayed beyond the deadline
    lost        -> forgotten     by a poll that starts after another has reported it

A partition is in at most one of the lists. Nothing here waits, sends or reads a clock. The lists belong to the thread
that polls.

Only a partition that was delayed is lost at its deadline. Any other is revoked by the poll after the one that reports
it, however late that is: the deadline is a little before the group's own, and a user who delays nothing has all of the
group's time.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ...types import TopicPartition
from .actions import Partitions


class Revocations:
    """The lists above, and the deadlines of their partitions."""

    def __init__(self) -> None:
        self.next: Partitions = frozenset()
        self.thereafter: Partitions = frozenset()
        self.lost: Partitions = frozenset()
        self._deadlines: dict[TopicPartition, float] = {}
        self._delayed: Partitions = frozenset()  # at least once

    @property
    def pending(self) -> Partitions:
        """Requested, and still here."""
        return self.next | self.thereafter

    # -- polls -------------------------------------------------------------------------------------------------

    def complete(self, partitions: Partitions) -> None:
        """The poll that starts has revoked these."""
        self._remove(partitions)

    def poll_begins(self) -> None:
        """To be called when the poll has completed `next`."""
        self.next, self.thereafter = self.next | self.thereafter, frozenset()

    def forget_lost(self, reported: Partitions) -> None:
        """A poll has reported these losses to the user."""
        self.lost -= reported

    def request(self, partitions: Partitions, deadline: float) -> Partitions:
        """A rebalance revokes these, before the deadline. Returns those that are new."""
        news = partitions - self.pending
        self.next |= news
        self._deadlines.update(dict.fromkeys(news, deadline))
        return news

    def cancel(self, partitions: Partitions) -> None:
        self._remove(partitions)

    def mark_lost(self, partitions: Partitions) -> None:
        """The group gives these to other members without waiting for the revoke."""
        self._remove(partitions)
        self.lost |= partitions

    def overdue(self, now: float) -> Partitions:
        """The group no longer waits for these."""
        return frozenset(tp for tp in self._delayed if now >= self._deadlines[tp])

    @property
    def next_deadline(self) -> float:
        """When the next partition is overdue."""
        if not self._delayed:  # as a rule, and every poll that waits asks
            return math.inf
        return min(self._deadlines[tp] for tp in self._delayed)

    def _remove(self, partitions: Partitions) -> None:
        self.next -= partitions
        self.thereafter -= partitions
        self._delayed -= partitions
        for tp in partitions:
            self._deadlines.pop(tp, None)

    # -- the user ----------------------------------------------------------------------------------------------

    def delay(self, partitions: Collection[TopicPartition], owned: Partitions) -> bool:
        """Delays the revoke of these to the poll after the next. Returns False if some are no longer here; the others
        are delayed nevertheless."""
        moved = self.next & frozenset(partitions)
        self.next -= moved
        self.thereafter |= moved
        self._delayed |= moved
        return owned.issuperset(partitions)
