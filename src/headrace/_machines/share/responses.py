"""Answers to ShareFetch and ShareAcknowledge, and what the planner does with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from ..._protocol.codes import NONE, is_retriable, kafka_error
from ..._protocol.messages import SHARE_FETCH
from ...errors import HeadraceError
from ...types import AcknowledgeType, Node
from ..cluster import Leader, TopicIdPartition
from .acquired import AcquiredRecords, AcquisitionLock
from .broker_session import BrokerSession, ShareRequest
from .buffer import AcquiredBatch, RecordColumns
from .offset_map import GAP
from .planner import SharePlanner
from .session import REFUSED
from .sizing import MOST

# The partition has another leader, or no longer exists: refresh the metadata.
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
class AcquiredData:
    """The record bytes of one partition, and the offset ranges that were acquired: (first, last, delivery count)."""

    acquired: AcquiredRecords
    records: memoryview | None
    ranges: tuple[tuple[int, int, int], ...]
    lock: AcquisitionLock


@dataclasses.dataclass(frozen=True, slots=True)
class ShareResponse:
    arrivals: tuple[AcquiredData, ...] = ()
    is_stale: bool = False
    """Metadata should be refreshed."""


def handle_response(planner: SharePlanner, request: ShareRequest, body: Any, now: float) -> ShareResponse:
    """The caller decodes the records in the result, and passes them to `buffer_records` and `reject_damaged`."""
    session = planner.sessions[request.node]
    session.end()
    session.share_session.answered(body.error_code)
    if body.error_code != NONE:
        return _refused(planner, session, request, body, now)
    session.failures = 0
    lock_timeout = getattr(body, "acquisition_lock_timeout", None)  # not in version 1 of ShareAcknowledge
    if lock_timeout:
        planner.lock_timeout = lock_timeout.total_seconds()
    found = {
        TopicIdPartition(topic.topic_id, item.partition_index): item
        for topic in body.responses
        for item in topic.partitions
    }
    is_stale = _acknowledged(planner, request, found, now)
    arrivals: list[AcquiredData] = []
    if request.api is SHARE_FETCH:
        nodes = [Node(each.node_id, each.host, each.port, each.rack) for each in body.node_endpoints]
        has_failed = False
        for tip, item in found.items():
            has_failed |= _partition(planner, session, request, tip, item, nodes)
            if item.acquired_records:
                arrivals += _arrival(planner, request, tip, item)
        got = sum(map(_size, arrivals))
        session.arriving += got
        is_stale |= has_failed
        if has_failed and not got:  # otherwise the other partitions of this broker need not wait
            planner.pause(session, now)
        if asked := request.size.records:
            # Locks that are not given back yet leave less room than the fetch asked for.
            session.was_full = 2 * got >= asked or got >= MOST
            if got:
                session.note_round_trip(now - request.sent_at)
            if planner.settings.is_strict:
                planner.end_turn(not got)
    if session.has_acks:
        session.acks_due = min(session.acks_due, now)
    return ShareResponse(tuple(arrivals), is_stale)


def buffer_records(
    planner: SharePlanner,
    arrival: AcquiredData,
    batches: Sequence[RecordColumns],
    gaps: list[tuple[int, int]],
    now: float,
) -> None:
    """The acquired records of a partition, in order, and the acquired offsets without a record."""
    acquired, lock = arrival.acquired, arrival.lock
    if acquired.lost is not None:  # with its session, whose count of what arrives starts again
        return
    planner.sessions[acquired.node].arriving -= _size(arrival)
    if outcome := acquired.acquire((first, last) for first, last, _ in arrival.ranges):
        planner.outcomes.append(outcome)
    if gaps:
        acquired.decide_unseen(gaps, GAP, lock)
        planner.schedule_acks(acquired, now)
    if acquired.tp.topic not in planner.topics:  # no longer subscribed
        for records in batches:
            acquired.decide_unseen(records.runs(), AcknowledgeType.RELEASE, lock)
        planner.schedule_acks(acquired, now)
        return
    for records in batches:
        planner.buffer.add(AcquiredBatch(acquired, records, lock))
    session = planner.sessions[acquired.node]
    if planner.lock_timeout is not None:
        session.renew_at = min(session.renew_at, lock.expires - planner.lock_timeout / 2)


def reject_damaged(
    planner: SharePlanner, arrival: AcquiredData, ranges: list[tuple[int, int]], error: HeadraceError, now: float
) -> None:
    """Records that cannot be decoded are rejected, so that they are not delivered again and again."""
    planner.fault = error
    if arrival.acquired.lost is None:
        arrival.acquired.decide_unseen(ranges, AcknowledgeType.REJECT, arrival.lock)
        planner.schedule_acks(arrival.acquired, now)


def _refused(
    planner: SharePlanner, session: BrokerSession, request: ShareRequest, body: Any, now: float
) -> ShareResponse:
    code = body.error_code
    doing = f"{request.api} of group {planner.settings.group_id} to broker {session.node}"
    error = kafka_error(code, doing, body.error_message)
    if planner.settings.is_strict and request.size.records:
        planner.end_turn(True)
    if request.is_renewal:  # the planner looks again for locks to renew
        session.renew_at = now
    if code in REFUSED and code != ErrorCode.invalid_request:
        for acquired in request.acknowledged:
            acquired.resend()
        planner.pause(session, now)
        if session.has_acks:
            session.acks_due = now
        return ShareResponse()
    session.share_session.broken()
    _answer_all(planner, request, code, error, now)
    planner.pause(session, now)
    if not is_retriable(code):
        planner.fault = error
    return ShareResponse(is_stale=True)


def _answer_all(planner: SharePlanner, request: ShareRequest, code: int, error: HeadraceError, now: float) -> None:
    for acquired in request.acknowledged:
        outcome = acquired.renewed(error, 0.0) if request.is_renewal else acquired.answered(code, error, now)
        if outcome is not None:
            planner.outcomes.append(outcome)


def _acknowledged(
    planner: SharePlanner, request: ShareRequest, found: Mapping[TopicIdPartition, Any], now: float
) -> bool:
    """Returns whether the metadata is stale."""
    is_stale = False
    lock_timeout = planner.lock_timeout or 0.0
    for acquired in request.acknowledged:
        doing = f"acknowledging {acquired.tp} in group {planner.settings.group_id}"
        code, text = _ack_code(request, found.get(acquired.tip))
        error = None if code == NONE else kafka_error(code, doing, text)
        if request.is_renewal:
            outcome = acquired.renewed(error, request.sent_at + lock_timeout)
            session = planner.sessions[acquired.node]
            session.renew_at = min(session.renew_at, request.sent_at + lock_timeout / 2 if error is None else now)
        else:
            outcome = acquired.answered(code, error, now)
        if outcome is not None:
            planner.outcomes.append(outcome)
        if error is not None and is_retriable(code):
            is_stale |= code in _STALE
            planner.pause(planner.sessions[request.node], now)
    return is_stale


def _ack_code(request: ShareRequest, item: Any) -> tuple[int, str | None]:
    if item is None:
        return int(ErrorCode.unknown_server_error), "the response does not contain it"
    if request.api is SHARE_FETCH:
        return item.acknowledge_error_code, item.acknowledge_error_message
    return item.error_code, item.error_message


def _partition(
    planner: SharePlanner,
    session: BrokerSession,
    request: ShareRequest,
    tip: TopicIdPartition,
    item: Any,
    nodes: list[Node],
) -> bool:
    """Returns whether the partition cannot be fetched from this broker now."""
    code = item.error_code
    if code == NONE:
        return False
    tp = request.partitions.get(tip)
    if tp is not None and item.current_leader.leader_id >= 0:
        planner.cluster.hint(tp, Leader(item.current_leader.leader_id, item.current_leader.leader_epoch), nodes)
    if code not in _STALE and not is_retriable(code) and code != ErrorCode.unknown_server_error:
        doing = f"ShareFetch of {tp} in group {planner.settings.group_id} from broker {session.node}"
        planner.fault = kafka_error(code, doing, item.error_message)
    return True


def _size(arrival: AcquiredData) -> int:
    return sum(last - first + 1 for first, last, _ in arrival.ranges)


def _arrival(planner: SharePlanner, request: ShareRequest, tip: TopicIdPartition, item: Any) -> list[AcquiredData]:
    ranges = tuple((each.first_offset, each.last_offset, each.delivery_count) for each in item.acquired_records)
    # Counted from the request, because nobody here knows when the broker acquired them after that.
    lock = AcquisitionLock(request.sent_at + (planner.lock_timeout or 0.0))
    tp = request.partitions.get(tip)
    if tp is None:  # not in the session
        return []
    return [AcquiredData(planner.acquired_of(tip, tp, request.node), item.records, ranges, lock)]
