"""The tasks of one consumer on its event loop: made when first needed, ended by close()."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from ..config import ConsumerConfig
from ..lane_marks import BACKLOG_SUFFIX
from ..protocol.codes import NONE, kafka_error
from ..types import PartitionInfo
from .client import Client
from .coordinator import Coordinator
from .errands import Errands
from .fetcher import Fetcher
from .group import Group
from .intake import Intake
from .log_offsets import LogOffsets
from .positions import Positions
from .second_lane import SecondLane
from .two_logs import TwoLogs

log = logging.getLogger(__name__)


class Engine:
    """Belongs to the loop on which it was made."""

    def __init__(self, config: ConsumerConfig, intake: Intake, group: Group | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.intake = intake
        self.client = Client(config, intake.cluster, intake.lock, self._on_metadata, intake.watch, intake.obstructed)
        self.offsets = LogOffsets(self.client)
        self.group = group
        self.coordinator = Coordinator(self.client, group)
        backlog_id = None if config.group_id is None else config.group_id + BACKLOG_SUFFIX
        self.logs = TwoLogs(self.coordinator, Coordinator(self.client, None, backlog_id), intake)
        self.positions = Positions(self.client, intake, self.offsets, self.logs)
        self.fetcher = Fetcher(self.client, intake)
        self.second_lane: SecondLane | None = None
        if intake.backlog is not None:
            self.second_lane = SecondLane(self.client, intake.backlog, self.offsets)
        self._tasks = [intake.watch(asyncio.create_task(self.positions.run(), name="positions"))]
        intake.wake_all = lambda: self._from_any_thread(self.wake)
        intake.wake_fetching = self.fetcher.wake_from_any_thread
        intake.fetch_soon = self.fetcher.wake
        intake.positions_soon = self.positions.wake
        self.errands: Errands | None = None
        if group is not None:
            self.errands = Errands(self.client, intake, self.coordinator, group)
            group.wake = lambda: self._from_any_thread(self.wake)
        self.wake()

    def wake(self) -> None:
        """Looks at the whole assignment again. On the loop's thread."""
        with self.intake.lock:
            topics = self.intake.assignment.topics
            if self.group is not None:
                topics |= self.group.topics_to_watch()
        self.client.want_topics(None if self.group is not None and self.group.wants_all_topics else topics)
        self.positions.wake()
        self.fetcher.wake()
        if self.second_lane is not None:
            self.second_lane.wake()
        if self.errands is not None:
            self.errands.wake()

    def _from_any_thread(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to wake
            self.loop.call_soon_threadsafe(function)

    def _on_metadata(self) -> None:
        """Called by the client, with the lock held."""
        for tp in self.intake.assignment.follow(self.intake.cluster):
            log.warning("the topic of %s was deleted and made again: its old offsets are void", tp)
            if self.intake.backlog is not None:
                self.intake.backlog.drop([tp])
        if self.intake.backlog is not None:
            self.intake.backlog.assignment.follow(self.intake.cluster)
        if self.group is not None:
            self.group.follow(self.intake.cluster)
            self.group.wake()
            self.intake.doorbell.ring()
        self.loop.call_soon(self.positions.wake)
        self.loop.call_soon(self.fetcher.wake)
        if self.second_lane is not None:
            self.loop.call_soon(self.second_lane.wake)

    # -- questions about topics ----------------------------------------------------------------------------------

    async def describe_topics(self, names: list[str] | None) -> dict[str, list[PartitionInfo]]:
        """The partitions of these topics (None: of all), asked of a broker now."""
        answer = await self.client.learn(names)
        with self.intake.lock:
            found = [topic.name for topic in answer.topics if topic.name and topic.error_code == NONE]
            for topic in answer.topics:
                if topic.error_code not in (NONE, ErrorCode.unknown_topic_or_partition):
                    raise kafka_error(topic.error_code, f"Metadata of topic {topic.name}")
            return {name: self.intake.cluster.partition_infos(name) for name in sorted(found)}

    def abandon(self) -> None:
        """Lets go of threads and sockets. The tasks are cancelled by the end of the loop."""
        self.fetcher.decoder.close()
        if self.second_lane is not None:
            self.second_lane.abandon()
        self.client.disconnect()

    async def close(self) -> None:
        try:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self.errands is not None:
                await self.errands.close()
            if self.second_lane is not None:
                await self.second_lane.close()
            await self.fetcher.close()
            await self.client.close()
        finally:  # also if the loop ends meanwhile, which cancels this
            self.abandon()
