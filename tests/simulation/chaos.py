"""What is done to a group: members come, go, die, freeze and dawdle; topics grow; the coordinator moves; nets break."""

from __future__ import annotations

import dataclasses
import gc

from .network import Weather
from .process import Process
from .world import Scenario, World

_MOST_TOPICS = 4
_AT_ONCE = 30  # of a thousand


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a run was like."""

    events: int
    requests: int
    takes: int
    rebalances: int
    seconds: float
    """Virtual ones."""
    settled_in: float


def run(scenario: Scenario) -> Outcome:
    """Raises Violation if something did not hold."""
    collects = gc.isenabled()
    gc.disable()  # a third of the time with a thousand members, and nothing to find before the end
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
        self._for_many = (self._come, self._go, self._die, self._freeze, self._dawdle, self._subscribe, self._cut_off)
        self._acts = [
            (self._come, 4),
            (self._go, 3),
            (self._die, 3),
            (self._freeze, 2),
            (self._dawdle, 2),
            (self._subscribe, 3),
            (self._enforce, 1),
            (self._grow, 2),
            (self._make_topic, 1),
            (self._make_again, 1),
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
        """The last disturbances are over when their time is."""
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
        """A static member is stopped, or killed, and started again."""
        if not self._places:
            return
        here = [each for each in self.world.live() if each.instance_id is not None]
        if not here:
            return
        old = self._dice.choice(here)
        if self._scenario.kind != "epoch" and self._dice.random() < 0.5:
            old.die()  # a KIP-848 group would refuse its successor until the session is over
            self.world.note(old, "dies, for a successor")
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

    def _dawdle(self) -> None:
        if process := self._somebody():
            seconds = self._dice.uniform(10, 50)
            self.world.note(process, "will dawdle for", seconds)
            process.dawdle(seconds)

    def _subscribe(self) -> None:
        if process := self._somebody():
            subscription = self.world.any_subscription()
            self.world.note(process, "subscribes", subscription)
            process.subscribe(subscription)

    def _enforce(self) -> None:
        if process := self._somebody():
            process.machine.rejoin("asked for")

    def _grow(self) -> None:
        name = self._dice.choice(sorted(self.world.topics))
        self.world.note(None, "grows", name)
        self.world.add_partitions(name, self._dice.randint(1, 3))

    def _make_topic(self) -> None:
        if len(self.world.topics) < _MOST_TOPICS:
            self.world.make_topic(f"t{len(self.world.topics)}", self._dice.randint(1, 4))

    def _make_again(self) -> None:
        """Deleted and made anew, with as many partitions or more: classic members go by names."""
        name = self._dice.choice(sorted(self.world.topics))
        self.world.note(None, "made again", name)
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
