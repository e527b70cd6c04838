"""The background tasks of one share consumer, on its event loop: the membership, and a stream for each broker."""

from __future__ import annotations

import asyncio

from ..._machines.group.actions import Send
from ..._machines.missing_topics import Wanted
from ...config.share import ShareConsumerConfig
from ...errors import ClosedError
from ..background import call_if_open, nobody
from ..group.coordinator import Coordinator
from ..group.membership_task import MembershipTask
from ..lifecycle import LAST_TRY
from ..missing_topics import MissingTopicReports
from ..network.client import Client
from .buffer import ShareFetchBuffer
from .membership import ShareMembership
from .sessions import ShareSessions


class ShareRuntime:
    """Belongs to the loop on which it was made."""

    def __init__(self, config: ShareConsumerConfig, buffer: ShareFetchBuffer) -> None:
        self.loop = asyncio.get_running_loop()
        self.buffer = buffer
        self.client = Client(config, buffer.cluster, buffer.lock, self._on_metadata, buffer.watch, buffer.obstructed)
        self.sessions = ShareSessions(self.client, buffer)
        coordinator = Coordinator(self.client, config.group_id)
        self._membership = ShareMembership(config, buffer, self.client, coordinator, self.sessions)
        self._membership_task: MembershipTask[Send] = MembershipTask(self.client, coordinator, self._membership)
        buffer.wake = self.sessions.wake_from_any_thread
        buffer.wake_group = lambda: call_if_open(self.loop, self._wake_group)
        self.missing_topics = MissingTopicReports(
            self.client, config.group_id, lambda: Wanted(buffer.member.topics), buffer.report, buffer.watch
        )
        self._wake_group()

    def _wake_group(self) -> None:
        with self.buffer.lock:
            topics = self.buffer.member.topics
        self.client.want_topics(topics)
        self._membership_task.wake()
        self.missing_topics.look_soon()

    def _on_metadata(self) -> None:
        """Called by the client, with the lock held."""
        self._membership.follow_metadata()
        self.loop.call_soon(self.sessions.wake)
        self.loop.call_soon(self._membership_task.wake)
        self.missing_topics.look_soon()

    # -- the end -----------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Closes threads and sockets. The end of the loop cancels the tasks."""
        self.sessions.decoder.shutdown(wait=False, cancel_futures=True)
        self.client.disconnect()

    async def close(self, timeout: float) -> None:
        """Sends the last acknowledgements, closes the sessions and leaves the group. Tries each once."""
        deadline = self.loop.time() + timeout
        try:
            await self.sessions.close(timeout)
            await self._membership_task.close()
            with self.buffer.lock:
                leave_request = self.buffer.member.leave()
                self.buffer.health.forget()
            if leave_request is not None:
                await self._membership_task.leave(leave_request, max(LAST_TRY, deadline - self.loop.time()))
        finally:
            self._end()
            await self.client.close()

    def _end(self) -> None:
        """Does not wait. If the call that waits for close() is interrupted, close() is cancelled, and the next poll
        makes another runtime, perhaps before this runs. So this one must not use anything that both have any more."""
        if self.buffer.wake == self.sessions.wake_from_any_thread:
            self.buffer.wake = self.buffer.wake_group = nobody
        self._membership_task.cancel()
        self.missing_topics.close()
        self.abandon()
        with self.buffer.lock:
            planner = self.buffer.planner
            for node in list(planner.sessions):
                planner.lose_session(
                    node, ClosedError("this consumer has left its group, and its records are released")
                )
