"""The membership of a consumer in its group, as the membership task sees it."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from ..._machines.group.actions import Action, ComputeAssignment, Send
from ..._machines.group.assignors import is_own
from ..._machines.group.classic import ClassicMember
from ..._machines.group.consumer_protocol import ConsumerProtocolMember
from ..._machines.group.leader import compute_assignment
from ..._machines.group.neighbours import HeldUp
from ..._protocol.codes import printable
from ...config.consumer import ConsumerConfig
from ...events import Event
from ..fetch.buffer import FetchBuffer
from ..network.client import Client
from .coordinator import Coordinator
from .rebalance import Rebalancer

# With more partitions and members than this, an assignor runs on a thread, so that heartbeats and fetches continue. An
# assignor of the user always does: nobody knows how long it takes.
_MANY = 2_000


class ConsumerMembership:
    def __init__(
        self, client: Client[ConsumerConfig], buffer: FetchBuffer, coordinator: Coordinator, rebalancer: Rebalancer
    ) -> None:
        self.group_id = rebalancer.group_id
        self.lock = buffer.lock
        self.longest_absence = rebalancer.longest_absence
        self.health = rebalancer.health
        self._client = client
        self._buffer = buffer
        self._coordinator = coordinator
        self._rebalancer = rebalancer

    @property
    def member(self) -> ClassicMember | ConsumerProtocolMember:
        return self._rebalancer.member

    @property
    def is_subscribed(self) -> bool:
        return self._rebalancer.is_subscribed

    @property
    def identity(self) -> str:
        identity = self.member.identity
        if not identity.member_id:
            return ""
        return f" (generation {identity.generation}, member {printable(identity.member_id, 200)})"

    @property
    def unresolved(self) -> frozenset[uuid.UUID]:
        return self.member.unresolved

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        return self._buffer.watch(task)

    async def carry_out(self, action: Action) -> Any:
        if isinstance(action, Send):
            return await self._coordinator.ask(action)
        await self._compute_assignment(action)
        return None

    async def _compute_assignment(self, action: ComputeAssignment) -> None:
        member = self.member
        assert isinstance(member, ClassicMember)
        with self.lock:
            topics = member.group_topics
        await self._client.fetch_unknown_topics(topics)
        with self.lock:
            cluster = self._client.cluster
            counts = {name: len(cluster.topics[name].partitions) for name in topics if name in cluster.topics}
        assignor = self._rebalancer.assignors[action.strategy]
        if not is_own(assignor) or sum(counts.values()) + len(action.members) > _MANY:
            assignments = await asyncio.to_thread(compute_assignment, assignor, action.members, counts)
        else:
            assignments = compute_assignment(assignor, action.members, counts)
        with self.lock:
            member.assigned(action, assignments, counts)

    def member_changed(self, now: float) -> None:
        self._buffer.poll_signal.notify()  # a poll raises what ended the membership

    def wake_polls(self) -> None:
        self._buffer.wake_all()
        self._buffer.poll_signal.notify()

    def report(self, event: Event) -> None:
        self._rebalancer.report(event)

    def leave_denied(self, leave_request: Send) -> None:
        if isinstance(self.member, ClassicMember):
            self.member.keep_member_id(leave_request)

    def is_waiting(self) -> bool:
        with self.lock:
            return not self.member.owned and self.member.failure is None

    def held_up(self) -> HeldUp | None:
        now = time.monotonic()
        with self.lock:
            member = self.member
            is_classic = isinstance(member, ClassicMember)
            is_asked = member.revoke_requested_at is not None if is_classic else bool(member.to_revoke)
            idle = self.longest_absence - (member.poll_deadline - now)
            return HeldUp(printable(member.identity.member_id, 200), idle) if is_asked and idle >= 0 else None
