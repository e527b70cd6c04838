"""KIP-333 with a broker: members that are killed at any moment, or paused too long, while records are written.

`make soak` runs many rounds; ROUNDS and SEED select others.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Mapping

import pytest

from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import CommitMark
from support.brokers.admin import Admin, unique
from support.brokers.steady_writer import SteadyWriter
from support.harness.groups import WAYS, with_session
from support.harness.waiting import Rounds, wait_for
from support.ledgers.lane_ledger import Logs, lane_commits
from support.members.dead_members import remove_member
from support.members.group_trial import in_all_ways
from support.members.two_lane_processes import LaneMember, LaneMembers

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SEED = int(os.environ.get("SEED", "1"))
PARTITIONS = 4
MODES = ("auto", "manual", "done")
_WORK = 0.005
_A_WHILE = 0.4
_ZOMBIES = 0.3
_SESSION = 8.0


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_two_lane_members_killed_at_random_moments_lose_nothing(admin: Admin) -> None:
    in_all_ways(lambda way: _Rounds(admin, way).play())


class _Rounds:
    """One group with one or two members at a time."""

    def __init__(self, admin: Admin, way: str) -> None:
        self._servers = admin.bootstrap_servers
        self._topic = admin.create(f"killed-{way}", PARTITIONS)
        self._group = unique("g")
        # A process that dies while joining is no member yet and cannot be removed. It delays the others that long.
        self._settings = with_session(self._servers, self._group, WAYS[way], _SESSION)
        self._chance = random.Random(f"{SEED} {way}")
        self._members = LaneMembers(self._topic)
        self._alive: list[LaneMember] = []

    def play(self) -> None:
        # Idempotent: a retry must not change the order, since a record's value is its offset.
        settings = {"limit": 1_000_000, "each_time": 3, "enable_idempotence": True}
        with SteadyWriter(self._servers, self._topic, PARTITIONS, **settings) as writer, self._members:
            ledger = self._members.ledger
            rounds = Rounds("records of both lanes", 0, at_least=ROUNDS, timeout=60 + 10 * ROUNDS)
            for _ in rounds:
                self._play_round()
                rounds.met = min(ledger.count("backlog"), ledger.count("live"))
            last = self._start("auto")
            ends = {partition: end for (_, partition), end in writer.finish().items()}
            self._members.wait("all was handed out", lambda: not ledger.missing(ends))
            # A record may have gone to a dead member; then it must be delivered again.
            wait_for("all is done or in hand", lambda: self._nothing_is_left([*self._alive, last], ends), every=0.2)
            self._members.stop(*self._alive, last)
        commits = lane_commits(self._servers, self._group)
        ledger.check_ownerships()
        ledger.check_commits(commits)
        repeated, uncommitted = ledger.repeats()
        assert repeated <= uncommitted
        logs = Logs(commits)
        for partition, end in ends.items():
            assert logs.first(partition) == CommitMark(end, OffsetSet(end)), (
                "any other client must find everything done"
            )

    def _nothing_is_left(self, members: list[LaneMember], ends: Mapping[int, int]) -> bool:
        """Whether the owners have read everything, so that a proper close leaves nothing open."""
        logs, names = Logs(lane_commits(self._servers, self._group)), [member.name for member in members]
        ledger = self._members.ledger
        return not any((logs.done(p) | ledger.in_hands(names, p)).open(0, end) for p, end in ends.items())

    def _play_round(self) -> None:
        for _ in range(self._chance.choice((1, 1, 2)) - len(self._alive)):
            self._alive.append(self._start(self._chance.choice(MODES)))
        victim = self._chance.choice(self._alive)
        moment = self._chance.choice(("started", "assigned", "handed", "handed", "handed"))
        self._members.wait(f"{victim.name} has {moment}", lambda: moment in victim.words)
        threading.Event().wait(self._chance.uniform(0, _A_WHILE))
        if moment == "handed" and self._chance.random() < _ZOMBIES:
            self._make_zombie(victim)
            return
        victim.kill()
        self._members.wait_gone(victim)
        remove_member(self._servers, self._group, victim.name)
        self._alive.remove(victim)

    def _make_zombie(self, victim: LaneMember) -> None:
        """Pause the member until others own all partitions, then resume it."""
        victim.pause()
        remove_member(self._servers, self._group, victim.name)
        others = [member for member in self._alive if member is not victim] or [self._start("auto")]
        self._alive = [victim, *others]
        ledger, names = self._members.ledger, [member.name for member in others]
        self._members.wait("others have all", lambda: ledger.owned(names) == set(range(PARTITIONS)))
        victim.resume()

    def _start(self, mode: str) -> LaneMember:
        settings = {
            "bootstrap_servers": self._servers,
            "group_id": self._group,
            "auto_offset_reset": "earliest",
            "max_poll_records": 20,
            "enable_auto_commit": mode != "manual",
            "auto_commit_interval_ms": 50,
            "commit_mode": "done" if mode == "done" else "returned",
            **self._settings,
        }
        return self._members.start(settings=settings, mode=mode, work=_WORK)
