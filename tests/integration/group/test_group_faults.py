"""One broker, and members that close, die, are paused, work for long or never return, while records are written."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest

from headrace._machines.group.assignors import RangeAssignor
from headrace.errors import CommitFailedError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.consumers import MakeConsumer
from support.harness.groups import WAYS as GROUP_WAYS
from support.harness.groups import member, poll_all, polling, stable
from support.harness.retries import patiently
from support.members.events import Closed, Lost, Read, milliseconds
from support.members.group_trial import GroupTrial, in_all_ways

pytestmark = pytest.mark.timeout(400)

PARTITIONS = 6
SESSION = 3.0
HASTE = 0.75 * SESSION
"""An event before this time is not due to a session timeout, even if a heartbeat or two are missing."""
INTERVAL = 6.0


def seconds_since(at: int, moment: int) -> float:
    return (moment - at) / 1000


def test_nothing_is_lost_by_members_that_close_die_or_are_paused(admin: Admin) -> None:
    """Partitions of a closed member move at once, those of the others after the session timeout.

    The paused member has read records that it could not commit. When it resumes, the commit is rejected, its partitions
    are reported as lost, and it rejoins.
    """

    def scenario(way: str, scale: float) -> None:
        haste = scale * HASTE
        with GroupTrial(admin, way, PARTITIONS, session=scale * SESSION) as trial:
            ledger, peers = trial.ledger, trial.peers
            closing, killed, paused, last = trial.start_all("closing", "killed", "paused", "last")

            had = ledger.owned("closing")
            peers.stop(closing)
            (closed,) = (each.at for each in closing.events if isinstance(each, Closed))
            trial.wait_flowing([killed, paused, last])
            moved = [
                ownership.begun
                for ownership in ledger.ownerships
                if ownership.tp in had and ownership.member != "closing"
            ]
            assert seconds_since(closed, max(moved)) < haste

            had = ledger.owned("killed")
            before = milliseconds()
            killed.kill()
            trial.wait_flowing([paused, last])
            moved = [ownership.begun for ownership in trial.ownerships_since(before, had)]
            assert seconds_since(before, min(moved)) > haste

            trial.hold(paused)
            had = ledger.owned("paused")
            before = milliseconds()
            paused.pause()
            peers.wait("all partitions at the last member", lambda: ledger.owned("last") == ledger.partitions)
            taken = milliseconds()
            peers.wait("commits of the last member", lambda: trial.committed_at(last) >= taken)
            moved = [ownership.begun for ownership in trial.ownerships_since(before, had)]
            assert seconds_since(before, min(moved)) > haste
            paused.resume()
            trial.release(paused)
            lost = peers.wait(
                "the loss of the paused member", lambda: [each for each in paused.events if isinstance(each, Lost)]
            )
            assert lost[0].partitions == had
            trial.wait_flowing([paused, last])
            trial.wait_state("STABLE", [paused, last])
            trial.finish(paused, last)

            refusals = set(trial.refusals_of(paused))
            assert len(refusals) == 1
            assert "the group has assigned this consumer's partitions to others" in refusals.pop()
            assert [each for each in ledger.refused if each[0] != "paused"] == []
            # Only uncommitted records of the paused member were read twice, and perhaps those of the killed member.
            assert {"lost"} <= {repeat.first.ending for repeat in ledger.repeats()} <= {"lost", "killed"}
            # Ownerships overlap only if the earlier owner could not know about its loss.
            assert {earlier.ending for earlier, _ in ledger.overlaps()} <= {"lost"}

    in_all_ways(lambda way: patiently(functools.partial(scenario, way)))


def test_nothing_is_lost_by_a_slow_and_a_livelocked_member(admin: Admin) -> None:
    """Work beyond the session timeout has no effect. Work beyond max.poll.interval.ms ends the membership, and the
    other members keep consuming."""

    def scenario(way: str, scale: float) -> None:
        session, interval = scale * SESSION, scale * INTERVAL
        limit = round(interval * 1000)
        with GroupTrial(admin, way, PARTITIONS, session=session, max_poll_interval_ms=limit) as trial:
            quick, slow, stuck = trial.start_all("quick", "slow", "stuck")
            others = [trial.ledger.owned(each) for each in ("quick", "slow")]
            rest = milliseconds()
            trial.hold(slow, stuck, busy=True)
            before = milliseconds()
            held = trial.ledger.owned("stuck")

            def has_worked() -> bool:
                return isinstance(quick.events[-1], Read) and seconds_since(before, quick.events[-1].at) > session + 0.5

            trial.peers.wait("reads of the quick member", has_worked)
            trial.release(slow)
            trial.peers.wait("a commit of the slow member", lambda: trial.committed_at(slow) >= before)
            assert trial.changes_since(rest) == []
            assert [trial.ledger.owned(each) for each in ("quick", "slow")] == others

            trial.peers.wait("new owners of its partitions", lambda: trial.ownerships_since(before, held))
            (first, *_) = sorted(ownership.begun for ownership in trial.ownerships_since(before, held))
            assert interval - 0.5 * scale < seconds_since(before, first) < interval + scale * HASTE
            stuck.kill()
            trial.wait_flowing([quick, slow])
            trial.wait_state("STABLE", [quick, slow])
            trial.finish(quick, slow)
            assert trial.ledger.refused == []
            assert {repeat.first.member for repeat in trial.ledger.repeats()} == {"stuck"}

    in_all_ways(lambda way: patiently(functools.partial(scenario, way)))


class Gated(RangeAssignor):
    """An assignor that waits until the gate is open. It blocks the event loop of its consumer."""

    def __init__(self) -> None:
        self.is_reached, self.is_open = threading.Event(), threading.Event()
        self.is_open.set()

    def assign(self, members: Any, partitions: Any) -> Any:
        self.is_reached.set()
        assert self.is_open.wait(60)
        return super().assign(members, partitions)


def test_revoked_partitions_are_not_committed_under_a_later_generation(
    make_sync: MakeConsumer, admin: Admin, servers: str
) -> None:
    """A commit that is rejected because of a rebalance is retried in the next generation, but not for partitions that
    were revoked in it: another member owns them by then and may have committed."""
    topic, group, gate = admin.create("late", 4), unique("g"), Gated()
    for partition in range(4):
        write(servers, topic, numbered(10, partition))
    way = {**GROUP_WAYS["eager"], "enable_auto_commit": False}
    leader = member(make_sync, servers, group, [topic], **{**way, "partition_assignment_strategy": [gate]})
    poll_all([leader], stable([leader], 4))
    late = member(make_sync, servers, group, [topic], **way)
    poll_all([leader, late], stable([leader, late], 4))
    read = dict.fromkeys(late.assignment(), 5)
    late.commit(read)
    gate.is_reached.clear()
    gate.is_open.clear()
    newcomer = member(make_sync, servers, group, [topic], **way)
    with polling(leader, newcomer):
        try:
            poll_all([late], lambda: gate.is_reached.is_set())
            assert late.assignment() == set()
            with pytest.raises(CommitFailedError, match="were revoked"):
                late.commit({tp: offset - 1 for tp, offset in read.items()}, timeout=20)
        finally:
            gate.is_open.set()
        poll_all([late], stable([leader, late, newcomer], 4))
    assert {tp: found and found.offset for tp, found in late.committed(read).items()} == read
