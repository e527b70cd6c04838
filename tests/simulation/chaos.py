"""Disturbances of a group: members join, leave, die, freeze and are slow; topics grow; the coordinator moves;
connections break."""

from __future__ import annotations

import dataclasses
import gc

from .network import Weather
from .process import Process
from .world import Scenario, World

_MOST_TOPICS = 4
_AT_ONCE = 30  # disturbed members in a group of a thousand


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a run."""

    events: int
    requests: int
    takes: int
    rebalances: int
    seconds: float
    """Virtual seconds."""
    settled_in: float


def run(scenario: Scenario) -> Outcome:
    """Run a scenario. Raises Violation if an invariant is broken."""
    collects = gc.isenabled()
    gc.disable()  # it takes a third of the time with a thousand members, and there is no garbage before the end
    try:
        return Chaos(scenario).run()
    finally:
        if collects:
            gc.enable()


class Chaos:
    def __init__(self, scenario: Scenario) -> None:
        self.world = World(scenario)
        self._scenario = scenario
        self._dice = self.world.dice
        self._places = [f"place-{n}" for n in range(3)] if self._dice.random() < 0.5 else []
        self._for_many = (
            self._come,
            self._go,
            self._die,
            self._freeze,
            self._slow_down,
            self._subscribe,
            self._cut_off,
        )
        self._acts = [
            (self._come, 4),
            (self._go, 3),
            (self._die, 3),
            (self._freeze, 2),
            (self._slow_down, 2),
            (self._subscribe, 3),
            (self._enforce, 1),
            (self._hint, 2),
            (self._grow, 2),
            (self._make_topic, 1),
            (self._recreate, 1),
            (self._move, 2),
            (self._cut_off, 2),
            (self._break, 3),
            (self._come_back, 3),
        ]

    def run(self) -> Outcome:
        world, dice, scenario = self.world, self._dice, self._scenario
        for n in range(dice.randint(1, _MOST_TOPICS - 1)):
            fewest = scenario.members if scenario.is_crowd else 1
            world.make_topic(f"t{n}", dice.randint(fewest, scenario.members + 2))
        together = scenario.is_crowd or dice.random() < 0.5
        for _ in range(scenario.members if scenario.is_crowd else max(1, scenario.members * 2 // 3)):
            self._come()
            if not together:
                self._wait(dice.uniform(0, 2))
        world.network.weather = Weather(breaks=dice.choice([0.0, 0.01, 0.05]), arrives_late=0.3, slow=0.02)
        world.slow_callbacks = dice.choice([0.0, 0.02, 0.1])
        world.delays = dice.choice([0.0, 0.0, 0.3])
        acts, weights = zip(*self._acts, strict=True)
        for _ in range(scenario.disturbances):
            self._wait(dice.choice([0.0, 0.1, 1.0, 5.0, 20.0]) * dice.random())
            act = dice.choices(acts, weights)[0]
            for _ in range(_AT_ONCE if scenario.is_crowd and act in self._for_many else 1):
                act()
        self._calm()
        settled_in = world.settle()
        return Outcome(
            world.clock.events,
            world.network.requests,
            world.takes,
            world.coordinator.position,
            world.clock.now,
            settled_in,
        )

    def _calm(self) -> None:
        """Stop new disturbances. Running ones end at their time."""
        world = self.world
        world.network.weather = Weather()
        world.slow_callbacks = 0.0
        world.delays = 0.0
        if not world.live():
            self._come()

    def _wait(self, seconds: float) -> None:
        self.world.clock.run_until(self.world.clock.now + seconds)

    def _somebody(self) -> Process | None:
        live = self.world.live()
        return self._dice.choice(live) if live else None

    # -- disturbances ------------------------------------------------------------------------------------------

    def _come(self) -> None:
        world = self.world
        if len(world.live()) >= self._scenario.members:
            return
        taken = {each.instance_id for each in world.live()}
        free = [place for place in self._places if place not in taken]
        world.start(self._dice.choice(free) if free and self._dice.random() < 0.5 else None)

    def _come_back(self) -> None:
        """Stop or kill a static member and restart it."""
        if not self._places:
            return
        here = [each for each in self.world.live() if each.instance_id is not None]
        if not here:
            return
        old = self._dice.choice(here)
        if self._scenario.kind != "epoch" and self._dice.random() < 0.5:
            old.die()  # a KIP-848 group would reject its successor until the session expires
            self.world.note(old, "dies, to be restarted")
            self._wait(self._dice.uniform(0, 3))
            self.world.start(old.instance_id)
            return
        old.close()
        for _ in range(200):
            self._wait(0.5)
            if not old.is_live:
                break
        if not old.is_live and old.instance_id not in {each.instance_id for each in self.world.live()}:
            self._wait(self._dice.uniform(0.1, 3))
            self.world.start(old.instance_id)

    def _go(self) -> None:
        if process := self._somebody():
            self.world.note(process, "is to close")
            process.close()

    def _die(self) -> None:
        process = self._somebody()
        if process and (process.instance_id is None or self._scenario.kind != "epoch"):
            self.world.note(process, "dies")
            process.die()

    def _freeze(self) -> None:
        if process := self._somebody():
            seconds = self._dice.uniform(0, 40)
            self.world.note(process, "is frozen for", seconds)
            process.freeze(seconds)

    def _slow_down(self) -> None:
        if process := self._somebody():
            seconds = self._dice.uniform(10, 50)
            self.world.note(process, "will be slow for", seconds)
            process.slow_down(seconds)

    def _subscribe(self) -> None:
        if process := self._somebody():
            subscription = self.world.any_subscription()
            self.world.note(process, "subscribes", subscription)
            process.subscribe(subscription)

    def _enforce(self) -> None:
        if process := self._somebody():
            process.machine.rejoin("asked for")

    def _hint(self) -> None:
        """Some members hear that the group changes, whether it does or not."""
        for process in self.world.live():
            if self._dice.random() < 0.5:
                process.hint()

    def _grow(self) -> None:
        name = self._dice.choice(sorted(self.world.topics))
        self.world.note(None, "grows", name)
        self.world.add_partitions(name, self._dice.randint(1, 3))

    def _make_topic(self) -> None:
        if len(self.world.topics) < _MOST_TOPICS:
            self.world.make_topic(f"t{len(self.world.topics)}", self._dice.randint(1, 4))

    def _recreate(self) -> None:
        """Delete and recreate a topic with at least as many partitions, since classic members only know names."""
        name = self._dice.choice(sorted(self.world.topics))
        self.world.note(None, "recreated", name)
        self.world.make_topic(name, self.world.topics[name][1] + self._dice.randint(0, 2))

    def _move(self) -> None:
        self.world.note(None, "the coordinator moves")
        self.world.network.move_coordinator(self._dice.uniform(0, 8), self._dice.uniform(0, 4))

    def _cut_off(self) -> None:
        if process := self._somebody():
            seconds = self._dice.uniform(0, 40)
            self.world.note(process, "is cut off for", seconds)
            process.is_cut_off = True
            self.world.clock.after(seconds, self._reconnect, process)

    @staticmethod
    def _reconnect(process: Process) -> None:
        process.is_cut_off = False

    def _break(self) -> None:
        if process := self._somebody():
            self.world.note(process, "connections break")
            for link in (process.link, process.parking_link):
                self.world.network.break_link(link)
