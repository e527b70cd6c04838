"""The records of one partition that a share consumer has acquired, in one session with the partition's leader.

    buffered   acquired, and not returned by a poll yet (in `buffer.py`)
    in hand    returned, and undecided
    decided    accepted, released or rejected, and not sent: can be changed. Gaps are decided when they are acquired
    sent       waits for the answer
    over       the broker has accepted or rejected the acknowledgement

- Records that were acquired together have one *acquisition lock*, until a poll returns some of them: those get their
  own. Its records expire together and are renewed together.
- A renewed record stays in hand.
- For each partition, a broker accepts all acknowledgements in a request or none. If it rejects those of several locks,
  each lock is sent again by itself, so that one that has expired does not affect the others. For the same reason
  renewals are sent in requests of their own.
- Locks end with the connection. Lost records can still be decided; the outcome is an error.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from ..._protocol.codes import is_retriable, kafka_error
from ...errors import HeadraceError
from ...types import AcknowledgeType, TopicPartition
from ..cluster import TopicIdPartition
from .offset_map import OffsetMap, OffsetRun, count

# With these errors the lock is gone, so a retry is pointless.
_OVER = {
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
}


class AcquisitionLock:
    """How long the broker reserves records for this member. Of records that were acquired together."""

    __slots__ = ("expires", "is_renewed", "is_unrenewable", "taken_at")

    def __init__(self, expires: float) -> None:
        self.expires = expires
        self.taken_at: float | None = None  # when a poll returned its records
        self.is_renewed = False  # the user asked for it
        self.is_unrenewable = False  # the broker does not renew it

    def taken(self, now: float) -> AcquisitionLock:
        """The lock of records that a poll returns now. A later poll may return the others, and the user's time for
        those starts then."""
        made = AcquisitionLock(self.expires)
        made.taken_at, made.is_unrenewable = now, self.is_unrenewable
        return made


class Decision(NamedTuple):
    kind: int
    lock: AcquisitionLock
    is_users: bool = True  # otherwise no callback reports its outcome


class Renewal(NamedTuple):
    lock: AcquisitionLock
    is_users: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The result of acknowledgements. Without an error the broker has accepted them."""

    tp: TopicPartition
    ranges: tuple[range, ...]
    error: HeadraceError | None


class AcquiredRecords:
    """The states above."""

    def __init__(self, tp: TopicPartition, tip: TopicIdPartition, node: int) -> None:
        self.tp = tp
        self.tip = tip
        self.node = node
        self.lost: HeadraceError | None = None
        self._in_hand: OffsetMap[AcquisitionLock] = OffsetMap()
        self._is_deciding = False  # a call of `decide` is under way, or was interrupted
        self._decided: OffsetMap[Decision] = OffsetMap()
        self._apart: deque[list[OffsetRun[Decision]]] = deque()  # rejected together, to be sent one by one
        self._sent: list[OffsetRun[Decision]] = []
        self._renewals: OffsetMap[Renewal] = OffsetMap()
        self._renewing: list[OffsetRun[Renewal]] = []

    @property
    def in_hand(self) -> OffsetMap[AcquisitionLock]:
        """The records that the user has, and has not decided about."""
        if self._is_deciding:
            self._complete_decision()
        return self._in_hand

    def _complete_decision(self) -> None:
        """A call of `decide` was interrupted (Ctrl-C) between its two steps. A record that is decided is no longer in
        hand: it would be acknowledged or renewed once more, and the broker would reject that together with everything
        else under the same lock."""
        for run in self._decided:
            self._in_hand.remove(run.first, run.last)
            self._renewals.remove(run.first, run.last)
        self._is_deciding = False

    # -- the user ----------------------------------------------------------------------------------------------

    def acquire(self, runs: Iterable[tuple[int, int]]) -> Outcome | None:
        """These were acquired. If they were here before, that lock has expired, and decisions under it must not count
        for the new one."""
        if self.is_idle:
            return None
        void: list[OffsetRun[Decision]] = []
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
        error = kafka_error(
            ErrorCode.invalid_record_state, doing, "the acquisition lock expired before the acknowledgement was sent"
        )
        return self._outcome(_of_user(void), error)

    def hand_out(self, runs: Iterable[tuple[int, int]], lock: AcquisitionLock) -> None:
        """A poll returns these."""
        for first, last in runs:
            self.in_hand.set(first, last, lock)

    def lock_of(self, runs: list[tuple[int, int]]) -> AcquisitionLock | None:
        """The lock of those of these that are in hand."""
        found = self.in_hand.within(runs[0][0], runs[-1][1])
        return found[0].value if found else None

    def take_back(self, runs: Iterable[tuple[int, int]], lock: AcquisitionLock) -> None:
        """They are buffered again, if they are in hand under this lock. Can be repeated."""
        for first, last in runs:
            for run in self.in_hand.within(first, last):
                if run.value is lock:
                    self.in_hand.remove(run.first, run.last)

    def decide(self, first: int, last: int, kind: int) -> int:
        """Returns how many of these offsets are decided now: those that were in hand, or decided and not sent. The
        others are not here."""
        if kind == AcknowledgeType.RENEW:
            found = self.in_hand.within(first, last)
            for run in found:
                self._renewals.set(run.first, run.last, Renewal(run.value, True))
            return count(found)
        found = self.in_hand.within(first, last)
        # In this order: an interrupted call (Ctrl-C) leaves no record that is neither in hand nor decided, and
        # `_complete_decision` takes those out of hand that are decided.
        self._is_deciding = True
        for run in found:
            self._decided.set(run.first, run.last, Decision(kind, run.value))
        self._in_hand.remove(first, last)
        if self._renewals:
            self._renewals.remove(first, last)
        self._is_deciding = False
        if (number := count(found)) == last - first + 1:
            return number
        known = [run for run in self._decided.within(first, last) if run.value.is_users]
        for again in known:
            if again.value.kind != kind:
                self._decided.set(again.first, again.last, Decision(kind, again.value.lock))
        return count(known)

    def decide_all(self, kind: int) -> None:
        """Decides everything in hand. One line stores it, so an interrupt leaves either all or nothing."""
        decided, none, no_renewals = self._decided.copy(), OffsetMap[AcquisitionLock](), OffsetMap[Renewal]()
        for run in self.in_hand:
            decided.set(run.first, run.last, Decision(kind, run.value))
        self._decided, self._in_hand, self._renewals = decided, none, no_renewals

    def decide_unseen(self, runs: Iterable[tuple[int, int]], kind: int, lock: AcquisitionLock) -> None:
        """Decides what no user sees: gaps, and records of topics that are no longer subscribed."""
        for first, last in runs:
            self._decided.set(first, last, Decision(kind, lock, False))

    def renew(self, runs: Iterable[tuple[int, int]], lock: AcquisitionLock) -> None:
        for first, last in runs:
            self._renewals.set(first, last, Renewal(lock, False))

    def undecided(self) -> int | None:
        """The first offset in hand that is neither decided nor renewed by the user, answered or not."""
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
        """Whether there are unanswered decisions or renewals."""
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
        if self._is_deciding:
            self._complete_decision()
        self._sent = self._apart.popleft() if self._apart else self._decided.take()
        return _batches([(run.first, run.last, run.value.kind) for run in self._sent])

    def send_renewals(self) -> list[dict[str, Any]]:
        assert not self._renewing, "one request at a time"
        self._renewing = self._renewals.take()
        return _batches([(run.first, run.last, int(AcknowledgeType.RENEW)) for run in self._renewing])

    def answered(self, code: int, error: HeadraceError | None, now: float) -> Outcome | None:
        """The broker's answer to the acknowledgements. Returns None if they are sent again, or none are the user's."""
        sent, self._sent = self._sent, []
        if error is not None:
            locks = {run.value.lock for run in sent}
            if code == ErrorCode.invalid_record_state and len(locks) > 1:
                self._apart += ([run for run in sent if run.value.lock is lock] for lock in locks)
                return None
            if is_retriable(code) and code not in _OVER and any(lock.expires > now for lock in locks):
                self._apart.append(sent)
                return None
        return self._outcome(_of_user(sent), error)

    def renewed(self, error: HeadraceError | None, expires: float) -> Outcome | None:
        """The broker's answer to renewals. Renewed locks last until `expires`."""
        sent, self._renewing = self._renewing, []
        if error is None:
            fresh: dict[AcquisitionLock, AcquisitionLock] = {}
            for run in sent:
                lock = run.value.lock
                if not run.value.is_users:
                    lock.expires = expires
                    continue
                if lock not in fresh:
                    fresh[lock] = renewed = AcquisitionLock(expires)
                    renewed.taken_at, renewed.is_renewed = lock.taken_at, True
                for part in self.in_hand.within(run.first, run.last):
                    self.in_hand.set(part.first, part.last, fresh[lock])
        elif not error.retriable:
            for run in sent:
                run.value.lock.is_unrenewable = True
        return self._outcome([run.offsets for run in sent if run.value.is_users], error)

    def resend(self) -> None:
        """The broker rejected the whole request, so everything in it has to be sent again. The planner repeats renewals
        that no user asked for."""
        if self._sent:
            self._apart.appendleft(self._sent)
            self._sent = []
        renewing, self._renewing = self._renewing, []
        for run in (each for each in renewing if each.value.is_users):
            for part in self.in_hand.within(run.first, run.last):
                self._renewals.set(part.first, part.last, run.value)

    def lose(self, error: HeadraceError) -> Outcome | None:
        """The connection was lost, and all locks with it. Returns the outcome of the decisions."""
        self.lost = error
        runs = [*self._sent, *(run for part in self._apart for run in part), *self._decided.take()]
        asked = [run.offsets for run in (*self._renewing, *self._renewals.take()) if run.value.is_users]
        self._sent, self._renewing = [], []
        self._apart.clear()
        return self._outcome(_of_user(runs) + asked, error)

    def lose_late(self) -> Outcome | None:
        """The outcome of decisions that were made after the loss."""
        assert self.lost is not None
        return self.lose(self.lost)

    def _outcome(self, ranges: list[range], error: HeadraceError | None) -> Outcome | None:
        return Outcome(self.tp, tuple(ranges), error) if ranges else None


def _of_user(runs: Iterable[OffsetRun[Decision]]) -> list[range]:
    return [run.offsets for run in runs if run.value.is_users]


def _batches(runs: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Adjacent runs of the same type are merged."""
    merged: list[list[int]] = []
    for first, last, kind in runs:
        if merged and merged[-1][1] == first - 1 and merged[-1][2] == kind:
            merged[-1][1] = last
        else:
            merged.append([first, last, kind])
    return [{"first_offset": first, "last_offset": last, "acknowledge_types": (kind,)} for first, last, kind in merged]
