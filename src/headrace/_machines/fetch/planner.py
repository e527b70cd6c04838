"""What to fetch from which broker, and what a response means.

A partition is fetched when it is READY, not paused, not in flight, not in a backoff, and has less than two fetches'
worth of records left. So a full buffer of one partition never stops the fetching of another, and nothing is fetched
that is not needed soon.

The budget: buffered records, those that are being decoded and those that may still arrive stay below `queued.max.bytes`
together. Fetches request what is left of it. One that the broker is likely to park takes no more than half of that: it
would keep the others from what it does not use. If nothing at all is buffered or on its way, one fetch is sent however
small the budget, so that a record larger than it is still read. Brokers that are over budget wait in line, and those
behind them leave room.

    response                                                          what follows
    NONE                                                              decode; fetch the following offset at once
    NONE with a preferred replica                                     fetch from that one (KIP-392)
    OFFSET_OUT_OF_RANGE from a follower                               fetch from the leader
    OFFSET_OUT_OF_RANGE from the leader                               a fault: the reset policy, when all is read
    NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH                       use the hint (KIP-951), refresh, again
    REPLICA_NOT_AVAILABLE, KAFKA_STORAGE_ERROR, OFFSET_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_…_ID   refresh, again after a backoff
    UNKNOWN_LEADER_EPOCH, UNKNOWN_SERVER_ERROR                        again after a backoff
    everything else                                                   a fault: raised by poll()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from ..._protocol.codes import NONE, kafka_error
from ...config.consumer import ConsumerConfig
from ...types import Node, TopicPartition
from ..backoff import Backoff
from ..cluster import Cluster, Leader, TopicIdPartition
from .assignment import Assignment
from .partition import PAUSED, WITHHELD, Chunk, OutOfRange, PartitionState, Phase, PreferredReplica
from .session import PartitionRequest
from .standing_fetch import FetchPlan, InFlightPartition, StandingFetch

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
class FetchedRecords:
    """Records to decode: of which position version and offset, and how many bytes they will likely take (`room`)."""

    tp: TopicPartition
    position_version: int
    offset: int
    next_offset: int
    room: int
    records: memoryview
    aborted: tuple[tuple[int, int], ...]


class Answered(NamedTuple):
    """What a response brings: the partitions with records, whether metadata is stale, and whether a partition is to be
    fetched from another broker now."""

    with_records: list[tuple[InFlightPartition, Any]]
    is_stale: bool
    has_moved: bool


class RepeatedPartition(NamedTuple):
    """A partition of a usual response after which its fetch was repeated, from `next_offset` on. `size` is that of the
    bytes received; without any, there are no records."""

    tip: TopicIdPartition
    high_watermark: int
    last_stable_offset: int
    next_offset: int
    size: int
    records: Chunk | None


class Repeated(NamedTuple):
    """The request that followed a usual response, the partitions in it with other offsets than before, the bytes of
    records that were received, and whether the next response may be followed in the same way."""

    plan: FetchPlan
    sent: dict[TopicIdPartition, PartitionRequest]
    size: int
    may_continue: bool


class FetchPlanner:
    """The decisions above. The owner of the assignment and the cluster locks."""

    def __init__(self, config: ConsumerConfig, assignment: Assignment, cluster: Cluster, budget: int) -> None:
        self._assignment = assignment
        self._cluster = cluster
        self._partition_bytes = config.max_partition_fetch_bytes
        self._fetch_bytes = config.fetch_max_bytes
        self._budget = budget
        self._config = config
        self._replica_age = config.metadata_max_age_ms / 1000
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._reserved = 0
        self._expansion = _FIRST_EXPANSION
        self._tick = 0
        self._nodes: frozenset[int] = frozenset()
        self._nodes_version = -1  # of the assignment with which they were found
        self._over_budget: dict[int, None] = {}  # brokers for which no budget was left, the longest waiting first
        self.was_refused = False  # a partition was: polls and calls that wait for it have to look again

    # -- requests --------------------------------------------------------------------------------------------

    def nodes(self, now: float) -> frozenset[int]:
        """The brokers that partitions are to be fetched from, and perhaps some that they were fetched from."""
        if self._nodes_version != self._assignment.version:
            self._nodes_version = self._assignment.version
            found = {self._node_of(state, now) for state in self._assignment}
            self._nodes = frozenset(node for node in found if node is not None)
        return self._nodes

    def plan(self, fetch: StandingFetch, now: float) -> FetchPlan | None:
        """The next request of a stream, or None if there is nothing to fetch."""
        assignment = self._assignment
        if self._is_outdated(fetch, now):
            self._release(fetch)
            fetch.assignment_version = assignment.version
        self._remove_touched(fetch)
        node = fetch.node
        joining = [
            state for state in assignment.free if self._needs_fetch(state, now) and self._node_of(state, now) == node
        ]
        if not joining and not fetch.wants:
            self._over_budget.pop(node, None)
            return None
        joining.sort(key=lambda state: state.served)
        parked = not fetch.unfetched and not any(state.has_unfetched for state in joining)
        max_bytes = self._grant(node, len(fetch.wants) + len(joining), parked)
        if max_bytes <= 0:
            self._release(fetch)
            self._over_budget.setdefault(node)
            return None
        self._over_budget.pop(node, None)
        for state in joining:
            self._join(fetch, state)
        self._reserved += max_bytes
        return fetch.start(max_bytes, parked)

    def _is_outdated(self, fetch: StandingFetch, now: float) -> bool:
        """Whether some of its partitions may have to be fetched from another broker, or not at all."""
        return fetch.assignment_version != self._assignment.version or fetch.expires <= now

    def _needs_fetch(self, state: PartitionState, now: float) -> bool:
        return (
            state.phase is Phase.READY
            and not state.blocked_by & (PAUSED | WITHHELD)
            and state.may_be_asked_for(now)
            and state.topic_id is not None
            and state.backoff_until <= now
            and self._assignment.is_running_low(state)
            and self._assignment.get(state.tp) is state
        )

    def _join(self, fetch: StandingFetch, state: PartitionState) -> None:
        assert state.topic_id is not None
        tip = TopicIdPartition(state.topic_id, state.tp.partition)
        want = PartitionRequest(state.fetch_offset, state.leader_epoch, self._partition_bytes)
        asked = InFlightPartition(state.tp, state.position_version, state.fetch_offset)
        fetch.join(tip, want, asked, state.has_unfetched)
        if state.preferred is not None:
            fetch.expires = min(fetch.expires, state.preferred.until)
        state.take_off(fetch)

    def _remove_touched(self, fetch: StandingFetch) -> None:
        """Partitions that were sought, paused or given up while they were in the fetch."""
        for tip in fetch.touched:
            asked = fetch.asked.get(tip)
            state = None if asked is None else self._current(asked)
            if state is None or not state.is_in(fetch):
                fetch.leave(tip)
            elif state.blocked_by & (PAUSED | WITHHELD):
                fetch.leave(tip)
                state.land()
        fetch.touched.clear()

    def release(self, fetch: StandingFetch) -> None:
        """The stream has ended, with a request under way or without."""
        if fetch.under_way is not None:
            self._end(fetch.under_way)
        self._release(fetch)

    def _release(self, fetch: StandingFetch) -> None:
        for asked in fetch.leave_all():
            self._land(fetch, asked)
        fetch.touched.clear()

    def _land(self, fetch: StandingFetch, asked: InFlightPartition) -> PartitionState | None:
        """The partition, if it is still read where the fetch began."""
        state = self._current(asked)
        if state is not None and state.is_in(fetch):
            state.land()
        return state

    @property
    def room_for_records(self) -> int:
        """How many bytes of records decoding may add. The budget relies on a guess of how large they become, which a
        hostile producer can make wrong a thousandfold: what exceeds twice the budget is put off."""
        return max(0, 2 * self._budget - self._assignment.retained)

    @property
    def room_for_repetition(self) -> int:
        """The same for each response of a fetch that is repeated while it `has_room`: what is buffered then stays below
        the budget, but is not known while it is decoded."""
        return min(self._budget, self.room_for_records)

    @property
    def is_over_budget(self) -> bool:
        """Whether a fetch waits for budget: look again when some is freed."""
        return bool(self._over_budget)

    def _grant(self, node: int, partitions: int, parked: bool) -> int:
        held = self._assignment.retained + self._assignment.undecoded
        ahead = list(self._over_budget).index(node) if node in self._over_budget else len(self._over_budget)
        left = int((self._budget - held) / self._expansion) - self._reserved - ahead * self._partition_bytes
        useful = min(self._fetch_bytes, partitions * self._partition_bytes)
        least = min(self._partition_bytes, useful)
        if left >= least:
            return min(useful, max(least, left // 2) if parked else left)
        if held == 0 and self._reserved == 0 and ahead == 0:
            return min(useful, self._budget)
        if self._assignment.drop_paused():
            return self._grant(node, partitions, parked)
        return 0

    def _node_of(self, state: PartitionState, now: float) -> int | None:
        preferred = state.preferred
        if preferred is not None:
            if preferred.until > now and self._cluster.is_online(state.tp, preferred.node):
                return preferred.node
            state.preferred = None
        leader = self._cluster.leader(state.tp)
        return None if leader is None else leader.node

    def next_wake(self, now: float) -> float | None:
        """When the next backoff of a partition ends."""
        free = self._assignment.free
        return min((state.backoff_until for state in free if state.backoff_until > now), default=None)

    # -- responses -------------------------------------------------------------------------------------------

    def failed(self, plan: FetchPlan | None) -> list[TopicPartition]:
        """No response came, or it was an error. The partitions are fetched again; a replica that does not respond is
        not preferred. Returns the partitions. Nothing happens if the request has ended already."""
        if plan is None or not self._end(plan):
            return []
        left = plan.fetch.leave_all()
        for asked in left:
            state = self._land(plan.fetch, asked)
            if state is not None:
                state.preferred = None
        plan.fetch.touched.clear()
        return [asked.tp for asked in left]

    def answered(self, plan: FetchPlan, body: Any, now: float) -> Answered:
        """Applies the response to a fetch, if it has not ended already. Partitions that the response does not list have
        nothing new: they stay in the fetch."""
        fetch = plan.fetch
        stale = moved = False
        with_records: list[tuple[InFlightPartition, Any]] = []
        if not self._end(plan):
            return Answered(with_records, stale, moved)
        for topic in body.responses:
            for data in topic.partitions:
                found = fetch.leave(TopicIdPartition(topic.topic_id, data.partition_index))
                state = self._land(fetch, found) if found is not None else None
                if found is None or state is None or state.fetch_offset != found.offset:
                    continue  # it was not requested, the user has sought, or another broker was faster
                if data.error_code != NONE:
                    stale |= self._refused(fetch.node, state, data, body, now)
                elif self._accepted(state, data, now):
                    with_records.append((found, data))
                    continue
                moved |= self._node_of(state, now) != fetch.node
        is_outdated = self._is_outdated(fetch, now)
        if is_outdated or not fetch.keeps:
            self._release(fetch)
        return Answered(with_records, stale, moved or is_outdated)

    def repeated(self, plan: FetchPlan, partitions: Iterable[RepeatedPartition], now: float) -> Repeated | None:
        """Applies a usual response to a fetch that the broker parked. The same fetch was sent again without asking
        here, so this notes what was requested, and whether the next one should be planned. None if the fetch has ended
        before: then nothing has happened."""
        fetch = plan.fetch
        if fetch.under_way is not plan:
            return None
        sent: dict[TopicIdPartition, PartitionRequest] = {}
        received = 0
        for tip, high_watermark, last_stable_offset, next_offset, size, records in partitions:
            received += size
            asked = fetch.asked[tip]
            state = self._current(asked)
            if next_offset != asked.offset:
                sent[tip] = fetch.advance(tip, asked, next_offset)
            if state is None or not state.is_in(fetch) or state.fetch_offset != asked.offset:
                fetch.touch(tip)  # the user has sought: what was requested is not wanted
                continue
            state.failures = 0
            state.end_refusal()
            state.readable_end = last_stable_offset if self._config.reads_committed else high_watermark
            if records is None or next_offset == asked.offset:  # the same records again, in the same response
                continue
            self._tick += 1
            state.served = self._tick
            state.arrived(0, next_offset)
            state.decoded(asked.offset, 0, records, next_offset)
            self.measured(size, records.nbytes)
            if state.is_in(fetch) and state.fetch_offset != next_offset:
                state.land()  # what follows was read already, by its last owner: it is requested further on
            elif not self._assignment.is_running_low(state):
                fetch.touch(tip)
        may_continue = not (fetch.touched or self._over_budget or self._is_outdated(fetch, now)) and self.has_room
        return Repeated(fetch.repeat(plan), sent, received, may_continue)

    @property
    def has_room(self) -> bool:
        """Whether what was requested is likely to fit into the budget."""
        held = self._assignment.retained + self._assignment.undecoded
        return int((self._budget - held) / self._expansion) >= self._reserved

    def _end(self, plan: FetchPlan) -> bool:
        if plan.fetch.under_way is not plan:
            return False
        plan.fetch.under_way = None
        self._reserved -= plan.max_bytes
        return True

    def _current(self, asked: InFlightPartition) -> PartitionState | None:
        state = self._assignment.get(asked.tp)
        return state if state is not None and state.position_version == asked.position_version else None

    def _accepted(self, state: PartitionState, data: Any, now: float) -> bool:
        state.failures = 0
        state.end_refusal()
        state.readable_end = data.last_stable_offset if self._config.reads_committed else data.high_watermark
        if data.preferred_read_replica >= 0:
            state.preferred = PreferredReplica(data.preferred_read_replica, now + self._replica_age)
            self._nodes |= {data.preferred_read_replica}
            return False
        if not data.records:
            return False
        self._tick += 1
        state.served = self._tick
        return True

    def arrived(self, asked: InFlightPartition, data: Any, next_offset: int) -> FetchedRecords:
        """The partition is fetched from `next_offset` on while these records are decoded."""
        room = int(len(data.records) * self._expansion)
        self._assignment.state(asked.tp).arrived(room, next_offset)
        aborted = tuple((item.producer_id, item.first_offset) for item in data.aborted_transactions or ())
        return FetchedRecords(asked.tp, asked.position_version, asked.offset, next_offset, room, data.records, aborted)

    def measured(self, wire: int, decoded: int) -> None:
        """How many bytes records take in memory that had `wire` bytes in the response."""
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
            state.end_refusal()
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
