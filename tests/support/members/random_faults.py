"""Random faults: each round something happens to a member of each group and, often, to a broker.

In a round all faults happen at once. Then paused members resume, dead ones are replaced, the broker is restarted, and
every group must become stable and commit. `GroupTrial.finish` checks all reads and commits.

The same seed makes the same choices. Their consequences also depend on the machine.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from contextlib import ExitStack
from typing import Any, Self

from headrace import LocalBroker
from support.brokers.admin import Admin
from support.ledgers.commit_history import OFFSETS_TOPIC
from support.members.group_trial import WAYS, GroupTrial, at_once
from support.members.processes import Peer

log = logging.getLogger(__name__)

_SESSION = 3.0
_MEMBERS = 3
_MODULES = ("misbehaving_member", "misbehaving_member", "async_member")
_LONGEST_PAUSE = 2 * _SESSION
_TIMEOUT = 60.0


class FaultedGroup:
    """A group with its current members."""

    def __init__(self, trial: GroupTrial, chance: random.Random) -> None:
        self.trial = trial
        self.members: list[Peer] = []
        self._chance = chance
        self._names = 0
        self._paused: Peer | None = None

    def fill_up(self) -> None:
        while len(self.members) < _MEMBERS:
            self._names += 1
            module = _MODULES[self._names % len(_MODULES)]
            self.members.append(self.trial.start(f"{module.split('_')[0]}-{self._names}", module))

    def suffer(self) -> str:
        """Apply one fault, or none, and describe it."""
        victim = self._chance.choice(self.members)
        fault = self._chance.choice(("kill", "close", "pause", "join", "nothing"))
        if fault == "kill":
            victim.kill()
            self.members.remove(victim)
        elif fault == "close":
            victim.terminate()
            self.members.remove(victim)
        elif fault == "pause":
            victim.pause()
            self._paused = victim
        elif fault == "join" and len(self.members) == _MEMBERS:
            self._names += 1
            self.members.append(self.trial.start(f"newcomer-{self._names}"))
        return f"{self.trial.group}: {fault} {victim.name}"

    def recover(self) -> None:
        if self._paused is not None:
            self._paused.resume()
            self._paused = None
        self.fill_up()


class RandomFaults:
    def __init__(self, cluster: LocalBroker, admin: Admin, partitions: int, seed: int) -> None:
        self._cluster = cluster
        self._admin = admin
        self._chance = random.Random(seed)
        self._groups = [
            FaultedGroup(GroupTrial(admin, way, partitions, session=_SESSION, replication=3), self._chance)
            for way in WAYS
        ]
        self._partitions = partitions

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            for group in self._groups:
                opened.enter_context(group.trial)
            self._opened = opened.pop_all()
        for group in self._groups:
            group.fill_up()
        self._wait_flowing()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._opened.__exit__(*problem)

    def play_round(self, number: int) -> None:
        began = time.monotonic()
        broker = self._chance.choice(self._cluster.brokers)
        ill = self._chance.choice(("kill", "restart", "pause", "nothing"))
        happened = [group.suffer() for group in self._groups]
        if ill == "kill":
            self._cluster.kill(broker)
        elif ill == "pause":
            self._cluster.pause(broker)
        time.sleep(self._chance.uniform(0, _LONGEST_PAUSE))  # the fault lasts for a while
        for group in self._groups:
            group.recover()
        if ill == "pause":
            self._cluster.resume(broker)
        elif ill != "nothing":
            self._cluster.restart(broker)
        self._wait_flowing()
        for topic in [*(group.trial.topic for group in self._groups), OFFSETS_TOPIC]:
            self._admin.wait_in_sync(topic, len(self._cluster.brokers), self._partitions)
        log.info(
            "round %d: %s; %s broker %d; %.1f s", number, ", ".join(happened), ill, broker, time.monotonic() - began
        )

    def _wait_flowing(self) -> None:
        for group in self._groups:
            group.trial.wait_flowing(group.members, _TIMEOUT)

    def finish(self) -> None:
        at_once({each.trial.group: functools.partial(each.trial.finish, *each.members) for each in self._groups})
