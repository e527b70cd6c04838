"""What a share consumer asks of which broker, and when; what the answers mean is in `share_answers.py`.

    a poll waits, nothing is in stock     fetch, with what is to be acknowledged; at most as long as the poll waits
    the user is quick, answers are full   fetch ahead, and more than one poll's worth at a time
    acknowledgements, and no such fetch   send them by themselves: soon, or at once if somebody waits
    half of a lock's time has passed      renew it: of what is in stock, and with renew=auto of what is in hand

- `batch_optimized`: all brokers are asked at the same time, first for as much as a poll returns; the broker goes on to
  the end of a batch. A poll returns no more than its limit all the same; the rest is in stock.
- `record_limit`: one fetch at a time, to one broker after the other, only for a poll and only when nothing is in stock:
  so nothing is acquired above the limit. An answer may come after its poll; its records are in stock for the next one.
  With several brokers each is looked at before one of them is waited for.
- How much is fetched at once and ahead is decided by `share_pace.py`.
- A release counts as a delivery, and a record that was delivered too often is not delivered any more. So what is in
  stock is renewed rather than released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..acknowledge import AcknowledgeType
from ..errors import HeadraceError, StateError
from ..types import TopicPartition
from .backoff import Backoff
from .cluster import Cluster
from .session import Slot
from .share_holding import Holding, Outcome
from .share_pace import MOST, Pace
from .share_place import Ask, Place, ShareRequest, ShareTerms, Talk
from .share_stock import Columns, Handover, Lot, Stock

_LINGER = 0.05  # seconds that acknowledgements wait for a fetch to take them along
_TURN = 0.1  # seconds that one broker of several is waited for
_IN_USE = "the records of the last poll() are not all acknowledged: acknowledge each before the next one"


class Planner:
    """Guarded by whoever owns it. After every event the streams ask `plan`."""

    def __init__(self, terms: ShareTerms, cluster: Cluster, backoff: Backoff, dice: Callable[[], float]) -> None:
        self.terms = terms
        self.cluster = cluster
        self.stock = Stock()
        self.places: dict[int, Place] = {}
        self.outcomes: list[Outcome] = []
        self.fault: HeadraceError | None = None
        """What the next poll raises that has nothing to return."""
        self.lock_time: float | None = None
        """How long a lock lasts, as the broker said."""
        self.topics: frozenset[str] = frozenset()
        self.arriving = 0
        """Offsets that were acquired and are being decoded: not in stock yet."""
        self._backoff = backoff
        self._dice = dice
        self._wanted: dict[int, dict[Slot, TopicPartition]] = {}
        self._holdings: dict[TopicPartition, list[Holding]] = {}  # the newest last
        self._limit = 0  # of the poll that waits; 0: none does
        self._until = 0.0
        self._nudged: set[int] = set()  # brokers to be asked for a poll that did not wait
        self._last_limit = 0
        self._pace = Pace()
        self._turn = 0
        self._empty_turns = 0

    # -- partitions --------------------------------------------------------------------------------------------

    def follow(self, assignment: Iterable[Slot]) -> frozenset[Any]:
        """These are assigned, and led by whom the cluster's metadata says. Returns the topics whose name is not
        known."""
        wanted: dict[int, dict[Slot, TopicPartition]] = {}
        unknown = set()
        for slot in sorted(assignment):
            name = self.cluster.topic_name(slot.topic_id)
            if name is None:
                unknown.add(slot.topic_id)
                continue
            tp = TopicPartition(name, slot.partition)
            leader = self.cluster.leader(tp)
            if leader is not None:
                wanted.setdefault(leader.node, {})[slot] = tp
        self._wanted = wanted
        for node in wanted:
            if node not in self.places:
                self.places[node] = Place(node, self.terms)
        return frozenset(unknown)

    @property
    def partitions(self) -> set[TopicPartition]:
        return {tp for slots in self._wanted.values() for tp in slots.values()}

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        """What is in stock of other topics goes back."""
        self.topics = topics
        self._release(lambda lot: lot.holding.tp.topic not in topics, now)

    def give_up_stock(self, now: float) -> None:
        """The user has not polled for too long: others shall have what waits for it."""
        self._release(lambda lot: True, now)

    def _release(self, is_unwanted: Callable[[Lot], bool], now: float) -> None:
        for lot in self.stock.remove(is_unwanted):
            lot.holding.settle(lot.records.runs(), AcknowledgeType.RELEASE, lot.lease)
            self.touch(lot.holding, now)

    # -- the user ----------------------------------------------------------------------------------------------

    def poll_begins(self, now: float) -> bool:
        """Whether a stream that sleeps has to hear of acknowledgements. Raises StateError in explicit mode if something
        is not acknowledged."""
        is_news = False
        for tp, holdings in list(self._holdings.items()):
            for holding in [each for each in holdings if each.in_hand]:
                if not self.terms.is_explicit:
                    holding.decide_all(AcknowledgeType.ACCEPT)
                    is_news |= self.touch(holding, now) and self.places[holding.node].in_flight is None
                elif holding.lost is not None:
                    continue
                elif not self.terms.renews and (first := holding.undecided()) is not None:
                    raise StateError(f"{_IN_USE} (offset {first} of {tp}, for one)")
            self._holdings[tp] = [each for each in holdings if not each.is_idle or each is holdings[-1]]
        for place in self.places.values():
            if place.acks_due == math.inf and place.has_acks:  # a call was interrupted after it had decided
                place.acks_due = now
        self._pace.back(now)
        self._empty_turns = 0
        return is_news

    def wait(self, limit: int, until: float) -> None:
        """The poll has found nothing, and waits for so many records until then."""
        self._limit = self._last_limit = limit
        self._until = until

    def nudge(self, limit: int) -> None:
        """The poll does not wait: each broker is asked once for what it has, for the next one."""
        if not self._limit:
            self._last_limit = limit
            self._nudged = set(self._wanted)

    def take(self, limit: int, now: float, handover: Handover | None = None) -> list[Columns]:
        """What the poll returns. Whatever happens to it on the way to the user, the handover says what to put back."""
        records = self.stock.take(limit, now, handover or Handover())
        if records:
            self._limit = 0  # it waits no longer
            self._last_limit = limit
            self._pace.returned(sum(map(len, records)), now)
            if self.terms.renews:
                self._look_for_renewals(now)
        return records

    def poll_ends(self) -> None:
        self._limit = 0

    def decide(self, tp: TopicPartition, runs: Iterable[tuple[int, int]], kind: int, now: float) -> bool:
        """Whether the streams should look. Raises StateError if something of that is not in hand; the rest is
        decided."""
        is_news = False
        for first, last in runs:
            left = last - first + 1
            for holding in reversed(self._holdings.get(tp, ())):
                if done := holding.decide(first, last, kind):
                    left -= done
                    is_news |= self.touch(holding, now)
                if left == 0:
                    break
            if left:
                raise StateError(
                    f"{left} of the offsets {first} to {last} of {tp} cannot be acknowledged: they were not returned "
                    f"by poll(), or are acknowledged already"
                )
        return is_news

    def handed_over(self, records: Iterable[tuple[TopicPartition, Columns]]) -> Handover:
        """These, as the poll that returned them had taken them: as far as they are in hand."""
        lots = []
        for tp, columns in records:
            for holding in reversed(self._holdings.get(tp, ())):
                if lease := holding.lease_of(columns.runs()):
                    lots.append(Lot(holding, columns, lease))
                    break
        return Handover(lots, is_moved=True)

    def put_back(self, handover: Handover, now: float) -> None:
        """The user has not seen these. May be called again until it got through."""
        self.stock.put_back(handover)
        self._release(lambda lot: lot.holding.tp.topic not in self.topics, now)

    def release_since(self, since: float, now: float) -> bool:
        """What polls have returned since then and nobody will decide about. Whether the streams should look."""
        is_news = False
        for holding in [each for holdings in self._holdings.values() for each in holdings]:
            for run in list(holding.in_hand):
                if run.value.taken_at is not None and run.value.taken_at >= since:
                    holding.decide(run.first, run.last, AcknowledgeType.RELEASE)
                    is_news |= self.touch(holding, now)
        return is_news

    def accept_all(self, now: float) -> None:
        """In implicit mode: what the last poll returned."""
        if not self.terms.is_explicit:
            self.poll_begins(now)

    def touch(self, holding: Holding, now: float) -> bool:
        """Something of it is to be sent, or is lost already. Whether it is the first of its broker."""
        if holding.lost is not None:
            if outcome := holding.late():
                self.outcomes.append(outcome)
            return False
        place = self.places[holding.node]
        is_first = place.acks_due == math.inf
        if is_first:
            place.acks_due = now + _LINGER
        return is_first

    def held(self, slot: Slot, tp: TopicPartition, node: int) -> Holding:
        """What records of this partition, from this broker, are noted in."""
        holding = self.places[node].holding(slot, tp)
        known = self._holdings.setdefault(tp, [])
        if not known or known[-1] is not holding:
            known.append(holding)
        return holding

    @property
    def in_hand(self) -> int:
        """How many records the user has and has not decided about."""
        return sum(len(each.in_hand) for holdings in self._holdings.values() for each in holdings)

    # -- acknowledgements that somebody waits for ----------------------------------------------------------------

    def hurry(self) -> dict[int, Talk]:
        """Sends all acknowledgements at once. Returns what to wait for: by broker, which requests have to be over."""
        goals = {}
        for node, place in self.places.items():
            acks, renewals = place.has_acks, place.has_renewals
            if acks or renewals:
                place.is_urgent = True
            if acks or renewals or (place.in_flight is not None and place.in_flight.acknowledged):
                goals[node] = place.begun.plus(acks, renewals)
        return goals

    def is_over(self, goals: Mapping[int, Talk]) -> bool:
        return all(self.places[node].ended.covers(goal) for node, goal in goals.items())

    def unsettled(self) -> set[TopicPartition]:
        """Partitions with acknowledgements that are not answered."""
        return {
            holding.tp for place in self.places.values() for holding in place.holdings.values() if holding.is_under_way
        }

    def can_renew(self, tp: TopicPartition) -> bool:
        holdings = self._holdings.get(tp)
        return not holdings or holdings[-1].lost is not None or self.places[holdings[-1].node].can_renew

    @property
    def has_retries(self) -> bool:
        """Whether something is to be acknowledged once more."""
        return any(holding.has_retries for place in self.places.values() for holding in place.holdings.values())

    # -- requests ----------------------------------------------------------------------------------------------

    def is_wanted(self, node: int) -> bool:
        """Whether there are partitions to be read from this broker."""
        return bool(self._wanted.get(node))

    def connected(self, node: int, *, can_renew: bool) -> None:
        place = self.places[node]
        place.is_up = True
        place.can_renew = can_renew

    def is_hungry(self, now: float) -> bool:
        """Whether some broker should be asked for records now."""
        return any(place.in_flight is None and self._ask(place, now) is not None for place in self.places.values())

    def plan(self, node: int, now: float) -> ShareRequest | None:
        """The next request to this broker. It has to be answered: `answered`, or `lost`."""
        place = self.places[node]
        if place.in_flight is not None or now < place.not_before:
            return None
        wanted = self._wanted.get(node, {})
        self._note_renewals(place, now)
        if not place.session.is_open:
            if place.has_acks or place.has_renewals:  # the connection lives on, and with it the locks
                return place.fetch(wanted, Ask(0), now)
            return self._fetch(place, wanted, self._ask(place, now), now)
        if place.has_renewals:
            return place.renew(now)
        ask = self._ask(place, now)
        if place.has_acks and self._goes_alone(place, wanted, ask, now):
            return place.acknowledge(now)
        return self._fetch(place, wanted, ask, now)

    def parting(self, node: int, now: float) -> ShareRequest | None:
        """The next request of a consumer that is being closed: what is still to be acknowledged, as often as it takes,
        and then the end of the session, which releases the rest. None: there is nothing to be said."""
        place = self.places[node]
        if not place.has_acks:
            return place.farewell(now)
        if not place.session.is_open:
            return place.fetch(self._wanted.get(node, {}), Ask(0), now)
        return place.acknowledge(now)

    def _goes_alone(self, place: Place, wanted: Mapping[Slot, TopicPartition], ask: Ask | None, now: float) -> bool:
        """Whether acknowledgements are sent by themselves, now."""
        if place.has_strays(wanted):
            return True
        if ask is None:
            return place.is_urgent or now >= place.acks_due
        # A fetch gets nothing of a partition that is full of locks, not even of those that are given back with it.
        return len(wanted) > 1 and place.is_crowded(ask.records if self.terms.is_strict else MOST // 2)

    def _fetch(
        self, place: Place, wanted: Mapping[Slot, TopicPartition], ask: Ask | None, now: float
    ) -> ShareRequest | None:
        if ask is None:
            return None
        if self.terms.is_strict:
            self._nudged.clear()
        self._nudged.discard(place.node)
        return place.fetch(wanted, ask, now)

    def next_wake(self, node: int, now: float) -> float:
        """When to ask `plan` again, if nothing happens before."""
        place = self.places[node]
        times = [place.renew_at]
        if place.has_acks:
            times.append(place.acks_due)
        if place.not_before > now:
            times.append(place.not_before)
        return max(min(times), place.not_before)

    def _ask(self, place: Place, now: float) -> Ask | None:
        if not self._wanted.get(place.node) or not place.is_up or now < place.not_before:
            return None
        is_awaited = self._limit > 0 and now < self._until
        if (is_awaited or place.node in self._nudged) and not self.stock.count:
            wait = min(self._longest_wait, self._until - now) if is_awaited else 0.0
            return self._ask_in_turn(place, wait, now) if self.terms.is_strict else Ask(self._portion(place), wait)
        if self.terms.is_strict or not place.was_full or not self._pace.is_quick(now, self.lock_time):
            return None
        portion = self._portion(place)
        is_time = self._pace.is_time(self.stock.count, self._last_limit, portion, place.trip)
        return Ask(portion) if is_time else None

    @property
    def _longest_wait(self) -> float:
        """Acknowledgements and renewals wait behind a fetch: that must not take much of a lock's time."""
        return self.terms.max_wait if self.lock_time is None else min(self.terms.max_wait, self.lock_time / 8)

    def _portion(self, place: Place) -> int:
        """A poll's worth, and more where there is more."""
        if not place.was_full:
            return self._last_limit
        return self._pace.portion(self._last_limit, len(self._wanted[place.node]), place.asked)

    @property
    def is_acquiring(self) -> bool:
        """Whether a fetch for records is under way, or what it brought is being decoded."""
        return self.arriving > 0 or any(
            each.in_flight is not None and each.in_flight.ask.records > 0 for each in self.places.values()
        )

    def _ask_in_turn(self, place: Place, wait: float, now: float) -> Ask | None:
        if self.is_acquiring:
            return None
        able = [
            node for node in sorted(self._wanted) if self.places[node].is_up and self.places[node].not_before <= now
        ]
        if able[self._turn % len(able)] != place.node:
            return None
        if len(able) == 1:
            return Ask(self._last_limit, wait)
        return Ask(self._last_limit, 0.0 if self._empty_turns < len(able) else min(wait, _TURN))

    def turn_over(self, is_empty: bool) -> None:
        """In record_limit the next broker's turn has come."""
        self._turn += 1
        self._empty_turns = self._empty_turns + 1 if is_empty else 0

    # -- locks -------------------------------------------------------------------------------------------------

    def _look_for_renewals(self, now: float) -> None:
        for place in self.places.values():
            if place.is_up:
                place.renew_at = min(place.renew_at, now + (self.lock_time or math.inf) / 2)

    def _note_renewals(self, place: Place, now: float) -> None:
        """Locks of which half the time has passed. Of what is in hand only until max.poll.interval.ms after the poll
        that returned it: whoever takes longer than that is taken for stuck."""
        if now < place.renew_at:
            return
        place.renew_at = math.inf  # also if nothing can be renewed: else `next_wake` would stay in the past
        if not place.can_renew or self.lock_time is None:
            return
        margin = self.lock_time / 2

        def is_due(lease: Any) -> bool:
            if lease.is_doomed or lease.expires <= now:
                return False
            if lease.expires - now <= margin:
                return True
            place.renew_at = min(place.renew_at, lease.expires - margin)
            return False

        for lot in self.stock:
            if lot.holding.node == place.node and lot.holding.lost is None and is_due(lot.lease):
                lot.holding.renew(lot.records.runs(), lot.lease)
        if not self.terms.renews:
            return
        for holding in place.holdings.values():
            for run in list(holding.in_hand):
                taken_at = run.value.taken_at
                if taken_at is not None and now - taken_at < self.terms.max_poll_interval and is_due(run.value):
                    holding.renew([(run.first, run.last)], run.value)

    # -- trouble -----------------------------------------------------------------------------------------------

    def pause(self, place: Place, now: float) -> None:
        place.failures += 1
        place.not_before = now + self._backoff.seconds(place.failures, self._dice())

    def lost(self, node: int, error: HeadraceError) -> None:
        """The connection to the broker is gone, and with it the session and all locks."""
        place = self.places[node]
        place.session.broken()
        place.begun = place.begun.plus(True, True)  # whoever waits for what was to be sent next hears of its end now
        place.end()
        place.was_full = place.is_up = False
        place.is_urgent = False
        place.acks_due = place.renew_at = math.inf
        for holding in place.holdings.values():
            if outcome := holding.lose(error):
                self.outcomes.append(outcome)
        place.holdings = {}
