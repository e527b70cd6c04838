"""What to fetch from which broker, and what an answer means.

A partition is asked for when it is READY, not paused, not in flight, not waiting out a backoff, and has less
than two fetches' worth of records left. So one partition's backlog never stops another's fetching, and nothing
is fetched that is not needed soon.

The budget: what is buffered, what is being decoded and what may still arrive stay below `queued.max.bytes`
together. Fetches ask for what is left of it; one that is likely to lie at the broker takes no more than half of
that, for it would keep the others from what it does not use. If nothing at all is buffered or on its way, one
fetch goes out however small the budget, so that a record larger than it is still read. Brokers that were held
back for want of budget stand in line, and those behind them leave room.

    answer                                                            what follows
    NONE                                                              decode; ask for what follows at once
    NONE with a preferred replica                                     ask that one (KIP-392)
    OFFSET_OUT_OF_RANGE from a follower                               ask the leader
    OFFSET_OUT_OF_RANGE from the leader                               a fault: the reset policy, when all is read
    NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH                       take the hint (KIP-951), refresh, again
    REPLICA_NOT_AVAILABLE, KAFKA_STORAGE_ERROR, OFFSET_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_…_ID   refresh, again after a backoff
    UNKNOWN_LEADER_EPOCH, UNKNOWN_SERVER_ERROR                        again after a backoff
    everything else                                                   a fault: raised by poll()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..config import ConsumerConfig
from ..protocol.codes import NONE, kafka_error
from ..types import Node, TopicPartition
from .assignment import Assignment
from .backoff import Backoff
from .cluster import Cluster, Leader
from .partition import PAUSED, WITHHELD, OutOfRange, PartitionState, Phase, PreferredReplica
from .session import Slot, Want

_MOVED = {ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch}
_REFRESH = _MOVED | {
    ErrorCode.replica_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.offset_not_available,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
    ErrorCode.leader_not_available,
}
_AGAIN = {ErrorCode.unknown_leader_epoch, ErrorCode.unknown_server_error}

# A first guess of how much larger records are than their bytes on the wire; then it is measured.
_FIRST_EXPANSION = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A partition in a fetch that is under way: what it was asked, and under which continuity."""

    tp: TopicPartition
    continuity: int
    offset: int


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A fetch to send. A parked one is likely to lie at the broker until something is written."""

    wants: Mapping[Slot, Want]
    asked: Mapping[Slot, Asked]
    max_bytes: int
    parked: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """Records to decode. `continuity` and `offset` say to what they belong, `room` what they are likely to take."""

    tp: TopicPartition
    continuity: int
    offset: int
    next_offset: int
    room: int
    records: memoryview
    aborted: tuple[tuple[int, int], ...]


class Fetching:
    """The decisions above. Guarded, with the assignment and the cluster, by whoever owns them."""

    def __init__(self, config: ConsumerConfig, assignment: Assignment, cluster: Cluster, budget: int) -> None:
        self._assignment = assignment
        self._cluster = cluster
        self._partition_bytes = config.max_partition_fetch_bytes
        self._fetch_bytes = config.fetch_max_bytes
        self._budget = budget
        self._read_committed = config.isolation_level == "read_committed"
        self._replica_age = config.metadata_max_age_ms / 1000
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._reserved = 0
        self._expansion = _FIRST_EXPANSION
        self._tick = 0
        self._starved: dict[int, None] = {}  # the brokers held back for want of budget, the longest waiting first
        self.was_refused = False  # a partition was: who waits for its records or its position has to look again

    # -- asking ----------------------------------------------------------------------------------------------

    def nodes(self, now: float) -> set[int]:
        """The brokers that some partition is to be fetched from."""
        found = {self._node_of(state, now) for state in self._assignment}
        return {node for node in found if node is not None}

    def plan(self, node: int, now: float) -> Plan | None:
        """The next fetch from this broker, or None if there is nothing to ask it."""
        hungry = [
            state
            for state in self._assignment
            if state.phase is Phase.READY
            and not state.in_flight
            and not state.silence & (PAUSED | WITHHELD)
            and state.may_be_asked_for(now)
            and state.topic_id is not None
            and state.backoff_until <= now
            and self._assignment.is_hungry(state)
            and self._node_of(state, now) == node
        ]
        if not hungry:
            self._starved.pop(node, None)
            return None
        hungry.sort(key=lambda state: state.served)
        parked = not any(state.has_backlog for state in hungry)
        max_bytes = self._grant(node, len(hungry), parked)
        if max_bytes <= 0:
            self._starved.setdefault(node)
            return None
        self._starved.pop(node, None)
        wants: dict[Slot, Want] = {}
        asked: dict[Slot, Asked] = {}
        for state in hungry:
            assert state.topic_id is not None
            slot = Slot(state.topic_id, state.tp.partition)
            wants[slot] = Want(state.fetch_offset, state.leader_epoch, self._partition_bytes)
            asked[slot] = Asked(state.tp, state.continuity, state.fetch_offset)
            state.in_flight = True
        self._reserved += max_bytes
        return Plan(wants, asked, max_bytes, parked)

    @property
    def room_for_records(self) -> int:
        """How many bytes of records decoding may add. The budget is kept by a guess of how large they become, and
        that can be wrong a thousandfold where a producer wants it: what passes twice the budget is put off."""
        return max(0, 2 * self._budget - sum(state.retained for state in self._assignment))

    @property
    def is_starved(self) -> bool:
        """Whether a fetch was held back for want of budget: look again when some is freed."""
        return bool(self._starved)

    def _grant(self, node: int, partitions: int, parked: bool) -> int:
        held = sum(state.retained + state.undecoded for state in self._assignment)
        ahead = list(self._starved).index(node) if node in self._starved else len(self._starved)
        left = int((self._budget - held) / self._expansion) - self._reserved - ahead * self._partition_bytes
        useful = min(self._fetch_bytes, partitions * self._partition_bytes)
        least = min(self._partition_bytes, useful)
        if left >= least:
            return min(useful, max(least, left // 2) if parked else left)
        if held == 0 and self._reserved == 0 and ahead == 0:
            return min(useful, self._budget)
        if self._drop_paused():
            return self._grant(node, partitions, parked)
        return 0

    def _drop_paused(self) -> bool:
        """Paused partitions may not hold the whole budget: what they have can be fetched again."""
        found = [state for state in self._assignment if state.paused and state.retained]
        for state in found:
            state.refetch()
        return bool(found)

    def _node_of(self, state: PartitionState, now: float) -> int | None:
        preferred = state.preferred
        if preferred is not None:
            if preferred.until > now and self._cluster.is_online(state.tp, preferred.node):
                return preferred.node
            state.preferred = None
        leader = self._cluster.leader(state.tp)
        return None if leader is None else leader.node

    def next_wake(self, now: float) -> float | None:
        """When a backoff ends that keeps a partition from being asked for."""
        return min((state.backoff_until for state in self._assignment if state.backoff_until > now), default=None)

    # -- answers ---------------------------------------------------------------------------------------------

    def failed(self, plan: Plan) -> None:
        """No answer came. The partitions are asked for again; a replica that does not answer is not preferred."""
        self._reserved -= plan.max_bytes
        for asked in plan.asked.values():
            state = self._current(asked)
            if state is not None:
                state.in_flight = False
                state.preferred = None

    def answered(self, node: int, plan: Plan, body: Any, now: float) -> tuple[list[tuple[Asked, Any]], bool]:
        """Takes a fetch's answer in. Returns the partitions with records, and whether metadata is stale."""
        self._reserved -= plan.max_bytes
        for asked in plan.asked.values():
            state = self._current(asked)
            if state is not None:
                state.in_flight = False
        stale = False
        with_records: list[tuple[Asked, Any]] = []
        unanswered = dict(plan.asked)
        for topic in body.responses:
            for data in topic.partitions:
                found = unanswered.pop(Slot(topic.topic_id, data.partition_index), None)
                state = self._current(found) if found is not None else None
                if found is None or state is None or state.fetch_offset != found.offset:
                    continue  # nobody asked, the user has moved on, or another broker was faster
                if data.error_code != NONE:
                    stale |= self._refused(node, state, data, body, now)
                elif self._accepted(state, data, now):
                    with_records.append((found, data))
        return with_records, stale

    def _current(self, asked: Asked) -> PartitionState | None:
        state = self._assignment.get(asked.tp)
        return state if state is not None and state.continuity == asked.continuity else None

    def _accepted(self, state: PartitionState, data: Any, now: float) -> bool:
        state.failures = 0
        state.answered()
        state.readable_end = data.last_stable_offset if self._read_committed else data.high_watermark
        if data.preferred_read_replica >= 0:
            state.preferred = PreferredReplica(data.preferred_read_replica, now + self._replica_age)
            return False
        if not data.records:
            return False
        self._tick += 1
        state.served = self._tick
        return True

    def arrived(self, asked: Asked, data: Any, next_offset: int) -> Arrival:
        """The partition goes on being fetched at `next_offset` while its records are decoded."""
        room = int(len(data.records) * self._expansion)
        self._assignment.state(asked.tp).arrived(room, next_offset)
        aborted = tuple((item.producer_id, item.first_offset) for item in data.aborted_transactions or ())
        return Arrival(asked.tp, asked.continuity, asked.offset, next_offset, room, data.records, aborted)

    def measured(self, wire: int, decoded: int) -> None:
        """How much room records took that came in so many bytes."""
        if wire > 4096:
            self._expansion += 0.2 * (max(1.0, decoded / wire) - self._expansion)

    def _refused(self, node: int, state: PartitionState, data: Any, body: Any, now: float) -> bool:
        """An error for one partition. True if metadata has to be refreshed."""
        self.was_refused = True
        code = data.error_code
        preferred, state.preferred = state.preferred, None
        if code == ErrorCode.offset_out_of_range:
            leader = self._cluster.leader(state.tp)
            if preferred is None and (leader is None or leader.node == node):
                state.fault = OutOfRange(state.fetch_offset)
            return False
        if code in _REFRESH or code in _AGAIN:
            state.answered()
            hinted = code in _MOVED and self._hint(state.tp, data, body)
            if not hinted:
                self._back_off(state, now)
            return code in _REFRESH
        state.refuse(kafka_error(code, f"Fetch of {state.tp} at offset {state.fetch_offset}"), now)
        return False

    def _back_off(self, state: PartitionState, now: float) -> None:
        state.failures += 1
        state.backoff_until = now + self._backoff.seconds(state.failures, 0.5)

    def _hint(self, tp: TopicPartition, data: Any, body: Any) -> bool:
        hint = getattr(data, "current_leader", None)
        if hint is None or hint.leader_id < 0:
            return False
        endpoints: Iterable[Any] = getattr(body, "node_endpoints", None) or ()
        nodes = [Node(item.node_id, item.host, item.port, item.rack) for item in endpoints]
        if not self._cluster.hint(tp, Leader(hint.leader_id, hint.leader_epoch), nodes):
            return False
        self._assignment.follow(self._cluster)
        return True
