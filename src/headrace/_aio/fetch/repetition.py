"""A fetch that the receiving thread repeats natively, without the GIL, as long as responses are usual.

A stream that waits for new records sends the same request again and again: only the session's epoch and the offsets of
the partitions with new records differ. `direct_fetch.rs` does that between two `recv`, before Python knows of the
response. This is the Python side: the copy of the request that it works with.
"""

from __future__ import annotations

from ..._machines.cluster import TopicIdPartition
from ..._machines.fetch.session import SessionRequest
from ..._machines.fetch.standing_fetch import FetchPlan
from ..._net._kernel import DirectFetch
from ...config.consumer import ConsumerConfig


class RepeatedFetch:
    """The requests of one stream. Belongs to whoever plans them."""

    def __init__(self, config: ConsumerConfig, lane: str | None) -> None:
        self._config = config
        self._lane = lane
        self._read_committed = config.reads_committed
        self.fetch = self._new_fetch()
        self._changed: dict[TopicIdPartition, None] = {}  # since the last `prepare`

    def _new_fetch(self) -> DirectFetch:
        config = self._config
        return DirectFetch(
            client_id=config.client_id,
            min_bytes=config.fetch_min_bytes,
            read_committed=self._read_committed,
            rack=config.client_rack,
            check_crcs=config.check_crcs,
            max_batch_bytes=config.decompressed_batch_max_bytes,
            lane=self._lane,
        )

    def planned(self, plan: FetchPlan) -> None:
        """This is requested next, natively or not."""
        if self._read_committed != self._config.reads_committed:
            self._read_committed = self._config.reads_committed
            self.fetch, self._changed = self._new_fetch(), dict.fromkeys(plan.wants)
        self._changed.update(plan.changed)

    def prepare(self, plan: FetchPlan, request: SessionRequest, *, version: int, max_wait_ms: int, room: int) -> None:
        """The plan's request is to be repeated. Its records may take `room` bytes in memory."""
        changes = []
        for tip in self._changed:
            want = plan.wants.get(tip)
            details = None if want is None else (plan.asked[tip].tp.topic, *want)
            changes.append((tip, tip.topic_id.bytes, tip.partition, details))
        self._changed.clear()
        self.fetch.prepare(
            changes,
            version=version,
            max_wait_ms=max_wait_ms,
            max_bytes=plan.max_bytes,
            session_id=request.session_id,
            session_epoch=request.epoch,
            room=room,
        )
