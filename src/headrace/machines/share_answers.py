"""What the answers to ShareFetch and ShareAcknowledge mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from ..acknowledge import GAP, AcknowledgeType
from ..errors import HeadraceError
from ..protocol.codes import NONE, is_retriable, kafka_error
from ..protocol.messages import SHARE_FETCH
from ..types import Node
from .cluster import Leader
from .session import Slot
from .share_holding import Holding, Lease
from .share_pace import MOST
from .share_place import Place, ShareRequest
from .share_planner import Planner
from .share_session import REFUSED
from .share_stock import Columns, Lot

# Somebody else leads the partition, or it is not there any more: metadata will tell.
_STALE = {
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
    ErrorCode.kafka_storage_error,
    ErrorCode.unknown_leader_epoch,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """The record bytes of one partition, and which offsets of them were acquired: (first, last, delivery count)."""

    holding: Holding
    records: memoryview | None
    acquired: tuple[tuple[int, int, int], ...]
    lease: Lease


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    arrivals: tuple[Arrival, ...] = ()
    is_stale: bool = False
    """Metadata should be refreshed."""


def answered(planner: Planner, request: ShareRequest, body: Any, now: float) -> Answer:
    """Takes an answer in. The records in it are to be decoded, and handed to `arrived` and `damaged`."""
    place = planner.places[request.node]
    place.end()
    place.session.answered(body.error_code)
    if body.error_code != NONE:
        return _refused(planner, place, request, body, now)
    place.failures = 0
    lock_time = getattr(body, "acquisition_lock_timeout", None)  # not in version 1 of ShareAcknowledge
    if lock_time:
        planner.lock_time = lock_time.total_seconds()
    found = {Slot(topic.topic_id, item.partition_index): item for topic in body.responses for item in topic.partitions}
    is_stale = _acknowledged(planner, request, found, now)
    arrivals: list[Arrival] = []
    if request.api is SHARE_FETCH:
        nodes = [Node(each.node_id, each.host, each.port, each.rack) for each in body.node_endpoints]
        has_failed = False
        for slot, item in found.items():
            has_failed |= _partition(planner, place, request, slot, item, nodes)
            if item.acquired_records:
                arrivals += _arrival(planner, request, slot, item)
        got = sum(map(_size, arrivals))
        planner.arriving += got
        is_stale |= has_failed
        if has_failed and not got:  # else the others of this broker are not to wait for it
            planner.pause(place, now)
        if asked := request.ask.records:
            # Locks that are not given back yet leave less room than was asked for.
            place.was_full = 2 * got >= asked or got >= MOST
            if got:
                place.took(now - request.sent_at)
            if planner.terms.is_strict:
                planner.turn_over(not got)
    if place.has_acks:
        place.acks_due = min(place.acks_due, now)
    return Answer(tuple(arrivals), is_stale)


def arrived(
    planner: Planner, arrival: Arrival, batches: Sequence[Columns], gaps: list[tuple[int, int]], now: float
) -> None:
    """The acquired records of a partition, in order, and the offsets among them that have none."""
    holding, lease = arrival.holding, arrival.lease
    planner.arriving -= _size(arrival)
    if holding.lost is not None:
        return
    if outcome := holding.acquired((first, last) for first, last, _ in arrival.acquired):
        planner.outcomes.append(outcome)
    if gaps:
        holding.settle(gaps, GAP, lease)
        planner.touch(holding, now)
    if holding.tp.topic not in planner.topics:  # not subscribed any more
        for records in batches:
            holding.settle(records.runs(), AcknowledgeType.RELEASE, lease)
        planner.touch(holding, now)
        return
    for records in batches:
        planner.stock.add(Lot(holding, records, lease))
    place = planner.places[holding.node]
    if planner.lock_time is not None:
        place.renew_at = min(place.renew_at, lease.expires - planner.lock_time / 2)


def damaged(
    planner: Planner, arrival: Arrival, ranges: list[tuple[int, int]], error: HeadraceError, now: float
) -> None:
    """Records that cannot be read, and never will: they are rejected, so that they do not come again and again."""
    planner.fault = error
    if arrival.holding.lost is None:
        arrival.holding.settle(ranges, AcknowledgeType.REJECT, arrival.lease)
        planner.touch(arrival.holding, now)


def _refused(planner: Planner, place: Place, request: ShareRequest, body: Any, now: float) -> Answer:
    code = body.error_code
    doing = f"{request.api} of group {planner.terms.group_id} to broker {place.node}"
    error = kafka_error(code, doing, body.error_message)
    if planner.terms.is_strict and request.ask.records:
        planner.turn_over(True)
    if request.is_renewal:  # what is still to be renewed is found once more
        place.renew_at = now
    if code in REFUSED and code != ErrorCode.invalid_request:
        for holding in request.acknowledged:
            holding.not_looked_at()
        planner.pause(place, now)
        if place.has_acks:
            place.acks_due = now
        return Answer()
    place.session.broken()
    _answer_all(planner, request, code, error, now)
    planner.pause(place, now)
    if not is_retriable(code):
        planner.fault = error
    return Answer(is_stale=True)


def _answer_all(planner: Planner, request: ShareRequest, code: int, error: HeadraceError, now: float) -> None:
    for holding in request.acknowledged:
        outcome = holding.renewed(error, 0.0) if request.is_renewal else holding.answered(code, error, now)
        if outcome is not None:
            planner.outcomes.append(outcome)


def _acknowledged(planner: Planner, request: ShareRequest, found: Mapping[Slot, Any], now: float) -> bool:
    """Whether the metadata turned out to be stale."""
    is_stale = False
    lock_time = planner.lock_time or 0.0
    for holding in request.acknowledged:
        doing = f"acknowledging {holding.tp} in group {planner.terms.group_id}"
        code, text = _ack_code(request, found.get(holding.slot))
        error = None if code == NONE else kafka_error(code, doing, text)
        if request.is_renewal:
            outcome = holding.renewed(error, request.sent_at + lock_time)
            place = planner.places[holding.node]
            place.renew_at = min(place.renew_at, request.sent_at + lock_time / 2 if error is None else now)
        else:
            outcome = holding.answered(code, error, now)
        if outcome is not None:
            planner.outcomes.append(outcome)
        if error is not None and is_retriable(code):
            is_stale |= code in _STALE
            planner.pause(planner.places[request.node], now)
    return is_stale


def _ack_code(request: ShareRequest, item: Any) -> tuple[int, str | None]:
    if item is None:
        return int(ErrorCode.unknown_server_error), "the answer says nothing about it"
    if request.api is SHARE_FETCH:
        return item.acknowledge_error_code, item.acknowledge_error_message
    return item.error_code, item.error_message


def _partition(planner: Planner, place: Place, request: ShareRequest, slot: Slot, item: Any, nodes: list[Node]) -> bool:
    """Whether it cannot be read, at this time or here."""
    code = item.error_code
    if code == NONE:
        return False
    tp = request.partitions.get(slot)
    if tp is not None and item.current_leader.leader_id >= 0:
        planner.cluster.hint(tp, Leader(item.current_leader.leader_id, item.current_leader.leader_epoch), nodes)
    if code not in _STALE and not is_retriable(code) and code != ErrorCode.unknown_server_error:
        doing = f"ShareFetch of {tp} in group {planner.terms.group_id} from broker {place.node}"
        planner.fault = kafka_error(code, doing, item.error_message)
    return True


def _size(arrival: Arrival) -> int:
    return sum(last - first + 1 for first, last, _ in arrival.acquired)


def _arrival(planner: Planner, request: ShareRequest, slot: Slot, item: Any) -> list[Arrival]:
    acquired = tuple((each.first_offset, each.last_offset, each.delivery_count) for each in item.acquired_records)
    # From when it was asked for, since nobody here knows when after that it was acquired.
    lease = Lease(request.sent_at + (planner.lock_time or 0.0))
    tp = request.partitions.get(slot)
    if tp is None:  # not in the session: nobody asked for it
        return []
    return [Arrival(planner.held(slot, tp, request.node), item.records, acquired, lease)]
