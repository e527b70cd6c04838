"""What a share group's member holds of one partition, by one session with the partition's leader.

    buffered   acquired, and not returned by a poll yet (kept by `share_stock.py`)
    in hand    returned, and nothing is decided about it
    decided    accepted, released, rejected; gaps are as soon as they are acquired; not sent yet, so it can be changed
    sent       the answer is awaited
    over       the broker has taken it, or refused it

- A *lease* is what was acquired together, and is in stock or was returned by one poll: its lock ends at the same
  time, and it is renewed together.
- A renewal leaves the record in hand.
- The broker takes all that one request says of a partition, or nothing. When it refuses what came of several leases,
  each is sent again by itself: one whose lock has ended does not take the others with it. For the same reason
  renewals are sent apart from the rest.
- Locks end with the connection: what is lost with it can still be decided, and the user hears that it was in vain.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from ..acknowledge import AcknowledgeType, OffsetMap, Run, count
from ..errors import HeadraceError
from ..protocol.codes import is_retriable, kafka_error
from ..types import TopicPartition
from .session import Slot

# With these the lock is gone: there is nothing to be sent again.
_OVER = {
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
}


class Lease:
    """Until when the broker keeps others from what was acquired together."""

    __slots__ = ("expires", "is_doomed", "is_renewed", "taken_at")

    def __init__(self, expires: float) -> None:
        self.expires = expires
        self.taken_at: float | None = None  # when a poll returned it
        self.is_renewed = False  # the user asked for it
        self.is_doomed = False  # the broker does not renew it

    def taken(self, now: float) -> Lease:
        """Of what a poll returns now. What is left of it may be returned by a later one, and the user's time for that
        begins then."""
        made = Lease(self.expires)
        made.taken_at, made.is_doomed = now, self.is_doomed
        return made


class Decision(NamedTuple):
    kind: int
    lease: Lease
    is_users: bool = True  # who hears of its result


class Renewal(NamedTuple):
    lease: Lease
    is_users: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of acknowledgements. Without an error the broker has taken them."""

    tp: TopicPartition
    ranges: tuple[range, ...]
    error: HeadraceError | None


class Holding:
    """The states above."""

    def __init__(self, tp: TopicPartition, slot: Slot, node: int) -> None:
        self.tp = tp
        self.slot = slot
        self.node = node
        self.lost: HeadraceError | None = None
        self.in_hand: OffsetMap[Lease] = OffsetMap()
        self._decided: OffsetMap[Decision] = OffsetMap()
        self._apart: deque[list[Run[Decision]]] = deque()  # refused together, to be sent one by one
        self._sent: list[Run[Decision]] = []
        self._renewals: OffsetMap[Renewal] = OffsetMap()
        self._renewing: list[Run[Renewal]] = []

    # -- the user ----------------------------------------------------------------------------------------------

    def acquired(self, runs: Iterable[tuple[int, int]]) -> Outcome | None:
        """These were acquired. If they were held before, that lock has ended: what was decided then must not be taken
        for what will be decided now."""
        if self.is_idle:
            return None
        void: list[Run[Decision]] = []
        for first, last in runs:
            self.in_hand.remove(first, last)
            self._renewals.remove(first, last)
            void += self._decided.remove(first, last)
            for part in self._apart:
                kept: OffsetMap[Decision] = OffsetMap()
                for run in part:
                    kept.set(*run)
                void += kept.remove(first, last)
                part[:] = kept.take()
        self._apart = deque(part for part in self._apart if part)
        doing = f"acknowledging {self.tp}"
        error = kafka_error(ErrorCode.invalid_record_state, doing, "the lock ended before that was sent")
        return self._outcome(_of_user(void), error)

    def returned(self, runs: Iterable[tuple[int, int]], lease: Lease) -> None:
        """A poll returns these."""
        for first, last in runs:
            self.in_hand.set(first, last, lease)

    def lease_of(self, runs: list[tuple[int, int]]) -> Lease | None:
        """Of what is in hand of these."""
        found = self.in_hand.within(runs[0][0], runs[-1][1])
        return found[0].value if found else None

    def given_back(self, runs: Iterable[tuple[int, int]], lease: Lease) -> None:
        """They are buffered again, if they are in hand under this lease. To do it twice is to do it once."""
        for first, last in runs:
            for run in self.in_hand.within(first, last):
                if run.value is lease:
                    self.in_hand.remove(run.first, run.last)

    def decide(self, first: int, last: int, kind: int) -> int:
        """How many of these offsets it was decided about: those that are in hand, or decided and not sent. The others
        are not held here."""
        if kind == AcknowledgeType.RENEW:
            found = self.in_hand.within(first, last)
            for run in found:
                self._renewals.set(run.first, run.last, Renewal(run.value, True))
            return count(found)
        # In this order: a call that is interrupted (Ctrl-C) leaves nothing that is neither in hand nor decided.
        found = self.in_hand.within(first, last)
        for run in found:
            self._decided.set(run.first, run.last, Decision(kind, run.value))
        self.in_hand.remove(first, last)
        if self._renewals:
            self._renewals.remove(first, last)
        if (number := count(found)) == last - first + 1:
            return number
        known = [run for run in self._decided.within(first, last) if run.value.is_users]
        for again in known:
            if again.value.kind != kind:
                self._decided.set(again.first, again.last, Decision(kind, again.value.lease))
        return count(known)

    def decide_all(self, kind: int) -> None:
        """About everything that is in hand. It is done by one line, and so not at all if it is interrupted."""
        decided, none, no_renewals = self._decided.copy(), OffsetMap[Lease](), OffsetMap[Renewal]()
        for run in self.in_hand:
            decided.set(run.first, run.last, Decision(kind, run.value))
        self._decided, self.in_hand, self._renewals = decided, none, no_renewals

    def settle(self, runs: Iterable[tuple[int, int]], kind: int, lease: Lease) -> None:
        """About what no user gets to see: gaps, and what is not wanted any more."""
        for first, last in runs:
            self._decided.set(first, last, Decision(kind, lease, False))

    def renew(self, runs: Iterable[tuple[int, int]], lease: Lease) -> None:
        for first, last in runs:
            self._renewals.set(first, last, Renewal(lease, False))

    def undecided(self) -> int | None:
        """The first offset in hand of which the user has said nothing: also a renewal is a word, answered or not."""
        left: OffsetMap[None] = OffsetMap()
        for run in self.in_hand:
            if not run.value.is_renewed:
                left.set(run.first, run.last, None)
        for asked in (*self._renewing, *self._renewals):
            if asked.value.is_users:
                left.remove(asked.first, asked.last)
        return next((run.first for run in left), None)

    @property
    def is_under_way(self) -> bool:
        """Whether something was decided and is not answered."""
        return bool(self.has_decided or self._sent or self._renewals or self._renewing)

    @property
    def is_idle(self) -> bool:
        return not (self.in_hand or self.is_under_way)

    # -- requests ----------------------------------------------------------------------------------------------

    @property
    def has_decided(self) -> bool:
        return bool(self._decided or self._apart)

    @property
    def decided_count(self) -> int:
        return len(self._decided)

    @property
    def has_retries(self) -> bool:
        return bool(self._apart)

    @property
    def has_renewals(self) -> bool:
        return bool(self._renewals)

    def send(self) -> list[dict[str, Any]]:
        """The next acknowledgements for a request."""
        assert not self._sent, "one request at a time"
        self._sent = self._apart.popleft() if self._apart else self._decided.take()
        return _batches([(run.first, run.last, run.value.kind) for run in self._sent])

    def send_renewals(self) -> list[dict[str, Any]]:
        assert not self._renewing, "one request at a time"
        self._renewing = self._renewals.take()
        return _batches([(run.first, run.last, int(AcknowledgeType.RENEW)) for run in self._renewing])

    def answered(self, code: int, error: HeadraceError | None, now: float) -> Outcome | None:
        """What the broker said of the acknowledgements that were sent. None: they are sent again, or there were none of
        the user's."""
        sent, self._sent = self._sent, []
        if error is not None:
            leases = {run.value.lease for run in sent}
            if code == ErrorCode.invalid_record_state and len(leases) > 1:
                self._apart += ([run for run in sent if run.value.lease is lease] for lease in leases)
                return None
            if is_retriable(code) and code not in _OVER and any(lease.expires > now for lease in leases):
                self._apart.append(sent)
                return None
        return self._outcome(_of_user(sent), error)

    def renewed(self, error: HeadraceError | None, expires: float) -> Outcome | None:
        """What the broker said of renewals, whose locks last until `expires` then."""
        sent, self._renewing = self._renewing, []
        if error is None:
            fresh: dict[Lease, Lease] = {}
            for run in sent:
                lease = run.value.lease
                if not run.value.is_users:
                    lease.expires = expires
                    continue
                if lease not in fresh:
                    fresh[lease] = renewed = Lease(expires)
                    renewed.taken_at, renewed.is_renewed = lease.taken_at, True
                for part in self.in_hand.within(run.first, run.last):
                    self.in_hand.set(part.first, part.last, fresh[lease])
        elif not error.retriable:
            for run in sent:
                run.value.lease.is_doomed = True
        return self._outcome([run.offsets for run in sent if run.value.is_users], error)

    def not_looked_at(self) -> None:
        """The request was refused as a whole: all that was in it is to be sent again. Renewals that no user asked for
        are noted once more by the planner."""
        if self._sent:
            self._apart.appendleft(self._sent)
            self._sent = []
        renewing, self._renewing = self._renewing, []
        for run in (each for each in renewing if each.value.is_users):
            for part in self.in_hand.within(run.first, run.last):
                self._renewals.set(part.first, part.last, run.value)

    def lose(self, error: HeadraceError) -> Outcome | None:
        """The connection is gone, and all locks with it. Returns what became of what was decided."""
        self.lost = error
        runs = [*self._sent, *(run for part in self._apart for run in part), *self._decided.take()]
        asked = [run.offsets for run in (*self._renewing, *self._renewals.take()) if run.value.is_users]
        self._sent, self._renewing = [], []
        self._apart.clear()
        return self._outcome(_of_user(runs) + asked, error)

    def late(self) -> Outcome | None:
        """What was decided after it was lost."""
        assert self.lost is not None
        return self.lose(self.lost)

    def _outcome(self, ranges: list[range], error: HeadraceError | None) -> Outcome | None:
        return Outcome(self.tp, tuple(ranges), error) if ranges else None


def _of_user(runs: Iterable[Run[Decision]]) -> list[range]:
    return [run.offsets for run in runs if run.value.is_users]


def _batches(runs: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Neighbours with the same type are one."""
    merged: list[list[int]] = []
    for first, last, kind in runs:
        if merged and merged[-1][1] == first - 1 and merged[-1][2] == kind:
            merged[-1][1] = last
        else:
            merged.append([first, last, kind])
    return [{"first_offset": first, "last_offset": last, "acknowledge_types": (kind,)} for first, last, kind in merged]
