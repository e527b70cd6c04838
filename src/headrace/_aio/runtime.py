"""The tasks of one consumer on its event loop: created when first needed, ended by close() and unsubscribe()."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .._machines.group.actions import Action
from .._machines.missing_topics import Wanted
from ..config.consumer import ConsumerConfig
from ..events import Event
from .assembly import make_offset_parts
from .background import call_if_open
from .commit.offset_requests import OffsetRequests
from .fetch.buffer import FetchBuffer
from .fetch.fetcher import Fetcher
from .group.consumer_membership import ConsumerMembership
from .group.coordinator import Coordinator
from .group.membership_task import MembershipTask
from .group.rebalance import Rebalancer
from .missing_topics import MissingTopicReports
from .network.client import Client
from .positions.list_offsets import ListOffsets
from .positions.updater import PositionUpdater


class ConsumerRuntime:
    """Belongs to the loop on which it was created."""

    def __init__(
        self,
        config: ConsumerConfig,
        buffer: FetchBuffer,
        group: Rebalancer | None,
        report: Callable[[Event], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._is_woken = False  # a look at everything is due
        self.buffer = buffer
        self.client = Client(config, buffer.cluster, buffer.lock, self._on_metadata, buffer.watch, buffer.obstructed)
        self.offsets = ListOffsets(self.client)
        self.group = group
        coordinator = Coordinator(self.client, config.group_id)
        self.offset_requests = OffsetRequests(self.client, coordinator, group)
        parts = make_offset_parts(self.client, buffer, self.offset_requests, self.offsets)
        self.store = parts.store
        self.committed_reader = parts.reader
        self.positions = PositionUpdater(self.client, buffer, self.offsets, parts.start)
        self.fetcher = Fetcher(self.client, buffer)
        self.source_tasks = buffer.source.start(self.client)
        self._tasks = [buffer.watch(asyncio.create_task(self.positions.run(), name="positions"))]
        buffer.wake_all = self._wake_from_any_thread
        buffer.wake_fetching = self.fetcher.wake_from_any_thread
        buffer.fetch_soon = self.fetcher.wake
        buffer.positions_soon = self.positions.wake
        self.membership_task: MembershipTask[Action] | None = None
        if group is not None:
            membership = ConsumerMembership(self.client, buffer, coordinator, group)
            self.membership_task = MembershipTask(self.client, coordinator, membership)
            group.wake = self._wake_from_any_thread
        self.missing_topics = MissingTopicReports(self.client, config.group_id, self._wanted, report, buffer.watch)
        self.wake()

    def wake(self) -> None:
        """Looks at the whole assignment again. On the loop's thread."""
        self._is_woken = False
        with self.buffer.lock:
            topics = self.buffer.assignment.topics
            if self.group is not None:
                topics |= self.group.topics_to_watch()
        self.client.want_topics(None if self.group is not None and self.group.wants_all_topics else topics)
        self.positions.wake()
        self.fetcher.wake()
        self.source_tasks.wake()
        if self.membership_task is not None:
            self.membership_task.wake()
        self.missing_topics.look_soon()

    def _wake_from_any_thread(self) -> None:
        call_if_open(self.loop, self._wake_soon)

    def _wake_soon(self) -> None:
        """One look for all calls that have come by then: a program may seek thousands of partitions one by one."""
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon(self.wake)

    def _on_metadata(self) -> None:
        """Called by the client, with the lock held."""
        self.buffer.follow_metadata()
        if self.group is not None:
            self.group.follow(self.buffer.cluster)
            self.group.wake()
            self.buffer.poll_signal.notify()
        self.loop.call_soon(self.positions.wake)
        self.loop.call_soon(self.fetcher.wake)
        self.loop.call_soon(self.source_tasks.wake)
        self.missing_topics.look_soon()

    def _wanted(self) -> Wanted:
        """What the user has subscribed or assigned. Called with the lock held."""
        if self.group is not None and self.group.is_subscribed:
            return self.group.wanted()
        return Wanted(partitions=frozenset(self.buffer.assignment.partitions))

    # -- the end -------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Releases threads and sockets without waiting. The end of the loop cancels the tasks."""
        self.fetcher.decoder.close()
        self.source_tasks.abandon()
        self.client.disconnect()

    async def close(self) -> None:
        try:
            self.missing_topics.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self.membership_task is not None:
                await self.membership_task.close()
            await self.source_tasks.close()
            await self.fetcher.close()
            await self.client.close()
        finally:  # also if the loop ends meanwhile, which cancels this
            self.abandon()
