"""One member's process: the user's poll loop, its listeners and commits, and the background task of the machine.

WORKING   between two polls: records are processed, and the background runs
WAITING   inside poll(), waiting for an event
BUSY      inside poll(), performing a poll action: commit, listener
ENDED     closed, dead, or failed for good
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace._machines.group.actions import AssignPartitions, ComputeAssignment, PollAction, Revoke, Send, Subscription
from headrace._machines.group.assignors import Assignor
from headrace._machines.group.classic import ClassicMember
from headrace._machines.group.consumer_protocol import ConsumerProtocolMember
from headrace._machines.group.leader import compute_assignment
from headrace.errors import HeadraceError, KafkaError
from headrace.types import TopicPartition

from .clock import Timer
from .network import Link

if TYPE_CHECKING:
    from .world import World

_BURST, _BURST_SECONDS = 24, 1.0  # more requests per second than a healthy member sends
FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID = 82, 111


class Phase(enum.Enum):
    WORKING = "working"
    WAITING = "waiting"
    BUSY = "busy"
    ENDED = "ended"


class Process:
    def __init__(
        self,
        world: World,
        name: str,
        machine: ClassicMember | ConsumerProtocolMember,
        assignors: dict[str, Assignor],
        instance_id: str | None,
    ) -> None:
        self.world = world
        self.name = name
        self.machine = machine
        self.instance_id = instance_id
        self.phase = Phase.WORKING
        self.is_closed = False
        self.is_cut_off = False
        # A static member is fenced by its own late JoinGroup. No client can prevent that.
        self.may_arrive_late = instance_id is None
        self.link = Link()
        self.parking_link = Link()
        self.holding: dict[TopicPartition, Any] = {}
        """The user's partitions, from the start of AssignPartitions to the end of Revoke or Lose, by group key."""
        self.failure: HeadraceError | None = None
        self._assignors = assignors
        self._clock = world.clock
        self._dice = world.dice
        self._action: PollAction | None = None
        self._wake_up: Timer | None = None
        self._wake_at = math.inf
        self._poll_ends_at = math.inf
        self._frozen_until = 0.0
        self._wants_to_close = False
        self._sent: deque[float] = deque(maxlen=_BURST)
        self._commits = 0  # in flight
        self._after_commits: Callable[[], None] | None = None
        self._resolving = False
        self._pause = 0.0
        self._identity = machine.identity
        self._held_until: dict[TopicPartition, float] = {}

    # -- disturbances ------------------------------------------------------------------------------------------

    def start(self, subscription: Subscription) -> None:
        self.machine.subscribe(subscription)
        self._poll()

    def subscribe(self, subscription: Subscription) -> None:
        if self.phase is not Phase.ENDED:
            self.machine.subscribe(subscription)
            self._reconcile()

    def hint(self) -> None:
        if self.phase is not Phase.ENDED:
            self.machine.hint(self._clock.now)
            self._reconcile()

    def close(self) -> None:
        """Close after the current poll."""
        self._wants_to_close = True

    def die(self) -> None:
        """SIGKILL, without leaving the group."""
        self.phase = Phase.ENDED
        self._let_go(list(self.holding))
        self.link, self.parking_link = Link(), Link()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later: nothing runs in between, and responses are handled afterwards."""
        self._frozen_until = self._clock.now + seconds

    def slow_down(self, seconds: float) -> None:
        """Process the next record for this long; the background keeps running."""
        self._pause = seconds

    def topics_changed(self) -> None:
        self._run(self._topics_changed)

    def inbox(self, do: Callable[..., None], *args: Any) -> None:
        self._run(do, *args)

    @property
    def is_live(self) -> bool:
        return self.phase is not Phase.ENDED

    def _run(self, do: Callable[..., None], *args: Any) -> None:
        """Do it unless the process is dead, or later if it is frozen."""
        if self.phase is Phase.ENDED:
            return
        if self._clock.now < self._frozen_until:
            self._clock.at(self._frozen_until, self._run, do, *args)
            return
        do(*args)

    # -- the poll loop -----------------------------------------------------------------------------------------

    def _poll(self) -> None:
        if self._wants_to_close:
            self._close()
            return
        self.machine.poll_begins()
        self.phase = Phase.WAITING
        self._poll_ends_at = self._clock.now + self._dice.uniform(*self.world.poll_times)
        self._clock.at(self._poll_ends_at, self._run, self._poll_is_over)
        self._reconcile()

    def _poll_is_over(self) -> None:
        if self.phase is Phase.WAITING:
            self.machine.poll_ends(self._clock.now)
            self.phase = Phase.WORKING
            if self.holding and self._dice.random() < self.world.commits:
                self._commit()
            seconds, self._pause = self._pause or self._dice.uniform(*self.world.work_times), 0.0
            self._clock.after(seconds, self._run, self._poll)
            self._reconcile()

    def _perform_action(self) -> None:
        """Perform the next poll action, if any. Called after every event inside poll()."""
        machine = self.machine
        if machine.failure is not None:
            poll_action = machine.final_revoke()
            if poll_action is None:
                self._fail(machine.failure)
                return
        else:
            machine.pending_error = None
            poll_action = machine.poll_action(self._held())
            while isinstance(poll_action, Revoke) and self._delays_revoke(poll_action):
                poll_action = machine.poll_action(self._held())
        if poll_action is None:
            return
        self.phase = Phase.BUSY
        self._action = poll_action
        self.world.note(self, "begins", poll_action)
        if isinstance(poll_action, AssignPartitions):
            self._take(poll_action)
        self._after_commits = lambda: self._clock.after(self.world.callback_time(), self._run, self._action_done)
        if isinstance(poll_action, Revoke) and self._dice.random() < 0.7:
            self._commit(poll_action.partitions)
        self._commits_are_over()

    def _held(self) -> frozenset[TopicPartition]:
        """Partitions whose revoke the user delays (KIP-983)."""
        unwanted, now = self.machine.to_revoke, self._clock.now
        self._held_until = {each: until for each, until in self._held_until.items() if each in unwanted}
        return frozenset(each for each, until in self._held_until.items() if until > now)

    def _delays_revoke(self, poll_action: Revoke) -> bool:
        before = len(self._held_until)
        for each in sorted(poll_action.partitions - self._held_until.keys()):
            if self._dice.random() < self.world.delays:
                seconds = self._dice.uniform(0, 15)
                self._held_until[each] = self._clock.now + seconds
                self._clock.after(seconds, self._run, self._reconcile)
        return len(self._held_until) > before

    def _take(self, poll_action: AssignPartitions) -> None:
        added = sorted(poll_action.added)
        names = getattr(self.machine, "_assigning", {})
        for each in added:
            slot = (names[each], each.partition) if each in names else each
            self.world.begins_to_hold(self, each, slot)
            self.holding[each] = slot

    def _let_go(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.world.holds_no_longer(self, self.holding.pop(each))

    def _action_done(self) -> None:
        poll_action = self._action
        if poll_action is None:
            return
        self._action = None
        if not isinstance(poll_action, AssignPartitions):
            self._let_go(sorted(poll_action.partitions))
        self.world.note(self, "has done", poll_action)
        self.machine.done(poll_action)
        if self.machine.owned != self.holding.keys():
            self.world.violated(f"{self.name} owns {self.machine.owned} and holds {sorted(self.holding)}")
        self.phase = Phase.WAITING
        if self.is_closed:
            self._close()
            return
        self._reconcile()
        if self._clock.now >= self._poll_ends_at:
            self._poll_is_over()

    def _fail(self, error: HeadraceError) -> None:
        self.failure = error
        self.world.note(self, "fails", error)
        self.world.failed(self, error)
        self.phase = Phase.ENDED

    def _close(self) -> None:
        """Revoke all partitions, then leave the group."""
        self.is_closed = True
        poll_action = self.machine.final_revoke()
        if poll_action is not None:
            self.phase = Phase.BUSY
            self._action = poll_action
            self._after_commits = lambda: self._clock.after(self.world.callback_time(), self._run, self._action_done)
            if isinstance(poll_action, Revoke):
                self._commit(poll_action.partitions)
            self._commits_are_over()
            return
        leave_request = self.machine.leave("closed")
        self.world.note(self, "leaves", leave_request and dict(leave_request.fields))
        for action in ([leave_request] if leave_request else []) + self.machine.tick(self._clock.now):
            assert isinstance(action, Send)
            self.world.network.send(self, action, _ignore, _ignore)
        if self.machine.tick(self._clock.now + 1e6) or self.machine.next_tick() != math.inf:
            self.world.violated(f"{self.name} has left but stays active")
        self.phase = Phase.ENDED

    # -- the background ----------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Run the machine. Called after every event."""
        if self.phase is Phase.WAITING:
            self._perform_action()
        if self.phase is Phase.ENDED:
            return
        if (identity := self.machine.identity) != self._identity:
            self._identity = identity
            self.world.identity_changed(self)
        now = self._clock.now
        for action in self.machine.tick(now):
            if isinstance(action, ComputeAssignment):
                seconds = self._dice.uniform(0, 3.0 if self._dice.random() < 0.1 else 0.1)
                self._clock.after(seconds, self._run, self._assign, action, self.world.layout())
            else:
                self._send(action)
        if isinstance(self.machine, ConsumerProtocolMember) and not self._resolving and self.machine.unresolved:
            self._resolving = True
            self._clock.after(self._dice.uniform(0, 0.5), self._run, self._resolve)
        due = self.machine.next_tick()
        if due <= now:
            self.world.violated(f"{self.name} has nothing to send but wants to run again at once")
        if due != self._wake_at:
            if self._wake_up is not None:
                self._wake_up.cancel()
            self._wake_at = due
            self._wake_up = None if due == math.inf else self._clock.at(due, self._run, self._tick)

    def _tick(self) -> None:
        self._wake_at = math.inf
        self._reconcile()

    def _send(self, action: Send) -> None:
        now = self._clock.now
        self._sent.append(now)
        if len(self._sent) == _BURST and now - self._sent[0] < _BURST_SECONDS:
            self.world.violated(f"{self.name} has sent {_BURST} requests in {now - self._sent[0]:.3f} s")
        self.world.note(self, "sends", action)

        def answered(body: Any) -> None:
            self.world.note(self, "receives", action.api, body)
            self.machine.answered(action, body, self._clock.now)
            self._reconcile()

        def failed(error: HeadraceError) -> None:
            self._run(self._failed, action, error)

        self.world.network.send(self, action, answered, failed)

    def _failed(self, action: Send, error: HeadraceError) -> None:
        self.world.note(self, "gets no response to", action.api, error)
        self.machine.failed(action, error, self._clock.now)
        self._reconcile()

    def _assign(self, action: ComputeAssignment, layout: dict[str, int]) -> None:
        assert isinstance(self.machine, ClassicMember)
        known = {topic: count for topic, count in layout.items() if topic in self.machine.group_topics}
        shares = compute_assignment(self._assignors[action.strategy], action.members, known)
        self.world.note(self, "assigns", known, shares)
        self.machine.assigned(action, shares, known)
        self._reconcile()

    def _resolve(self) -> None:
        assert isinstance(self.machine, ConsumerProtocolMember)
        self._resolving = False
        self.machine.update_topic_names(self.world.names())
        self._reconcile()

    def _topics_changed(self) -> None:
        if isinstance(self.machine, ClassicMember):
            self.machine.update_partition_counts(self.world.layout())
        else:
            self.machine.update_topic_names(self.world.names())
        self._reconcile()

    # -- commits -----------------------------------------------------------------------------------------------

    def _commit(self, partitions: frozenset[TopicPartition] | None = None) -> None:
        sent = self.machine.identity
        if sent.generation < 0:
            return
        chosen = sorted(self.machine.owned if partitions is None else partitions)
        if not chosen:
            return
        self._commits += 1

        def answered(code: int) -> None:
            self._commits -= 1
            if code:
                self.world.note(self, "commit refused", code, sent)
                self.machine.commit_refused(code, sent)
            self._commits_are_over()
            self._reconcile()

        def failed(error: HeadraceError) -> None:
            self._run(lost)

        def lost() -> None:
            self._commits -= 1
            self._commits_are_over()

        self.world.network.commit(self, sent, chosen, answered, failed)

    def _commits_are_over(self) -> None:
        """A poll action does not end while a commit is in flight, which could overwrite a commit of the next owner."""
        if self._commits == 0 and self._after_commits is not None:
            proceed, self._after_commits = self._after_commits, None
            proceed()


def is_expected(error: HeadraceError, static: bool) -> bool:
    """Whether a member may fail with this error: only a static member that was replaced."""
    return static and isinstance(error, KafkaError) and error.code in (FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID)


def _ignore(*_: Any) -> None:
    """A leave request is sent once, and its response is ignored."""
