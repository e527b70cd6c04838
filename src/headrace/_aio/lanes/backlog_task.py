"""The tasks of the backlog lane (KIP-333): its fetcher, and the search for the reason why a range cannot be read.

They are started with the first backlog and then stay, on standby when there is nothing to do. If one of them fails, all
are restarted and resume from the last commit; the live lane is not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from ...config.consumer import ConsumerConfig
from ...errors import HeadraceError
from ...types import TopicPartition
from ..background import call_if_open
from ..fetch.fetcher import Fetcher
from ..network.client import Client
from ..positions.list_offsets import EARLIEST, LATEST, ListOffsets
from .backlog import Backlog

log = logging.getLogger(__name__)


class BacklogTask:
    """Belongs to the loop's thread; `wake_all` of the backlog may be called from any."""

    def __init__(self, client: Client[ConsumerConfig], backlog: Backlog) -> None:
        self._client = client
        self._backlog = backlog
        self._offsets = ListOffsets(client)
        self._loop = asyncio.get_running_loop()
        self._fetcher: Fetcher | None = None
        self._search: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._look = asyncio.Event()
        self._failures = 0
        backlog.wake_all = self._wake_from_any_thread
        backlog.positions_soon = self._look.set
        backlog.get_ready = self._get_ready
        backlog.restart = self._failed

    @property
    def is_alive(self) -> bool:
        return self._fetcher is not None

    def _get_ready(self, partitions: Collection[TopicPartition]) -> None:
        """Connects while their token is being committed."""
        if self._restarting is not None:
            return
        if self._fetcher is None:
            self._start()
        assert self._fetcher is not None
        with self._backlog.lock:
            leaders = [self._backlog.cluster.leader(tp) for tp in partitions]
        self._fetcher.connect({leader.node for leader in leaders if leader is not None})

    def wake(self) -> None:
        if self._restarting is not None:
            return
        if self._fetcher is None:
            with self._backlog.lock:
                if not len(self._backlog.assignment):
                    return
            self._start()
        assert self._fetcher is not None
        self._fetcher.wake()
        self._look.set()

    def _wake_from_any_thread(self) -> None:
        call_if_open(self._loop, self.wake)

    def _start(self) -> None:
        self._fetcher = Fetcher(self._client, self._backlog)
        self._backlog.wake_fetching = self._fetcher.wake_from_any_thread
        self._search = self._backlog.watch(asyncio.create_task(self._searching(), name="backlog search"))

    async def close(self) -> None:
        self._backlog.restart = None
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        await self._stop()

    async def _stop(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        search, self._search = self._search, None
        try:
            if search is not None:
                search.cancel()
                await asyncio.gather(search, return_exceptions=True)
        finally:
            if fetcher is not None:
                await fetcher.close()

    def abandon(self) -> None:
        if self._fetcher is not None:
            self._fetcher.decoder.close()

    # -- failure -------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        if self._restarting is None:
            self._failures += 1
            log.error("the backlog lane failed and resumes from its last commit: %r", error)
            task = asyncio.create_task(self._restart(), name="backlog restart")
            self._restarting = self._backlog.watch(task)  # if it fails itself, this begins again

    async def _restart(self) -> None:
        try:
            await self._stop()
            await asyncio.sleep(self._client.retries.pause(self._failures))
            with self._backlog.lock:
                self._backlog.resume_all()
        finally:
            self._restarting = None
        self.wake()

    # -- ranges that the log does not have any more ----------------------------------------------------------------

    async def _searching(self) -> None:
        failures = 0
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                await self._skip_lost()
                failures = 0
            except HeadraceError as error:
                failures += 1
                log.info("the start of the log is not known yet: %s", error)
                await asyncio.sleep(self._client.retries.pause(failures))
                self._look.set()

    async def _skip_lost(self) -> None:
        with self._backlog.lock:
            stuck = self._backlog.assignment.out_of_range_offsets()
        if not stuck:
            return
        starts = await self._offsets.by_time(dict.fromkeys(stuck, EARLIEST))
        ends = await self._offsets.by_time(dict.fromkeys(stuck, LATEST))
        failure: HeadraceError | None = None
        with self._backlog.lock:
            for tp, offset in stuck.items():
                start, end = starts[tp], ends[tp]
                if isinstance(start, HeadraceError) or isinstance(end, HeadraceError):
                    failure = start if isinstance(start, HeadraceError) else failure
                    failure = end if isinstance(end, HeadraceError) else failure
                elif self._backlog.assignment.out_of_range_offsets().get(tp) != offset:
                    continue  # the user has sought, or the partition was given up
                elif end.offset < offset:
                    self._backlog.log_ends(tp, end.offset)
                else:
                    self._backlog.log_begins(tp, start.offset)
        if failure is not None:
            raise failure
        assert self._fetcher is not None
        self._fetcher.wake()
        self._backlog.poll_signal.notify()
