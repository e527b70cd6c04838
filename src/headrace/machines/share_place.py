"""A broker as a share group's member sees it: the session with it, what is held of its partitions, what is asked of it.

One request at a time: ShareFetch (which acknowledges, too) or ShareAcknowledge. `share_planner.py` decides which.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from ..protocol.messages import SHARE_ACKNOWLEDGE, SHARE_FETCH, Api
from ..types import TopicPartition
from .session import Slot
from .share_holding import Holding
from .share_pace import MOST
from .share_session import ShareSession

_TRIP = 0.01
_WEIGHT = 0.3  # of the newest round trip


@dataclasses.dataclass(frozen=True, slots=True)
class ShareTerms:
    """The settings of a share consumer that its machines need, in seconds."""

    group_id: str
    member_id: str
    is_explicit: bool = False
    is_strict: bool = False  # share.acquire.mode=record_limit
    renews: bool = False  # what is in hand, in the background ...
    must_renew: bool = False  # ... which a broker has to be able to
    max_poll_interval: float = 300.0
    max_wait: float = 0.5
    min_bytes: int = 1
    max_bytes: int = 50 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """What a ShareFetch asks for. No records: it only opens the session, or says which partitions are in it."""

    records: int
    wait: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ShareRequest:
    """One request to one broker, on the connection that its session belongs to."""

    node: int
    api: Api
    fields: Mapping[str, Any]
    sent_at: float
    partitions: Mapping[Slot, TopicPartition]
    """Those in the session of a ShareFetch."""
    acknowledged: tuple[Holding, ...] = ()
    """What is acknowledged in it is theirs ..."""
    is_renewal: bool = False
    """... or renewed."""
    ask: Ask = Ask(0)
    is_last: bool = False
    """It closes the session."""


class Talk(NamedTuple):
    """How many requests there were that acknowledge all that is to be, and that renew all that is to be."""

    acknowledgements: int = 0
    renewals: int = 0

    def plus(self, acknowledgements: bool, renewals: bool) -> Talk:
        return Talk(self.acknowledgements + acknowledgements, self.renewals + renewals)

    def covers(self, other: Talk) -> bool:
        return self.acknowledgements >= other.acknowledgements and self.renewals >= other.renewals


class Place:
    def __init__(self, node: int, terms: ShareTerms) -> None:
        self.node = node
        self.session = ShareSession()
        self.holdings: dict[Slot, Holding] = {}
        self.in_flight: ShareRequest | None = None
        self.is_up = False  # there is a connection
        self.can_renew = False
        self.was_full = False  # the last answer had about as much as was asked for
        self.asked = 0  # in the last fetch
        self.trip = _TRIP  # seconds that a fetch takes, of late
        self.is_urgent = False  # somebody waits for acknowledgements
        self.acks_due = math.inf  # when they are sent, should no fetch take them along before
        self.renew_at = math.inf  # when to look whose lock is to be renewed
        self.not_before = 0.0
        self.failures = 0
        self.begun = Talk()  # the one in flight included
        self.ended = Talk()
        self._terms = terms

    def holding(self, slot: Slot, tp: TopicPartition) -> Holding:
        found = self.holdings.get(slot)
        if found is None or found.tp != tp:
            found = self.holdings[slot] = Holding(tp, slot, self.node)
        return found

    @property
    def has_acks(self) -> bool:
        return any(holding.has_decided for holding in self.holdings.values())

    def is_crowded(self, room: int) -> bool:
        """Whether a partition has so many locks to be given back that it cannot have so many more."""
        return any(holding.decided_count > MOST - room for holding in self.holdings.values())

    def has_strays(self, wanted: Collection[Slot]) -> bool:
        """Whether something of partitions that are not assigned any more is to be acknowledged. In a ShareFetch that
        would add them to the session again."""
        return any(holding.has_decided for slot, holding in self.holdings.items() if slot not in wanted)

    @property
    def has_renewals(self) -> bool:
        return any(holding.has_renewals for holding in self.holdings.values())

    # -- requests ----------------------------------------------------------------------------------------------

    def fetch(self, wanted: Mapping[Slot, TopicPartition], ask: Ask, now: float) -> ShareRequest:
        terms = self._terms
        opens = not self.session.is_open
        said = self.session.fetch(wanted)
        acks: dict[Slot, list[dict[str, Any]]] = {slot: [] for slot in said.add}
        speakers = [] if opens else [h for slot, h in self.holdings.items() if h.has_decided and slot in wanted]
        for holding in speakers:
            acks[holding.slot] = holding.send()
        fields = {
            "group_id": terms.group_id,
            "member_id": terms.member_id,
            "share_session_epoch": said.epoch,
            "max_wait": round(ask.wait * 1000),
            "min_bytes": terms.min_bytes if ask.records else 0,
            "max_bytes": terms.max_bytes if ask.records else 0,
            "max_records": ask.records,
            "batch_size": ask.records,
            "share_acquire_mode": int(terms.is_strict),
            "is_renew_ack": False,
            "topics": _topics(acks),
            "forgotten_topics_data": [
                {"topic_id": topic, "partitions": numbers} for topic, numbers in _by_topic(said.forget).items()
            ],
        }
        self.asked = ask.records or self.asked
        return self._begin(ShareRequest(self.node, SHARE_FETCH, fields, now, wanted, tuple(speakers), ask=ask))

    def acknowledge(self, now: float) -> ShareRequest:
        speakers = [holding for holding in self.holdings.values() if holding.has_decided]
        acks = {holding.slot: holding.send() for holding in speakers}
        fields = self._acknowledgement(self.session.acknowledge(), acks, False)
        return self._begin(ShareRequest(self.node, SHARE_ACKNOWLEDGE, fields, now, {}, tuple(speakers)))

    def renew(self, now: float) -> ShareRequest:
        speakers = [holding for holding in self.holdings.values() if holding.has_renewals]
        acks = {holding.slot: holding.send_renewals() for holding in speakers}
        fields = self._acknowledgement(self.session.acknowledge(), acks, True)
        return self._begin(ShareRequest(self.node, SHARE_ACKNOWLEDGE, fields, now, {}, tuple(speakers), True))

    def farewell(self, now: float) -> ShareRequest | None:
        """Closes the session, which releases all that is not acknowledged."""
        epoch = self.session.farewell()
        if epoch is None:
            return None
        fields = self._acknowledgement(epoch, {}, False)
        return self._begin(ShareRequest(self.node, SHARE_ACKNOWLEDGE, fields, now, {}, is_last=True))

    def _acknowledgement(
        self, epoch: int, acks: Mapping[Slot, list[dict[str, Any]]], is_renewal: bool
    ) -> dict[str, Any]:
        return {
            "group_id": self._terms.group_id,
            "member_id": self._terms.member_id,
            "share_session_epoch": epoch,
            "is_renew_ack": is_renewal,
            "topics": _topics(acks),
        }

    def _begin(self, request: ShareRequest) -> ShareRequest:
        self.in_flight = request
        speaks = not request.is_renewal and not (request.api is SHARE_FETCH and not self.session.is_open)
        self.begun = self.begun.plus(speaks, request.is_renewal)
        if speaks:
            self.is_urgent = False
            self.acks_due = math.inf
        return request

    def took(self, seconds: float) -> None:
        """A round trip that brought records."""
        self.trip += _WEIGHT * (seconds - self.trip)

    def end(self) -> None:
        """The request in flight is answered, or will not be."""
        self.in_flight = None
        self.ended = self.begun


def _topics(acks: Mapping[Slot, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    topics: dict[Any, list[dict[str, Any]]] = {}
    for slot, batches in acks.items():
        partition = {"partition_index": slot.partition, "acknowledgement_batches": batches}
        topics.setdefault(slot.topic_id, []).append(partition)
    return [{"topic_id": topic, "partitions": partitions} for topic, partitions in topics.items()]


def _by_topic(slots: Iterable[Slot]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for slot in slots:
        found.setdefault(slot.topic_id, []).append(slot.partition)
    return found
