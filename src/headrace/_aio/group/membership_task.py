"""The background task of a group membership, for consumer groups and share groups.

One task asks the member (a machine) for actions, and sleeps until its next deadline or until it is woken. Each action
is a task of its own, so that a heartbeat never waits for a JoinGroup that the coordinator has parked. The member is
guarded by the buffer's lock, which is never held across an await.

The parts that differ are behind `Membership`: `consumer_membership.py` and `share/membership.py`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from ..._machines.group.actions import Send
from ..._machines.group.membership_watch import MARGIN, MembershipWatch, WatchedMember
from ..._machines.group.neighbours import PATIENCE, HeldUp, news_in, waiting_for
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, JOIN_GROUP, SHARE_GROUP_HEARTBEAT, SYNC_GROUP
from ...config.client import ClientConfig
from ...errors import AuthorizationError, ClosedError, HeadraceError
from ...events import Event
from ..network.client import Client
from .coordinator import Coordinator
from .neighbours import Neighbour

log = logging.getLogger(__name__)

_HEARTBEATS = frozenset({HEARTBEAT, CONSUMER_GROUP_HEARTBEAT, SHARE_GROUP_HEARTBEAT})
_PARKED = frozenset({JOIN_GROUP, SYNC_GROUP})
_WATCHED = _HEARTBEATS | _PARKED  # by MembershipWatch
# A coordinator that returns this still knows the member; in a classic group the next step is not an error.
_ALIVE = frozenset({NONE, ErrorCode.rebalance_in_progress, ErrorCode.member_id_required})

_LOOKS = 5  # for members of this process that keep this one waiting
_ARRIVAL = 0.02  # seconds between a JoinGroup, which is answered late, and the hint to other members

A = TypeVar("A")  # the actions of a member: Send, and for a classic one ComputeAssignment


class GroupMachine(WatchedMember, Protocol[A]):
    """The side of a member that its task uses."""

    @property
    def state(self) -> Any: ...
    def tick(self, now: float) -> Sequence[A]: ...
    def next_tick(self) -> float: ...
    def hint(self, now: float) -> None: ...
    def answered(self, action: Send, body: Any, now: float) -> bool: ...
    def failed(self, action: A, error: HeadraceError, now: float) -> None: ...


class Membership(Protocol[A]):
    """What a membership task works for. The task calls every method on its loop."""

    group_id: str
    lock: threading.Lock
    longest_absence: float
    """Seconds between two polls after which the member leaves the group."""
    health: MembershipWatch
    """Guarded by the lock."""

    @property
    def member(self) -> GroupMachine[A]: ...
    @property
    def is_subscribed(self) -> bool: ...
    @property
    def identity(self) -> str:
        """For the log; empty before the member has joined."""

    @property
    def unresolved(self) -> frozenset[uuid.UUID]:
        """Assigned topics whose names are unknown. Called with the lock held."""

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]: ...
    async def carry_out(self, action: A) -> Any:
        """Returns the coordinator's answer, or None if the action is not a request."""

    def member_changed(self, now: float) -> None:
        """The member's state or assignment has changed. Called with the lock held."""

    def wake_polls(self) -> None:
        """Polls, and what they wait for, have to look at the member."""

    def report(self, event: Event) -> None:
        """Logs it, and passes it to the user's on_event."""

    def leave_denied(self, leave_request: Send) -> None:
        """The coordinator did not authorize it."""

    def is_waiting(self) -> bool:
        """Whether the member has asked for partitions, and the coordinator has not answered with any."""

    def held_up(self) -> HeldUp | None:
        """Whether the group waits for the user's next poll(). On any thread."""


class MembershipTask(Generic[A]):
    """Belongs to the loop on which it was made."""

    def __init__(self, client: Client[ClientConfig], coordinator: Coordinator, membership: Membership[A]) -> None:
        self._client = client
        self._coordinator = coordinator
        self._membership = membership
        self._woken = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked_for: frozenset[uuid.UUID] = frozenset()
        self._state: object = None
        key = client.config.bootstrap_servers, membership.group_id
        self._neighbour = Neighbour(key, self._take_hint, membership.held_up)
        self._looks = 0  # for members that keep this one waiting
        self._next_look: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """On the loop's thread. The first time after a subscribe, it starts the task."""
        if self._main is None and self._membership.is_subscribed:
            self._main = self._membership.watch(asyncio.create_task(self._run(), name="group membership"))
        self._woken.set()

    def _take_hint(self) -> None:
        with self._membership.lock:
            self._membership.member.hint(time.monotonic())
        self._woken.set()

    async def _run(self) -> None:
        self._neighbour.enter()
        try:
            await self._keep_membership()
        finally:
            self._neighbour.leave()

    async def _keep_membership(self) -> None:
        membership, member = self._membership, self._membership.member
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            now = time.monotonic()
            with membership.lock:
                actions = member.tick(now)
                has_changed = member.state is not self._state
                if has_changed:
                    self._state = member.state
                    membership.member_changed(now)
                for action in actions:
                    if isinstance(action, Send) and action.api in _WATCHED and member.is_member:
                        membership.health.sent(now, parks=action.api in _PARKED)
                events = membership.health.look(member, now)
                # A poll that ends while this sleeps starts the clock of the longest absence: now at the earliest.
                nearly_absent = now + (1 - MARGIN) * membership.longest_absence
                until = min(member.next_tick(), membership.health.next_look, nearly_absent)
            if has_changed:
                log.info("group %s: %s%s", membership.group_id, member.state.value, membership.identity)
            for event in events:
                membership.report(event)
            for action in actions:
                self._start(self._carry_out(action), type(action).__name__)
                if isinstance(action, Send) and action.api is JOIN_GROUP:
                    loop.call_later(_ARRIVAL, self._neighbour.tell_others)
            self._resolve_names()
            # Not asyncio.timeout(), which cancels the task: an idle member does little else than this.
            timer = loop.call_later(max(0.0, until - time.monotonic()), self._woken.set)
            try:
                await self._woken.wait()
            finally:
                timer.cancel()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._membership.watch(asyncio.create_task(work, name=f"group {name}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, action: A) -> None:
        membership, member = self._membership, self._membership.member
        has_news = True
        if self._looks == 0 and membership.is_waiting():
            self._look_for_idle_members(asyncio.get_running_loop())
        try:
            body = await membership.carry_out(action)
            if isinstance(action, Send):
                if body.error_code == ErrorCode.topic_authorization_failed:
                    self._client.refresh_soon()  # metadata says which topics
                with membership.lock:
                    now = time.monotonic()
                    self._note_answer(action, body, now)
                    has_news = member.answered(action, body, now)
                    if has_news:
                        membership.member_changed(now)
                if (news := news_in(action, body)) is not None:
                    self._neighbour.tell_others(news)
        except ClosedError:
            return
        except HeadraceError as error:
            log.debug("group %s: %s failed: %s", membership.group_id, action, error)
            with membership.lock:
                now = time.monotonic()
                if isinstance(action, Send) and action.api in _WATCHED and member.is_member:
                    membership.health.failed(now, str(error), parks=action.api in _PARKED)
                member.failed(action, error, now)
        self._woken.set()
        if has_news:
            membership.wake_polls()

    def _look_for_idle_members(self, loop: asyncio.AbstractEventLoop) -> None:
        """While this member waits for partitions, at first at once, which finds nobody, then after some seconds."""
        if not self._membership.is_waiting():
            self._looks = 0
            return
        if self._looks == _LOOKS:
            return
        if self._looks and (
            text := waiting_for(
                self._membership.group_id, self._neighbour.who_holds_up(), self._membership.longest_absence
            )
        ):
            self._looks = _LOOKS
            log.warning("%s", text)
            return
        self._looks += 1
        self._next_look = loop.call_later(PATIENCE, self._look_for_idle_members, loop)

    def _note_answer(self, action: Send, body: Any, now: float) -> None:
        """With the lock held."""
        if action.api not in _WATCHED:
            return
        health, code = self._membership.health, body.error_code
        if code in _ALIVE:
            interval = getattr(body, "heartbeat_interval", None)
            health.accepted(now, 0.0 if interval is None else interval.total_seconds())
        elif self._membership.member.is_member:
            health.failed(now, str(kafka_error(code, str(action.api))), parks=action.api in _PARKED)

    # -- topic names -------------------------------------------------------------------------------------------

    def _resolve_names(self) -> None:
        """KIP-848 and KIP-932 assign partitions by topic id. The names of new topics come from metadata."""
        with self._membership.lock:
            unresolved = self._membership.unresolved
        if unresolved and unresolved != self._asked_for:
            self._asked_for = unresolved
            self._start(self._ask_names(unresolved), "topic names")

    async def _ask_names(self, ids: frozenset[uuid.UUID]) -> None:
        try:
            await self._client.fetch_metadata((), ids)
        except ClosedError:
            return
        except HeadraceError as error:
            log.info("group %s: the topics %s are not known yet: %s", self._membership.group_id, ids, error)
        with self._membership.lock:
            missing = ids & self._membership.unresolved
        if missing:  # just created, or just deleted
            await asyncio.sleep(self._client.retries.pause(2))
        self._asked_for = frozenset()
        self._woken.set()
        self._membership.wake_polls()

    # -- the end -----------------------------------------------------------------------------------------------

    async def leave(self, leave_request: Send, timeout: float) -> None:
        """Tries once: if the request does not arrive, the session timeout has the same effect later."""
        group_id = self._membership.group_id
        try:
            async with asyncio.timeout(timeout):
                body = await self._coordinator.ask(leave_request)
            if body.error_code != NONE:
                raise kafka_error(body.error_code, f"{leave_request.api} of group {group_id}")
            self._neighbour.tell_others()
        except (HeadraceError, TimeoutError) as error:
            log.info("group %s: leaving was not acknowledged: %s", group_id, error or "no answer in time")
            if isinstance(error, AuthorizationError):
                with self._membership.lock:
                    self._membership.leave_denied(leave_request)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Does not wait. Returns the tasks that are about to end."""
        if self._next_look is not None:
            self._next_look.cancel()
        tasks = [*self._tasks, *([self._main] if self._main else [])]
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        await asyncio.gather(*self.cancel(), return_exceptions=True)
