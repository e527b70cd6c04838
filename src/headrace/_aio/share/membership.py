"""The membership of a share consumer in its group, as the membership task sees it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from ..._machines.group.actions import Send
from ..._machines.group.neighbours import HeldUp
from ..._machines.share.member import NEEDS, ShareMember, ShareState
from ..._protocol.codes import topics_denied
from ...config.share import ShareConsumerConfig
from ...errors import HeadraceError, NetworkError, RequestTimeoutError, UnsupportedVersionError
from ...events import Event
from ..group.coordinator import Coordinator
from ..network.client import Client
from .buffer import ShareFetchBuffer
from .sessions import ShareSessions, share_version


class ShareMembership:
    is_subscribed = True
    """The runtime of a share consumer is made by a poll, which needs a subscription."""

    def __init__(
        self,
        config: ShareConsumerConfig,
        buffer: ShareFetchBuffer,
        client: Client[ShareConsumerConfig],
        coordinator: Coordinator,
        sessions: ShareSessions,
    ) -> None:
        self.group_id = buffer.member.group_id
        self.lock = buffer.lock
        self.longest_absence = config.max_poll_interval_ms / 1000
        self.health = buffer.health
        self.unresolved: frozenset[uuid.UUID] = frozenset()
        self._buffer = buffer
        self._client = client
        self._coordinator = coordinator
        self._sessions = sessions
        self._is_checked = False

    @property
    def member(self) -> ShareMember:
        return self._buffer.member

    @property
    def identity(self) -> str:
        return f" (epoch {self.member.epoch}, member {self.member.member_id})"

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        return self._buffer.watch(task)

    async def carry_out(self, action: Send) -> Any:
        await self._check_versions()
        try:
            return await self._coordinator.ask(action)
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"{error} ({NEEDS})") from None

    async def _check_versions(self) -> None:
        """Before joining, so that the first poll raises what the brokers lack, and not a poll after the assignment."""
        if self._is_checked:
            return
        with self.lock:
            is_known = bool(self._buffer.cluster.brokers)
        if not is_known:
            await self._client.fetch_metadata(())
        last: HeadraceError = NetworkError("no broker is known")
        for node in list(self._buffer.cluster.brokers):
            try:
                connection = await self._client.connection(node)
            except (NetworkError, RequestTimeoutError) as error:
                last = error
                continue
            share_version(connection, self._buffer.planner.settings)
            self._is_checked = True
            return
        raise last

    def member_changed(self, now: float) -> None:
        self.follow_assignment()
        if self.member.state is ShareState.AWAY:
            self._buffer.planner.release_buffered(now)

    def follow_assignment(self) -> None:
        """Fetches from the leaders of what is assigned now. Called with the lock held."""
        self.unresolved = self._buffer.planner.follow(self.member.assignment)

    def follow_metadata(self) -> None:
        """Called with the lock held."""
        member, cluster = self.member, self._buffer.cluster
        self.follow_assignment()
        member.denied = cluster.denied(member.topics)
        if (invalid := cluster.invalid_topic_error(member.topics)) is not None:
            member.pending_error = invalid
        if member.denied:
            member.pending_error = topics_denied(member.denied)
            self._buffer.poll_signal.notify()

    def wake_polls(self) -> None:
        self._sessions.wake()
        self._buffer.poll_signal.notify()

    def report(self, event: Event) -> None:
        self._buffer.report(event)

    def leave_denied(self, leave_request: Send) -> None:
        """The next membership may use the same id at once: it begins with epoch 0."""

    def is_waiting(self) -> bool:
        """Members of a share group do not wait for each other."""
        return False

    def held_up(self) -> HeldUp | None:
        return None
