"""The tasks of one share consumer on its event loop: heartbeats, and a stream for each broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Coroutine
from typing import Any

from kio.schema.errors import ErrorCode

from ..errors import ClosedError, HeadraceError, NetworkError, RequestTimeoutError, UnsupportedVersionError
from ..machines.membership import Send
from ..machines.share_member import NEEDS, ShareState
from ..protocol.codes import kafka_error, topics_denied
from ..share_config import ShareConsumerConfig
from .client import Client
from .coordinator import Coordinator
from .share_intake import ShareIntake, nobody
from .share_streams import Streams, share_version

log = logging.getLogger(__name__)


class ShareEngine:
    """Belongs to the loop on which it was made."""

    def __init__(self, config: ShareConsumerConfig, intake: ShareIntake) -> None:
        self.loop = asyncio.get_running_loop()
        self.intake = intake
        self.client = Client(config, intake.cluster, intake.lock, self._on_metadata, intake.watch, intake.obstructed)
        self.coordinator = Coordinator(self.client, None)
        self.streams = Streams(self.client, intake)
        self._look = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unknown: frozenset[Any] = frozenset()
        self._asked_for: frozenset[uuid.UUID] = frozenset()
        self._state = ShareState.OUT
        self._is_checked = False
        self._longest_absence = config.max_poll_interval_ms / 1000
        intake.wake = self.streams.wake_from_any_thread
        intake.wake_group = self._wake_from_any_thread
        self._main = intake.watch(asyncio.create_task(self._run(), name="share group"))

    def _wake_from_any_thread(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to wake
            self.loop.call_soon_threadsafe(self._look.set)

    # -- the membership ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        member = self.intake.member
        while True:
            self._look.clear()
            now = time.monotonic()
            with self.intake.lock:
                self.client.want_topics(member.topics)
                actions = member.tick(now)
                if member.state is not self._state:
                    self._unknown = self.intake.planner.follow(member.assignment)
                    if member.state is ShareState.AWAY:
                        log.warning("group %s: left, because poll() was not called in time", member.group_id)
                        self.intake.planner.give_up_stock(now)
                # A poll that ends while this sleeps starts the clock of the longest absence: no sooner than now.
                until = min(member.next_tick(), now + self._longest_absence)
            self._tell_of_changes()
            for action in actions:
                self._start(self._carry_out(action), "heartbeat")
            self._learn_names()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await self._look.wait()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self.intake.watch(asyncio.create_task(work, name=f"share group {name}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, action: Send) -> None:
        member = self.intake.member
        try:
            await self._check_versions()
            body = await self._ask(action)
        except ClosedError:
            return
        except HeadraceError as error:
            log.debug("group %s: heartbeat failed: %s", member.group_id, error)
            with self.intake.lock:
                member.failed(action, error, time.monotonic())
            is_news = True
        else:
            if body.error_code == ErrorCode.topic_authorization_failed:
                self.client.refresh_soon()  # says which topics
            with self.intake.lock:
                is_news = member.answered(action, body, time.monotonic())
                if is_news:
                    self._unknown = self.intake.planner.follow(member.assignment)
        self._look.set()
        if is_news:
            self.streams.wake()
            self.intake.doorbell.ring()

    async def _ask(self, action: Send) -> Any:
        try:
            return await self.coordinator.ask(action)
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"{error} ({NEEDS})") from None

    async def _check_versions(self) -> None:
        """Before joining, so that the first poll tells what is missing, and not one after the first assignment."""
        if self._is_checked:
            return
        with self.intake.lock:
            is_known = bool(self.intake.cluster.brokers)
        if not is_known:
            await self.client.learn(())
        last: HeadraceError = NetworkError("no broker is known")
        for node in list(self.intake.cluster.brokers):
            try:
                connection = await self.client.connection(node)
            except (NetworkError, RequestTimeoutError) as error:
                last = error
                continue
            share_version(connection, self.intake.planner.terms)
            self._is_checked = True
            return
        raise last

    def _on_metadata(self) -> None:
        """Called by the client, with the lock held."""
        member, planner = self.intake.member, self.intake.planner
        self._unknown = planner.follow(member.assignment)
        member.denied = self.intake.cluster.denied(member.topics)
        for name in member.topics:
            if self.intake.cluster.topic_errors.get(name) == ErrorCode.invalid_topic_exception:
                member.complaint = kafka_error(ErrorCode.invalid_topic_exception, f"Metadata of topic {name}")
        if member.denied:
            member.complaint = topics_denied(member.denied)
            self.intake.doorbell.ring()
        self.loop.call_soon(self.streams.wake)
        self.loop.call_soon(self._look.set)

    def _learn_names(self) -> None:
        """An assignment goes by topic ids; the names of new ones have to be asked for."""
        unknown = self._unknown
        if unknown and unknown != self._asked_for:
            self._asked_for = unknown
            self._start(self._ask_names(unknown), "names")

    async def _ask_names(self, ids: frozenset[uuid.UUID]) -> None:
        try:
            await self.client.learn((), ids)
        except ClosedError:
            return
        except HeadraceError as error:
            log.info("group %s: the topics %s are not known yet: %s", self.intake.member.group_id, ids, error)
        if ids & self._unknown:  # just made, or just deleted
            await asyncio.sleep(self.client.retry_pause(2))
        self._asked_for = frozenset()
        self._look.set()

    def _tell_of_changes(self) -> None:
        member = self.intake.member
        if member.state is not self._state:
            self._state = member.state
            log.info("group %s: %s (member %s)", member.group_id, member.state.value, member.member_id)

    # -- the end -----------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Lets go of threads and sockets. The tasks are cancelled by the end of the loop."""
        self.streams.decoder.shutdown(wait=False, cancel_futures=True)
        self.client.disconnect()

    async def close(self, timeout: float) -> None:
        """Sends the last acknowledgements, closes the sessions and leaves the group; each gets one try."""
        deadline = self.loop.time() + timeout
        try:
            await self.streams.close(timeout)
            for task in (self._main, *self._tasks):
                task.cancel()
            await asyncio.gather(self._main, *self._tasks, return_exceptions=True)
            with self.intake.lock:
                farewell = self.intake.member.leave()
            if farewell is not None:
                async with asyncio.timeout(max(0.05, deadline - self.loop.time())):
                    await self.coordinator.ask(farewell)
        except (HeadraceError, TimeoutError) as error:
            reason = error or "no answer in time"
            log.info("group %s: leaving was not acknowledged: %s", self.intake.member.group_id, reason)
        finally:
            self._end()
            await self.client.close()

    def _end(self) -> None:
        """Does not wait. If close() is cancelled, because the call that waits for it was interrupted, the next poll
        starts another engine, maybe before this: nothing of this one may use what they share any more."""
        if self.intake.wake == self.streams.wake_from_any_thread:
            self.intake.wake = self.intake.wake_group = nobody
        for task in (self._main, *self._tasks):
            task.cancel()
        self.abandon()
        with self.intake.lock:
            planner = self.intake.planner
            for node in list(planner.places):
                planner.lost(node, ClosedError("this consumer is closed, and what it held was released"))
