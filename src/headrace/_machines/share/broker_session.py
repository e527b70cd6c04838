"""The requests of a share consumer to one broker, and the records that were acquired from it.

One request at a time: ShareFetch (which can acknowledge, too) or ShareAcknowledge. `planner.py` decides which.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from ..._protocol.messages import SHARE_ACKNOWLEDGE, SHARE_FETCH, Api
from ...types import TopicPartition
from ..cluster import TopicIdPartition
from .acquired import AcquiredRecords
from .session import ShareSession
from .sizing import MOST

_ROUND_TRIP = 0.01
_WEIGHT = 0.3  # of the newest round trip


@dataclasses.dataclass(frozen=True, slots=True)
class ShareSettings:
    """The settings of a share consumer that its machines need, in seconds."""

    group_id: str
    member_id: str
    is_explicit: bool = False
    is_strict: bool = False  # share.acquire.mode=record_limit
    renews: bool = False  # records in hand, in the background ...
    must_renew: bool = False  # ... and brokers have to support it
    max_poll_interval: float = 300.0
    max_wait: float = 0.5
    min_bytes: int = 1
    max_bytes: int = 50 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class ShareFetchSize:
    """How many records a ShareFetch asks for. With 0 it only opens the session, or updates its partitions."""

    records: int
    wait: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ShareRequest:
    """One request to one broker, on the connection that its session belongs to."""

    node: int
    api: Api
    fields: Mapping[str, Any]
    sent_at: float
    partitions: Mapping[TopicIdPartition, TopicPartition]
    """Those in the session of a ShareFetch."""
    acknowledged: tuple[AcquiredRecords, ...] = ()
    """Whose records it acknowledges ..."""
    is_renewal: bool = False
    """... or renews."""
    size: ShareFetchSize = ShareFetchSize(0)
    is_last: bool = False
    """It closes the session."""


class RequestCounts(NamedTuple):
    """How many requests have sent all pending acknowledgements, and how many all pending renewals."""

    acknowledgements: int = 0
    renewals: int = 0

    def plus(self, acknowledgements: bool, renewals: bool) -> RequestCounts:
        return RequestCounts(self.acknowledgements + acknowledgements, self.renewals + renewals)

    def covers(self, other: RequestCounts) -> bool:
        return self.acknowledgements >= other.acknowledgements and self.renewals >= other.renewals


class BrokerSession:
    def __init__(self, node: int, settings: ShareSettings) -> None:
        self.node = node
        self.share_session = ShareSession()
        self.acquired: dict[TopicIdPartition, AcquiredRecords] = {}
        self.in_flight: ShareRequest | None = None
        self.arriving = 0  # acquired offsets that are being decoded, and not in the buffer yet
        self.is_up = False  # there is a connection
        self.can_renew = False
        self.was_full = False  # the last answer had about as many records as were asked for
        self.asked = 0  # in the last fetch
        self.round_trip = _ROUND_TRIP  # recent seconds of a fetch
        self.is_urgent = False  # somebody waits for acknowledgements
        self.acks_due = math.inf  # when acknowledgements are sent, unless a fetch carries them before
        self.renew_at = math.inf  # when to look for locks to renew
        self.not_before = 0.0
        self.failures = 0
        self.begun = RequestCounts()  # the one in flight included
        self.ended = RequestCounts()
        self._settings = settings

    def acquired_of(self, tip: TopicIdPartition, tp: TopicPartition) -> AcquiredRecords:
        found = self.acquired.get(tip)
        if found is None or found.tp != tp:
            found = self.acquired[tip] = AcquiredRecords(tp, tip, self.node)
        return found

    @property
    def is_open(self) -> bool:
        return self.share_session.is_open

    @property
    def has_acks(self) -> bool:
        return any(acquired.has_decided for acquired in self.acquired.values())

    def is_crowded(self, room: int) -> bool:
        """Whether a partition has so many locks to give back that it has no room for this many more."""
        return any(acquired.decided_count > MOST - room for acquired in self.acquired.values())

    def has_strays(self, wanted: Collection[TopicIdPartition]) -> bool:
        """Whether there are acknowledgements for partitions that are no longer assigned. A ShareFetch with those would
        add the partitions to the session again."""
        return any(acquired.has_decided for tip, acquired in self.acquired.items() if tip not in wanted)

    @property
    def has_renewals(self) -> bool:
        return any(acquired.has_renewals for acquired in self.acquired.values())

    # -- requests ----------------------------------------------------------------------------------------------

    def fetch(
        self, wanted: Mapping[TopicIdPartition, TopicPartition], size: ShareFetchSize, now: float
    ) -> ShareRequest:
        settings = self._settings
        opens = not self.share_session.is_open
        update = self.share_session.fetch(wanted)
        acks: dict[TopicIdPartition, list[dict[str, Any]]] = {tip: [] for tip in update.add}
        acknowledging = (
            []
            if opens
            else [acquired for tip, acquired in self.acquired.items() if acquired.has_decided and tip in wanted]
        )
        for acquired in acknowledging:
            acks[acquired.tip] = acquired.send()
        fields = {
            "group_id": settings.group_id,
            "member_id": settings.member_id,
            "share_session_epoch": update.epoch,
            "max_wait": round(size.wait * 1000),
            "min_bytes": settings.min_bytes if size.records else 0,
            "max_bytes": settings.max_bytes if size.records else 0,
            "max_records": size.records,
            "batch_size": size.records,
            "share_acquire_mode": int(settings.is_strict),
            "is_renew_ack": False,
            "topics": _topics(acks),
            "forgotten_topics_data": [
                {"topic_id": topic, "partitions": numbers} for topic, numbers in _by_topic(update.forget).items()
            ],
        }
        self.asked = size.records or self.asked
        return self._begin(ShareRequest(self.node, SHARE_FETCH, fields, now, wanted, tuple(acknowledging), size=size))

    def acknowledge(self, now: float) -> ShareRequest:
        acknowledging = [acquired for acquired in self.acquired.values() if acquired.has_decided]
        acks = {acquired.tip: acquired.send() for acquired in acknowledging}
        fields = self._acknowledgement(self.share_session.acknowledge(), acks, False)
        return self._begin(ShareRequest(self.node, SHARE_ACKNOWLEDGE, fields, now, {}, tuple(acknowledging)))

    def renew(self, now: float) -> ShareRequest:
        acknowledging = [acquired for acquired in self.acquired.values() if acquired.has_renewals]
        acks = {acquired.tip: acquired.send_renewals() for acquired in acknowledging}
        fields = self._acknowledgement(self.share_session.acknowledge(), acks, True)
        return self._begin(ShareRequest(self.node, SHARE_ACKNOWLEDGE, fields, now, {}, tuple(acknowledging), True))

    def close_request(self, now: float) -> ShareRequest | None:
        """Closes the session, which releases all records that are not acknowledged."""
        epoch = self.share_session.close_request()
        if epoch is None:
            return None
        fields = self._acknowledgement(epoch, {}, False)
        return self._begin(ShareRequest(self.node, SHARE_ACKNOWLEDGE, fields, now, {}, is_last=True))

    def _acknowledgement(
        self, epoch: int, acks: Mapping[TopicIdPartition, list[dict[str, Any]]], is_renewal: bool
    ) -> dict[str, Any]:
        return {
            "group_id": self._settings.group_id,
            "member_id": self._settings.member_id,
            "share_session_epoch": epoch,
            "is_renew_ack": is_renewal,
            "topics": _topics(acks),
        }

    def _begin(self, request: ShareRequest) -> ShareRequest:
        self.in_flight = request
        acknowledges = not request.is_renewal and not (request.api is SHARE_FETCH and not self.share_session.is_open)
        self.begun = self.begun.plus(acknowledges, request.is_renewal)
        if acknowledges:
            self.is_urgent = False
            self.acks_due = math.inf
        return request

    def note_round_trip(self, seconds: float) -> None:
        """Of a fetch that returned records."""
        self.round_trip += _WEIGHT * (seconds - self.round_trip)

    def end(self) -> None:
        """The request in flight is answered, or never will be."""
        self.in_flight = None
        self.ended = self.begun


def _topics(acks: Mapping[TopicIdPartition, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    topics: dict[Any, list[dict[str, Any]]] = {}
    for tip, batches in acks.items():
        partition = {"partition_index": tip.partition, "acknowledgement_batches": batches}
        topics.setdefault(tip.topic_id, []).append(partition)
    return [{"topic_id": topic, "partitions": partitions} for topic, partitions in topics.items()]


def _by_topic(tips: Iterable[TopicIdPartition]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for tip in tips:
        found.setdefault(tip.topic_id, []).append(tip.partition)
    return found
