"""One group in virtual time: its topics, its processes, and the invariants.

At every moment
- no two members hold a partition whose owner both are according to the group: AssignPartitions starts only after the
  Revoke (or Lose) of the previous owner has ended, unless the group has removed that member;
- no commit is accepted for a partition that another member holds according to the group;
- no member sends bursts of requests, wakes up without need, or stays active after it has left;
- only a static member fails, and only when it was replaced.

In the stable state, some time after the last disturbance
- every subscribed partition is held by exactly one of its subscribers, and no other partition is held;
- the coordinator has exactly the live members, and each agrees with it on the generation or epoch;
- every owner's commit is accepted;
- it took at most a few rebalances per member to get there.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import uuid
from collections.abc import Iterable
from typing import Any

from headrace._machines.backoff import Backoff
from headrace._machines.group import classic as classic_member
from headrace._machines.group import consumer_protocol as epoch_member
from headrace._machines.group.actions import GroupSettings, MemberIdentity, Subscription
from headrace._machines.group.assignors import assignors_of
from headrace._machines.group.classic import ClassicMember
from headrace._machines.group.consumer_protocol import ConsumerProtocolMember
from headrace.errors import HeadraceError
from headrace.types import TopicPartition

from .classic_coordinator import ClassicCoordinator, GroupState
from .clock import VirtualClock
from .epoch_coordinator import EpochCoordinator, MemberState
from .network import Network
from .process import Process, is_expected

_BACKOFF = Backoff(100, 1000)
_STABLE_WITHIN = 600.0
_CHECK_EVERY = 20.0  # seconds between two checks whether the group is stable

STRATEGIES = {
    "eager": ("range", "roundrobin,range", "sticky,range", "range,roundrobin,sticky", "sticky,roundrobin,range"),
    # The last one is eager. Applications use it while they migrate from eager to cooperative.
    "cooperative": ("cooperative-sticky", "cooperative-sticky", "cooperative-sticky", "cooperative-sticky,range"),
}


class Violation(AssertionError):
    """A broken invariant. The message has the command to reproduce it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """The parameters of a run, which determine it completely."""

    kind: str
    """eager, cooperative or epoch (KIP-848)."""
    seed: int
    members: int = 6
    disturbances: int = 25
    through_bytes: bool = False

    @property
    def is_crowd(self) -> bool:
        return self.members > 50

    def __str__(self) -> str:
        bytes_too = " --through-bytes" if self.through_bytes else ""
        return (
            f"PYTHONPATH=tests python -m simulation {self.kind} --first {self.seed} --seeds 1"
            f" --members {self.members} --disturbances {self.disturbances}{bytes_too}"
        )


class World:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = VirtualClock()
        self.dice = random.Random(f"{scenario.kind} {scenario.seed}")
        self.poll_times = (1.0, 5.0) if scenario.is_crowd else (0.0, 0.5)
        self.work_times = (1.0, 5.0) if scenario.is_crowd else (0.0, 1.0)
        self.slow_callbacks = 0.0
        self.delays = 0.0
        """The probability that the user delays a revoke (KIP-983)."""
        self.commits = 0.2
        self.topics: dict[str, tuple[uuid.UUID, int]] = {}
        self.processes: list[Process] = []
        self.coordinator: ClassicCoordinator | EpochCoordinator
        if scenario.kind == "epoch":
            self.coordinator = EpochCoordinator(self.clock, lambda: self.topics)
        else:
            self.coordinator = ClassicCoordinator(self.clock)
        self.network = Network(self.clock, self.dice, self.coordinator, scenario.through_bytes)
        self.takes = 0
        self._holders: collections.defaultdict[Any, list[Process]] = collections.defaultdict(list)
        self._events: collections.deque[tuple[float, str, tuple[Any, ...]]] = collections.deque(maxlen=120)
        self._names = 0

    # -- topics and processes ----------------------------------------------------------------------------------

    def make_topic(self, name: str, partitions: int) -> None:
        self.topics[name] = (uuid.UUID(int=self.dice.getrandbits(128)), partitions)
        self._announce_topics()

    def add_partitions(self, name: str, more: int) -> None:
        id, partitions = self.topics[name]
        self.topics[name] = (id, partitions + more)
        self._announce_topics()

    def _announce_topics(self) -> None:
        for each in self.live():
            self.clock.after(self.dice.uniform(0, 3), each.topics_changed)

    def layout(self) -> dict[str, int]:
        return {name: count for name, (_, count) in self.topics.items()}

    def names(self) -> dict[uuid.UUID, str]:
        return {id: name for name, (id, _) in self.topics.items()}

    def live(self) -> list[Process]:
        return [each for each in self.processes if each.is_live]

    def start(self, instance_id: str | None = None) -> Process:
        self._names += 1
        name = f"p{self._names}"
        dice = self.dice
        settings = GroupSettings(
            "group",
            instance_id,
            dice.choice([None, "rack"]),
            session_timeout=dice.choice([6.0, 10.0]),
            heartbeat_interval=dice.choice([1.5, 2.0, 3.0]),
            max_poll_interval=dice.choice([12.0, 20.0, 30.0]),
            request_timeout=5.0,
        )
        if self.scenario.kind == "epoch":
            process = Process(
                self, name, ConsumerProtocolMember(settings, name, _BACKOFF, dice.random), {}, instance_id
            )
        else:
            assignors = assignors_of(dice.choice(STRATEGIES[self.scenario.kind]))
            machine = ClassicMember(settings, assignors, _BACKOFF, dice.random)
            process = Process(self, name, machine, {each.name: each for each in assignors}, instance_id)
        self.processes.append(process)
        subscription = self.any_subscription()
        self.note(process, "starts", instance_id, subscription)
        process.start(subscription)
        return process

    def any_subscription(self) -> Subscription:
        names = sorted(self.topics)
        if self.scenario.kind == "epoch" and self.dice.random() < 0.2:
            return Subscription(frozenset(self.dice.sample(names, self.dice.randint(0, 1))), "t[0-2]")
        count = len(names) if self.dice.random() < 0.6 else self.dice.randint(1, len(names))
        return Subscription(frozenset(self.dice.sample(names, count)))

    def callback_time(self) -> float:
        if self.slow_callbacks and self.dice.random() < self.slow_callbacks:
            return self.dice.uniform(0, 40)
        return self.dice.uniform(0, 0.2)

    # -- invariants at every moment ----------------------------------------------------------------------------

    def begins_to_hold(self, process: Process, partition: TopicPartition, slot: Any) -> None:
        self.takes += 1
        self._holders[slot].append(process)
        self._check_owner(process, partition, slot)

    def identity_changed(self, process: Process) -> None:
        for partition, slot in process.holding.items():
            self._check_owner(process, partition, slot)

    def _check_owner(self, process: Process, partition: TopicPartition, slot: Any) -> None:
        holders = self._holders[slot]
        if len(holders) > 1 and self.coordinator.counts(process.machine.identity, slot):
            for other in holders:
                if other is not process and self.coordinator.counts(other.machine.identity, slot):
                    self.violated(f"{process.name} takes {partition}, which {other.name} has")

    def holds_no_longer(self, process: Process, slot: Any) -> None:
        self._holders[slot].remove(process)

    def commit_accepted(self, process: Process, sent: MemberIdentity, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            slot = process.holding.get(each)
            for other in self._holders[slot] if slot is not None else ():
                if other is not process and self.coordinator.counts(other.machine.identity, slot):
                    self.violated(f"{process.name} commits {each} as {sent}, which {other.name} has")

    def failed(self, process: Process, error: HeadraceError) -> None:
        if not is_expected(error, process.instance_id is not None) or not self._may_be_replaced(process):
            self.violated(f"{process.name} failed: {error!r}")

    def _may_be_replaced(self, process: Process) -> bool:
        """Another process has its instance id; or its last member id was not in the log when the coordinator moved, so
        that its own old member id has the instance id."""
        same = [each for each in self.processes if each.instance_id == process.instance_id]
        return len(same) > 1 or (self.network.moves > 0 and isinstance(self.coordinator, ClassicCoordinator))

    # -- the stable state --------------------------------------------------------------------------------------

    def settle(self) -> float:
        """Run until the group is stable in two consecutive checks. Return the time it took."""
        began, before = self.clock.now, self.coordinator.position
        seen: tuple[Any, ...] | None = None
        while True:
            self.clock.run_until(self.clock.now + _CHECK_EVERY)
            trouble = self._instability()
            now = (self.coordinator.position, self.takes)
            if not trouble and now == seen:
                break
            seen = None if trouble else now
            if self.clock.now - began > _STABLE_WITHIN:
                self.violated(f"not stable after {_STABLE_WITHIN:.0f} s: {trouble or 'rebalances continue'}")
        self._check_commits()
        rebalances = self.coordinator.position - before
        if rebalances > 10 + 4 * len(self.processes):
            self.violated(f"{rebalances} rebalances after the last disturbance")
        return self.clock.now - began

    def _instability(self) -> str | None:
        live = self.live()
        return self._disagreement(live) or self._gaps(live)

    def _disagreement(self, live: list[Process]) -> str | None:
        identities = {each.machine.identity.member_id: each for each in live}
        if identities.keys() != self.coordinator.members.keys():
            return f"live are {sorted(identities)}, the group has {sorted(self.coordinator.members)}"
        if isinstance(self.coordinator, ClassicCoordinator):
            if live and self.coordinator.state is not GroupState.STABLE:
                return f"the group is {self.coordinator.state.value}"
            for each in live:
                generation = each.machine.identity.generation
                if (
                    each.machine.state is not classic_member.ClassicState.STABLE
                    or generation != self.coordinator.generation
                ):
                    return f"{each.name} is {each.machine.state} in {generation}, not {self.coordinator.generation}"
            return None
        if live and self.coordinator.target_epoch != self.coordinator.group_epoch:
            return "the target assignment is not up to date"
        for id, each in identities.items():
            member = self.coordinator.members[id]
            epochs = each.machine.identity.generation, member.epoch, self.coordinator.target_epoch
            if each.machine.state is not epoch_member.ConsumerProtocolState.MEMBER or len(set(epochs)) > 1:
                return f"{each.name} is {each.machine.state} at {epochs}"
            if member.state is not MemberState.STABLE or set(member.assigned) != set(each.holding.values()):
                return f"{each.name} is {member.state}, has {each.holding}, not {member.assigned}"
        return None

    def _gaps(self, live: list[Process]) -> str | None:
        holders: collections.Counter[TopicPartition] = collections.Counter()
        wanted: set[str] = set()
        for each in live:
            topics = self._topics_of(each)
            wanted |= topics
            holders.update(list(each.machine.owned))
            if strange := sorted(tp for tp in each.machine.owned if tp.topic not in topics):
                return f"{each.name} has {strange} without subscribing to them"
        every = {TopicPartition(name, n) for name in wanted for n in range(self.topics[name][1])}
        if twice := sorted(tp for tp, count in holders.items() if count > 1):
            return f"{twice} are held more than once"
        if unknown := sorted(holders.keys() - every):
            return f"{unknown} do not exist"
        if missing := sorted(every - holders.keys()):
            return None if self._is_excused(missing) else f"{missing} are held by nobody"
        return None

    def _is_excused(self, missing: list[TopicPartition]) -> bool:
        """A static member rejoins without a rebalance and cannot know for which subscription its assignment was made.
        If its predecessor had fewer topics, led the group while topics grew, or had just revoked partitions for a
        second rebalance, no member notices until the next rebalance. The same happens with Java's client."""
        group = self.coordinator
        return isinstance(group, ClassicCoordinator) and group.kept_assignment and not group.given_away() & {*missing}

    def _topics_of(self, process: Process) -> frozenset[str]:
        subscription = process.machine.subscription
        if subscription.server_pattern is None:
            return subscription.topics
        return subscription.topics | frozenset(name for name in self.topics if name in ("t0", "t1", "t2"))

    def _check_commits(self) -> None:
        for each in self.live():
            sent = each.machine.identity
            if code := self.coordinator.commit(sent, sorted(each.machine.owned)):
                self.violated(f"{each.name} is stable as {sent}, but its commit is rejected with {code}")

    # -- the event log -----------------------------------------------------------------------------------------

    def note(self, process: Process | None, *what: Any) -> None:
        self._events.append((self.clock.now, process.name if process else "", what))

    def violated(self, what: str) -> None:
        raise Violation(f"{what}\n\n{self._event_lines()}\n\n{what}\nagain: {self.scenario}")

    def _event_lines(self) -> str:
        return "\n".join(
            f"{time:9.3f} {name:5} " + " ".join(_brief(part) for part in what) for time, name, what in self._events
        )


def _brief(part: Any) -> str:
    text = f"{part.api} {dict(part.fields)}" if hasattr(part, "fields") and hasattr(part, "api") else str(part)
    return text if len(text) < 400 else text[:400] + "..."
