"""The background of a group membership: sends what the member wants sent, and works out what it wants worked out.

One task asks the member what to do and sleeps until its next deadline, or until somebody wakes it. Each request is
a task of its own, so that a heartbeat never waits for a JoinGroup that the coordinator has parked. The member is
asked and told under the intake's lock; nothing is awaited there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Coroutine
from typing import Any

from kio.schema.errors import ErrorCode

from ..errors import AuthorizationError, ClosedError, HeadraceError
from ..machines.assignors import is_own
from ..machines.classic_member import ClassicMember
from ..machines.epoch_member import EpochMember
from ..machines.leading import share_out
from ..machines.membership import Action, Assign, Send
from ..protocol.codes import NONE, kafka_error, legible
from ..protocol.messages import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT
from .client import Client
from .coordinator import Coordinator
from .group import Group
from .intake import Intake

log = logging.getLogger(__name__)

# With more than this to share out, an assignor is given a thread, so that heartbeats and fetches go on meanwhile. One
# that a user wrote always is: nobody knows how long it takes.
_MUCH = 2_000


class Errands:
    """Belongs to the loop on which it was made, except `wake_from_any_thread`."""

    def __init__(self, client: Client, intake: Intake, coordinator: Coordinator, group: Group) -> None:
        self._client = client
        self._intake = intake
        self._coordinator = coordinator
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._look = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked_for: frozenset[uuid.UUID] = frozenset()
        self._state: object = None
        self._main: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """On the loop's thread."""
        if self._main is None and self._group.is_subscribed:
            self._main = self._intake.watch(asyncio.create_task(self._run(), name="group"))
        self._look.set()

    def wake_from_any_thread(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to wake
            self._loop.call_soon_threadsafe(self.wake)

    async def _run(self) -> None:
        while True:
            self._look.clear()
            now = time.monotonic()
            with self._intake.lock:
                actions = self._group.member.tick(now)
                # A poll that ends while this sleeps starts the clock of the longest absence: no sooner than now.
                until = min(self._group.member.next_tick(), now + self._group.longest_absence)
            self._tell_of_changes()
            for action in actions:
                self._start(self._carry_out(action), type(action).__name__)
            self._learn_names()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await self._look.wait()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._intake.watch(asyncio.create_task(work, name=f"group {name}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, action: Action) -> None:
        member = self._group.member
        try:
            if isinstance(action, Assign):
                await self._assign(action)
            else:
                body = await self._coordinator.ask(action)
                with self._intake.lock:
                    before = member.state
                    member.answered(action, body, time.monotonic())
                if body.error_code == ErrorCode.topic_authorization_failed:
                    self._client.refresh_soon()  # says which topics
                if member.state is before and _is_routine(action, body):
                    self._look.set()
                    return
        except ClosedError:
            return
        except HeadraceError as error:
            log.debug("group %s: %s failed: %s", self._group.group_id, action, error)
            with self._intake.lock:
                member.failed(action, error, time.monotonic())
        self._look.set()
        self._intake.wake_all()
        self._intake.doorbell.ring()

    async def _assign(self, action: Assign) -> None:
        member = self._group.member
        assert isinstance(member, ClassicMember)
        with self._intake.lock:
            topics = member.group_topics
        await self._client.know_topics(topics)
        with self._intake.lock:
            cluster = self._client.cluster
            layout = {name: len(cluster.topics[name].partitions) for name in topics if name in cluster.topics}
        assignor = self._group.assignors[action.strategy]
        if not is_own(assignor) or sum(layout.values()) + len(action.members) > _MUCH:
            shares = await asyncio.to_thread(share_out, assignor, action.members, layout)
        else:
            shares = share_out(assignor, action.members, layout)
        with self._intake.lock:
            member.assigned(action, shares, layout)

    def _learn_names(self) -> None:
        """A KIP-848 assignment goes by topic ids; the names of new ones have to be asked for."""
        member = self._group.member
        if not isinstance(member, EpochMember):
            return
        with self._intake.lock:
            unknown = member.unresolved
        if unknown and unknown != self._asked_for:
            self._asked_for = unknown
            self._start(self._ask_names(unknown), "names")

    async def _ask_names(self, ids: frozenset[uuid.UUID]) -> None:
        try:
            await self._client.learn((), ids)
        except ClosedError:
            return
        except HeadraceError as error:
            log.info("group %s: the topics %s are not known yet: %s", self._group.group_id, ids, error)
        with self._intake.lock:
            missing = ids & self._group.member.unresolved if isinstance(self._group.member, EpochMember) else ids
        if missing:  # just made, or just deleted
            await asyncio.sleep(self._client.retry_pause(2))
        self._asked_for = frozenset()
        self._look.set()
        self._intake.wake_all()
        self._intake.doorbell.ring()

    def _tell_of_changes(self) -> None:
        member = self._group.member
        if member.state is not self._state:
            self._state = member.state
            self._intake.doorbell.ring()  # a poll tells what has ended the membership
            identity, who = member.identity, ""
            if identity.member_id:
                who = f" (generation {identity.generation}, member {legible(identity.member_id, 200)})"
            log.info("group %s: %s%s", self._group.group_id, member.state.value, who)

    # -- the end -----------------------------------------------------------------------------------------------

    async def leave(self, farewell: Send, timeout: float) -> None:
        """One try: if it does not get through, the session timeout does the same, later."""
        try:
            async with asyncio.timeout(timeout):
                body = await self._coordinator.ask(farewell)
            if body.error_code != NONE:
                raise kafka_error(body.error_code, f"{farewell.api} of group {self._group.group_id}")
        except (HeadraceError, TimeoutError) as error:
            log.info("group %s: leaving was not acknowledged: %s", self._group.group_id, error or "no answer in time")
            member = self._group.member
            if isinstance(error, AuthorizationError) and isinstance(member, ClassicMember):
                with self._intake.lock:
                    member.not_left(farewell)

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._main] if self._main else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_routine(action: Send, body: Any) -> bool:
    """A heartbeat that brought nothing: no poll has to look, and there are many of them."""
    return body.error_code == NONE and (
        action.api is HEARTBEAT or (action.api is CONSUMER_GROUP_HEARTBEAT and body.assignment is None)
    )
