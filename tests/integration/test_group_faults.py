"""One broker, and members that close, die, are paused, work for long or never come back, while records flow."""

from __future__ import annotations

from support.admin import Admin
from support.group_events import Lost, Read, milliseconds
from support.group_trial import GroupTrial, in_all_ways

PARTITIONS = 6
SESSION = 2.0
HASTE = 0.75 * SESSION
"""What happens sooner was not due to a session that timed out. A heartbeat or two may be missing."""
INTERVAL = 4.0


def seconds_since(at: int, moment: int) -> float:
    return (moment - at) / 1000


def test_members_that_close_die_or_are_paused(admin: Admin) -> None:
    """Partitions of one that closes move at once, those of the others when the session has timed out.

    The paused one has read records that it could not commit before it was stopped. When it goes on, it is too late:
    the commit is refused, what it had is reported as lost, and it joins again.
    """

    def scenario(way: str) -> None:
        with GroupTrial(admin, way, PARTITIONS, session=SESSION) as trial:
            ledger, peers = trial.ledger, trial.peers
            closing, killed, paused, last = trial.start_all("closing", "killed", "paused", "last")

            had = ledger.owned("closing")
            before = milliseconds()
            peers.stop(closing)
            trial.wait_flowing([killed, paused, last])
            moved = [stint.begun for stint in trial.stints_since(before, had)]
            assert seconds_since(before, max(moved)) < HASTE

            had = ledger.owned("killed")
            before = milliseconds()
            killed.kill()
            trial.wait_flowing([paused, last])
            moved = [stint.begun for stint in trial.stints_since(before, had)]
            assert seconds_since(before, min(moved)) > HASTE

            trial.hold(paused)
            had = ledger.owned("paused")
            before = milliseconds()
            paused.pause()
            peers.wait("the last has all", lambda: ledger.owned("last") == ledger.partitions)
            peers.wait_flowing()
            moved = [stint.begun for stint in trial.stints_since(before, had)]
            assert seconds_since(before, min(moved)) > HASTE
            paused.resume()
            trial.release(paused)
            lost = peers.wait(
                "the paused one has lost all", lambda: [each for each in paused.events if isinstance(each, Lost)]
            )
            assert lost[0].partitions == had
            trial.wait_flowing([paused, last])
            assert trial.described() == ("STABLE", {"paused", "last"})
            trial.finish(paused, last)

            (refusal,) = set(trial.refusals_of(paused))
            assert "the group has given this consumer's partitions to others" in refusal
            assert [each for each in ledger.refused if each[0] != "paused"] == []
            # Only what the paused one could not commit was read twice.
            assert {repeat.first.ending for repeat in ledger.repeats()} == {"lost"}
            # Two members owned a partition at a moment only while one of them could not know better.
            assert {earlier.ending for earlier, _ in ledger.overlaps()} <= {"lost"}

    in_all_ways(scenario)


def test_a_slow_and_a_livelocked_member(admin: Admin) -> None:
    """Work beyond the session timeout changes nothing for anybody. Beyond max.poll.interval.ms it costs membership,
    and the others go on, before and after."""

    def scenario(way: str) -> None:
        interval = round(INTERVAL * 1000)
        with GroupTrial(admin, way, PARTITIONS, session=SESSION, max_poll_interval_ms=interval) as trial:
            quick, slow, stuck = trial.start_all("quick", "slow", "stuck")
            others = [trial.ledger.owned(each) for each in ("quick", "slow")]
            rest = milliseconds()
            trial.hold(slow, busy=True)
            trial.hold(stuck, busy=True)
            before = milliseconds()
            held = trial.ledger.owned("stuck")

            def has_worked() -> bool:
                return isinstance(quick.events[-1], Read) and seconds_since(before, quick.events[-1].at) > SESSION + 0.5

            trial.peers.wait("the quick one reads on", has_worked)
            trial.release(slow)
            trial.peers.wait("the slow one commits", lambda: trial.committed_at(slow) >= before)
            assert trial.changes_since(rest) == []
            assert [trial.ledger.owned(each) for each in ("quick", "slow")] == others

            trial.peers.wait("the others have all", lambda: trial.stints_since(before, held))
            (first, *_) = sorted(stint.begun for stint in trial.stints_since(before, held))
            assert INTERVAL - 0.5 < seconds_since(before, first) < INTERVAL + HASTE
            stuck.kill()
            trial.wait_flowing([quick, slow])
            assert trial.described() == ("STABLE", {"quick", "slow"})
            trial.finish(quick, slow)
            assert trial.ledger.refused == []
            assert {repeat.first.member for repeat in trial.ledger.repeats()} == {"stuck"}

    in_all_ways(scenario)
