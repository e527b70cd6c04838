"""One simulation: brokers, a network, disturbances until `calm`, and the events that led to a violation."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from headrace.errors import HeadraceError

from .brokers import NODES, Brokers
from .connections import Network, Weather, simulated
from .virtual_loop import StuckError, VirtualLoop, dice_of, virtual_time

_EVENTS = 400
_LONGEST = 3600.0  # virtual seconds
_SLOWER = 1.05


class Violation(AssertionError):
    """An invariant is broken."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a run. `trace` is equal for two runs of the same seed."""

    seconds: float
    requests: int
    lost: int
    faults: Mapping[str, int]
    records: int
    trace: int


class World:
    def __init__(self, loop: VirtualLoop, dice: random.Random, topics: Mapping[str, int], version: int) -> None:
        self.loop = loop
        self.dice = dice
        self.brokers = Brokers(dice, topics, version)
        self.network = Network(dice, self.brokers)
        self.records = 0
        self.kills = 0
        self.is_calm = False
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._trace = 0
        self._acts: list[tuple[Callable[[], object], int]] = [
            (self.brokers.move_leaders, 3),
            (self.brokers.move_coordinators, 2),
            (self.network.cut_some, 4),
            (self._restart, 2),
        ]

    # -- disturbances --------------------------------------------------------------------------------------------

    def add_act(self, act: Callable[[], object], weight: int) -> None:
        self._acts.append((act, weight))

    def begin_trouble(self) -> None:
        dice = self.dice
        rate = dice.choice((0.0, 0.01, 0.03, 0.1))
        self.network.weather = Weather(
            lost_request=rate, lost_response=rate, arrives_late=0.5, refuses=rate, silent=rate / 10
        )
        self.brokers.error_rate = dice.choice((0.0, 0.02, 0.1))
        self.brokers.slowest_replication = dice.choice((0.001, 0.02, 0.2))
        self._pauses = dice.choice((0.05, 0.5, 3.0))
        self.loop.call_later(dice.random() * self._pauses, self._disturb)

    def _disturb(self) -> None:
        if self.is_calm:
            return
        acts, weights = zip(*self._acts, strict=True)
        act = self.dice.choices(acts, weights)[0]
        self.note(getattr(act, "__name__", str(act)))
        act()
        self._pauses *= _SLOWER  # a simulation that takes long is not all disturbances
        self.loop.call_later(self.dice.random() * self._pauses, self._disturb)

    def _restart(self) -> None:
        if len(self.brokers.down) < len(NODES) - 1:
            self.brokers.restart(self.dice.choice(NODES), self.dice.choice((0.2, 2.0, 20.0)))

    def calm(self) -> None:
        """No more faults. Those that have begun end at their time."""
        self.is_calm = True
        self.network.weather = Weather()
        self.brokers.calm()

    async def pause(self, *seconds: float) -> None:
        await asyncio.sleep(self.dice.choice(seconds) * self.dice.random())

    async def until_idle(self) -> None:
        """Wait until every transaction has ended: those that nobody ends by their timeout."""
        brokers = self.brokers
        while not brokers.transactions.is_idle or any(each.pending for each in brokers.groups.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.5)  # virtual

    # -- what has happened ---------------------------------------------------------------------------------------

    def note(self, *what: Any) -> None:
        line = f"{self.loop.time() - 1000:9.3f} " + " ".join(str(each) for each in what)
        self._trace = zlib.crc32(line.encode(), self._trace)
        self._events.append(line)

    def violated(self, what: str) -> Violation:
        return Violation("\n".join([what, "", *self._events, "", what]))

    def check(self, is_true: bool, what: str) -> None:
        if not is_true:
            raise self.violated(what)

    def outcome(self) -> Outcome:
        faults = {**self.brokers.counts, "kills": self.kills, "timeouts": self.brokers.transactions.timeouts}
        faults["truncated"] = sum(each.log.truncated for each in self.brokers.partitions.values())
        requests, lost = self.network.requests, self.network.lost
        return Outcome(self.loop.time() - 1000, requests, lost, faults, self.records, self._trace)


Scenario = Callable[[World], Coroutine[Any, Any, None]]


def simulate(kind: str, seed: int, topics: Mapping[str, int], version: int | None, scenario: Scenario) -> Outcome:
    """Run a scenario. Raises Violation. Without a `version` of transactions, it is drawn."""
    dice = dice_of(seed, kind)
    with virtual_time(seed) as loop:

        async def run() -> Outcome:
            world = World(loop, dice, topics, version or dice.choice((1, 2)))
            with simulated(world.network):
                try:
                    async with asyncio.timeout(_LONGEST):
                        await scenario(world)
                except TimeoutError as error:
                    if isinstance(error, HeadraceError):
                        raise
                    raise world.violated("the simulation does not end") from None
            if loop.crashes:
                raise world.violated("; ".join(loop.crashes))
            return world.outcome()

        try:
            return loop.run(run())
        except StuckError as error:
            raise Violation(str(error)) from error
