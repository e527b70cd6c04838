"""KIP-333 with a broker: crashes at chosen points, and what the next owner resumes.

In each partition, [0, COMMITTED) is done before and [COMMITTED, END) is the backlog of the first member. Records
written while it runs come to its live lane. It kills itself at the point, more records are written, and a second member
gets the partitions. It must get each record that both logs do not mark as done, once, and no record may be missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Consumer, TopicPartition
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import BACKLOG_SUFFIX
from support.brokers.admin import Admin, unique
from support.brokers.consumer_groups_tool import describe
from support.brokers.produce import numbered, write
from support.brokers.steady_writer import SteadyWriter
from support.harness.consumers import AnyConsumer
from support.harness.groups import WAYS
from support.harness.two_lanes import commit_of
from support.harness.waiting import wait_for
from support.ledgers.lane_ledger import LaneCommit, Logs, lane_commits
from support.members.dead_members import remove_member
from support.members.events import milliseconds
from support.members.group_trial import at_once
from support.members.two_lane_processes import LaneMember, LaneMembers

PARTITIONS = 2
COMMITTED = 10
END = 2000
LIVE = 20
"""Records written to each partition while the first member runs."""
MORE = 5
"""Records written to each partition after its crash."""
ENOUGH = {"live": 5, "backlog": 12}
"""Minimum number of records of each lane before its first commit."""
_WORK = 0.03
"""Seconds of work per poll, so that the backlog outlasts the test."""

# A static member is replaced at once; the other one must be removed from the group.
LONE = {
    "static": {"group_instance_id": "one", "session_timeout_ms": 30_000},
    "consumer": WAYS["consumer"],
}


class CrashTest:
    """A topic, a group and its members."""

    def __init__(self, admin: Admin, settings: dict[str, Any]) -> None:
        self.servers = admin.bootstrap_servers
        self.topic = admin.create("crash", PARTITIONS)
        self.group = unique("g")
        self.settings = {
            "bootstrap_servers": self.servers,
            "group_id": self.group,
            "enable_auto_commit": False,
            "max_poll_records": 8,
            **settings,
        }
        self.members = LaneMembers(self.topic)
        self.end = 0
        self.crashed_at = 0
        self.write(END)
        with Consumer(bootstrap_servers=self.servers, group_id=self.group) as somebody:
            somebody.commit({TopicPartition(self.topic, p): COMMITTED for p in range(PARTITIONS)})

    def write(self, count: int) -> None:
        """Write `count` records to each partition."""
        for partition in range(PARTITIONS):
            # Idempotent, since a record's value must be its offset.
            write(self.servers, self.topic, numbered(count, partition, self.end), enable_idempotence=True)
        self.end += count

    def start(self, **plan: Any) -> LaneMember:
        return self.members.start(settings=self.settings, work=_WORK, before_commit=ENOUGH, **plan)

    def wait_in_two_lanes(self, member: LaneMember) -> None:
        """Wait until the tokens of all partitions are committed and backlog records were delivered."""
        self.members.wait("a backlog", lambda: member.handed.get("backlog"))
        wait_for("all tokens", self._has_all_tokens, every=0.2)

    def _has_all_tokens(self) -> bool:
        logs = self.logs()
        return all((mark := logs.first(p)) is not None and mark.token for p in range(PARTITIONS))

    def start_half_way(self, **plan: Any) -> LaneMember:
        """A member that has committed a part of its backlog, got more records, and then paused."""
        member = self.start(rests=True, **plan)
        self.wait_in_two_lanes(member)
        self.write(LIVE)
        self.members.wait(f"{member.name} rests", lambda: "rests" in member.words)
        return member

    def wait_crashed(self, member: LaneMember, point: str) -> None:
        self.members.wait_gone(member)
        assert f"dies: {point}" in member.other, self.members.report()

    def remove_member(self, member: LaneMember) -> None:
        """Remove the member from the group, so that others get its partitions."""
        if "group_instance_id" not in self.settings:
            remove_member(self.servers, self.group, member.name)

    def logs(self) -> Logs:
        return Logs(lane_commits(self.servers, self.group))

    def history(self) -> tuple[list[LaneCommit], dict[int, OffsetSet]]:
        """All commits of the killed members, and the offsets done before them."""
        done = dict.fromkeys(range(PARTITIONS), OffsetSet(COMMITTED))
        return [each for each in lane_commits(self.servers, self.group) if each.at <= self.crashed_at], done

    def next_start(self, consumer: AnyConsumer) -> None:
        """Another member gets exactly the open offsets; then both logs have plain commits again."""
        self.crashed_at = milliseconds()
        logs = self.logs()
        open_before = {p: set(_offsets(logs.done(p).open(0, self.end))) for p in range(PARTITIONS)}
        got: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}

        def is_all_there() -> bool:
            for record in consumer.poll(0.1):
                got[record.partition].append(record.offset)
            return sum(map(len, got.values())) >= sum(map(len, open_before.values()))

        wait_for("all open offsets", is_all_there)
        assert {p: sorted(offsets) for p, offsets in got.items()} == {p: sorted(it) for p, it in open_before.items()}
        for partition, offsets in open_before.items():
            before = self.members.ledger.handed(partition) | OffsetSet(COMMITTED)
            assert set(_offsets(before.open(0, self.end))) <= offsets, "a committed record was never delivered"
        consumer.commit()
        consumer.commit()  # the first commit closes the ranges, this one writes plain offsets
        consumer.close()
        assert self.plain_offsets() == dict.fromkeys(range(PARTITIONS), self.end)
        self.members.ledger.check_ownerships()

    def plain_offsets(self) -> dict[int, int]:
        """The committed offsets that any client would find. Fail if a mark has open ranges."""
        logs, found = self.logs(), {}
        for partition in range(PARTITIONS):
            mark = logs.first(partition)
            assert mark is not None
            assert (mark.token, mark.done) == ("", OffsetSet(mark.offset))
            found[partition] = mark.offset
        return found

    def member(self) -> Consumer:
        """A member in this process."""
        consumer = Consumer(enable_parallel_rebalance=True, **self.settings | {"max_poll_records": 500})
        consumer.subscribe([self.topic])
        return consumer


def _offsets(ranges: list[tuple[int, int]]) -> list[int]:
    return [offset for start, end in ranges for offset in range(start, end)]


# -- one member ------------------------------------------------------------------------------------------------------


def has_no_token(logs: Logs, partition: int) -> None:
    first = logs.first(partition)
    assert first is not None
    assert (first.offset, first.token, logs.second(partition)) == (COMMITTED, "", None)


def has_token_only(logs: Logs, partition: int) -> None:
    first = logs.first(partition)
    assert first is not None
    assert first.token
    assert (first.offset, first.done, logs.second(partition)) == (END, OffsetSet(COMMITTED), None)


def has_progress(logs: Logs, partition: int) -> None:
    first, second = logs.first(partition), logs.second(partition)
    assert first is not None
    assert first.offset == END
    if second is not None:  # one partition may have none yet
        assert second.token == first.token
        assert COMMITTED <= second.offset <= END


def has_both(logs: Logs, partition: int) -> None:
    first, second = logs.first(partition), logs.second(partition)
    assert first is not None
    assert second is not None
    assert first.token in ("", second.token)
    assert END <= first.offset <= END + LIVE
    assert COMMITTED <= second.offset <= END


ALONE: dict[str, Callable[[Logs, int], None]] = {
    "before the token": has_no_token,
    "after the token": has_token_only,
    "before both logs": has_token_only,
    "between both logs": has_progress,
    "after both logs": has_both,
}


@pytest.mark.parametrize("way", list(LONE))
def test_a_lone_member_that_crashes_at_any_point_loses_nothing(admin: Admin, way: str) -> None:
    def play(point: str) -> None:
        test = CrashTest(admin, LONE[way])
        with test.members:
            first = test.start(crash=point)
            if not point.endswith("token"):
                test.wait_in_two_lanes(first)
                test.write(LIVE)
            test.wait_crashed(first, point)
            logs = test.logs()
            for partition in range(PARTITIONS):
                ALONE[point](logs, partition)
            test.remove_member(first)
            test.write(MORE)
            test.next_start(test.member())

    at_once({point: functools.partial(play, point) for point in ALONE})


@pytest.mark.soak
def test_crashes_with_a_half_worked_off_backlog_lose_nothing(admin: Admin) -> None:
    """Each crash leaves another hole above the open rest of the one before."""

    def play(way: str) -> None:
        test = CrashTest(admin, LONE[way])
        with test.members:
            for number in (1, 2):
                member = test.start_half_way()
                member.kill()
                test.members.wait_gone(member)
                test.remove_member(member)
                test.write(MORE)
                holes = sum(len(test.logs().done(p).open(0, test.end)) for p in range(PARTITIONS))
                assert holes >= PARTITIONS + number
            test.next_start(test.member())
        test.members.ledger.check_commits(*test.history())

    at_once({way: functools.partial(play, way) for way in LONE})


# -- during a revoke -------------------------------------------------------------------------------------------------

HANDING_OVER = ["a revoke is asked for", "before the listener", "before the final commit", "after the final commit"]


@pytest.mark.parametrize("way", list(WAYS))
def test_crashes_during_a_revoke_in_two_lanes_lose_nothing(admin: Admin, way: str) -> None:
    def play(point: str) -> None:
        # With auto-commit, which runs only as part of the revoke.
        test = CrashTest(admin, WAYS[way] | {"enable_auto_commit": True, "auto_commit_interval_ms": 600_000})
        with test.members:
            first = test.start_half_way(crash=point)
            second = test.member()
            wait_for("a crash", lambda: not second.poll(0.05) and first.is_gone)
            test.wait_crashed(first, point)
            logs = test.logs()
            is_plain = {p: mark.token == "" for p in range(PARTITIONS) if (mark := logs.first(p)) is not None}
            assert any(is_plain.values()) == (point == "after the final commit")
            test.remove_member(first)
            test.write(MORE)
            test.next_start(second)

    at_once({point: functools.partial(play, point) for point in HANDING_OVER})


# -- repeated crashes ------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_twenty_crashes_in_two_lanes_lose_nothing_and_keep_metadata_small(admin: Admin) -> None:
    """The first hole stays open through all crashes. Commit metadata stays small, and the last member gets all open
    offsets."""
    test = CrashTest(admin, LONE["static"])
    lives = [{"live": 3, "backlog": 2}] * 20
    with test.members:
        settings = {"limit": 100_000, "first": test.end, "enable_idempotence": True}
        with SteadyWriter(test.servers, test.topic, PARTITIONS, **settings) as writer:
            crashing = test.members.start(settings=test.settings, work=_WORK, lives=lives)
            test.members.wait("twenty crashes", lambda: crashing.is_gone, 200.0)
            test.end = max(writer.finish().values())
        assert crashing.other.count("dies: in the middle of it") == 20, test.members.report()
        test.next_start(test.member())
    commits, before = test.history()
    test.members.ledger.check_commits(commits, before)
    assert max(len(commit.mark.done.holes) for commit in commits) > 15
    assert max(len(commit.metadata) for commit in commits) < 400


# -- other clients ------------------------------------------------------------------------------------------------


def test_kafka_consumer_groups_shows_the_commits_of_both_lanes(admin: Admin) -> None:
    test = CrashTest(admin, {"client_id": "laned"})
    backlog = test.group + BACKLOG_SUFFIX
    with test.members:
        member = test.start_half_way()
        logs = test.logs()
        shown = describe(test.servers, test.group, backlog)
        assert (shown[test.group].state.state, shown[test.group].state.members) == ("Stable", 1)
        assert (shown[backlog].state.state, shown[backlog].state.members) == ("Empty", 0)
        for partition in range(PARTITIONS):
            first, second = logs.first(partition), logs.second(partition)
            assert first is not None
            assert second is not None
            live = shown[test.group].partitions[test.topic, partition]
            beside = shown[backlog].partitions[test.topic, partition]
            assert (live.current_offset, live.lag, live.client_id) == (first.offset, test.end - first.offset, "laned")
            assert (beside.current_offset, beside.lag) == (second.offset, test.end - second.offset)
            assert COMMITTED <= second.offset < END <= first.offset <= test.end
        test.members.stop(member)
        test.next_start(test.member())
    shown = describe(test.servers, test.group)
    assert shown[test.group].state.state == "Empty"
    for partition in range(PARTITIONS):
        assert shown[test.group].partitions[test.topic, partition].lag == 0
        place = TopicPartition(test.topic, partition)
        assert commit_of(test.servers, backlog, place) is None, "no commit is left that could look like a lag"
