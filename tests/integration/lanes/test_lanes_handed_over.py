"""KIP-333: open ranges when a partition moves to another member, another client, or the same member after a restart."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace import OffsetAndMetadata, Record, TopicPartition
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import BACKLOG_SUFFIX, CommitMark
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.consumers import MakeConsumer, poll_until
from support.harness.groups import WAYS, fully_assigned, poll_all
from support.harness.run_kinds import Kind, until
from support.harness.two_lanes import (
    behind,
    both_logs,
    commit_of,
    commit_plainly,
    crash,
    grow,
    laned,
    offsets,
    read_by_confluent,
    read_in_two_lanes,
    two_lane_member,
)
from support.members.dead_members import remove_member


class TestComingAndGoing:
    """Hand-over from a consumer with one lane, and back to one."""

    def test_another_client_reads_the_open_offsets_after_close(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        """Also with a commit in flight when the consumer closes."""
        group = behind(servers, tp, 70, 120)
        consumer = two_lane_member(make, servers, group, tp.topic, max_poll_records=20)
        assert offsets(poll_until(consumer, 20), "backlog") == list(range(70, 90))
        grow(servers, tp, 130, 120)
        consumer.commit_async()
        consumer.close()
        found, progress = both_logs(servers, group, tp)
        assert found is not None
        assert (found.offset, found.token, progress) == (90, "", None), "no progress that looks like a lag"
        assert read_by_confluent(servers, group, tp, 40) == list(range(90, 130))

    @pytest.mark.parametrize("ends", ["orderly", "crash"])
    def test_a_consumer_with_one_lane_reads_exactly_the_open_offsets(
        self, make: MakeConsumer, servers: str, tp: TopicPartition, ends: str
    ) -> None:
        group, consumer = read_in_two_lanes(make, servers, tp)
        consumer.commit({tp: 90})
        consumer.commit({tp: 125})
        crash(consumer) if ends == "crash" else consumer.close()
        plain = laned(make, servers, group, tp.topic, enable_parallel_rebalance=False)
        assert plain.committed([tp])[tp].offset == 90
        assert offsets(poll_until(plain, 35)) == [*range(90, 120), *range(125, 130)]
        plain.commit()
        assert plain.committed([tp])[tp].offset == 130
        assert commit_of(servers, group, tp) == OffsetAndMetadata(130)
        assert commit_of(servers, group + BACKLOG_SUFFIX, tp) is None, "no progress that looks like a lag"

    def test_explicit_commits_that_end_a_range_last_leave_no_progress(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group, consumer = read_in_two_lanes(make, servers, tp)
        consumer.commit({tp: 90})
        consumer.commit({tp: 130})
        assert both_logs(servers, group, tp)[1] is not None
        consumer.commit({tp: 120})
        assert both_logs(servers, group, tp) == (CommitMark(130, OffsetSet(130)), None)

    @pytest.mark.parametrize("theirs", ["a plain commit", "two lanes of its own"])
    def test_the_commits_of_somebody_else_s_group_stay_as_they_are(
        self, make: MakeConsumer, servers: str, tp: TopicPartition, theirs: str
    ) -> None:
        group = behind(servers, tp, 70, 120)
        commit_plainly(servers, group + BACKLOG_SUFFIX, tp, 30)
        if theirs == "two lanes of its own":
            crash_of_theirs = laned(make, servers, group + BACKLOG_SUFFIX, tp.topic, max_poll_records=10)
            assert len(crash_of_theirs.poll(60)) == 10
            crash_of_theirs.commit()
            crash(crash_of_theirs)
        before = commit_of(servers, group + BACKLOG_SUFFIX, tp)
        consumer = laned(make, servers, group, tp.topic)
        records = poll_until(consumer, 50)
        assert offsets(records, "live") == list(range(70, 120)), "in one lane, in order"
        consumer.commit()
        consumer.close()
        assert commit_of(servers, group, tp) == OffsetAndMetadata(120)
        assert commit_of(servers, group + BACKLOG_SUFFIX, tp) == before

    def test_run_keeps_max_in_flight_with_a_backlog(self, servers: str, tp: TopicPartition) -> None:
        group = behind(servers, tp, 70, 120)
        kinds = Kind("sync")
        consumer = kinds.member(servers, group, tp.topic, enable_parallel_rebalance=True)
        looks: list[int] = []
        may_go_on = threading.Event()

        def enough(progress: Any) -> bool:
            looks.append(progress.in_flight)
            if looks.count(4) == 5:
                may_go_on.set()
            return bool(progress.handled >= 50)

        consumer.run(
            lambda _: may_go_on.wait(60), concurrency=2, max_in_flight=4, order="none", **until(consumer, enough)
        )
        consumer.close()
        assert may_go_on.is_set()
        assert max(looks) == 4

    def test_a_commit_of_a_consumer_with_one_lane_keeps_the_rest_open(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group, consumer = read_in_two_lanes(make, servers, tp)
        consumer.commit({tp: 125})
        crash(consumer)
        plain = laned(make, servers, group, tp.topic, enable_parallel_rebalance=False, max_poll_records=10)
        assert offsets(plain.poll(60)) == list(range(70, 80))
        plain.commit()
        crash(plain)
        again = laned(make, servers, group, tp.topic)
        assert again.position(tp) == 130
        assert offsets(poll_until(again, 45)) == [*range(80, 120), *range(125, 130)]


class TestGroups:
    @pytest.mark.parametrize("way", WAYS)
    def test_an_open_range_moves_to_another_member(
        self, make_sync: MakeConsumer, servers: str, admin: Admin, way: str
    ) -> None:
        topic, group = admin.create("lanes", partitions=2), unique("g")
        places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        for tp in places:
            write(servers, topic, numbered(100, partition=tp.partition))
            commit_plainly(servers, group, tp, 10)
        first = two_lane_member(make_sync, servers, group, topic, way, max_poll_records=20)
        seen = poll_all([first], lambda: len(first.assignment()) == 2)
        while len(seen) < 40 or len({record.partition for record in seen}) < 2:
            seen += first.poll(1)
        assert {record.lane for record in seen} == {"backlog"}
        first.commit()
        second = two_lane_member(make_sync, servers, group, topic, way)
        pair = [first, second]
        first.pause(places)  # so that no uncommitted records are repeated
        poll = poll_all(pair, fully_assigned(pair, 2))
        seen += poll
        moved = next(iter(second.assignment()))
        reached = max(offsets((r for r in seen if r not in poll), None, moved.partition)) + 1
        while len(offsets(poll, None, moved.partition)) < 100 - reached:
            poll += second.poll(0.2)
            first.poll(0)
        assert offsets(poll, "backlog", moved.partition) == list(range(reached, 100))
        second.commit()
        assert second.committed([moved])[moved].offset == 100

    @pytest.mark.parametrize("way", WAYS)
    def test_a_range_of_a_member_that_died_is_resumed_by_the_next_owner(
        self, make_sync: MakeConsumer, servers: str, tp: TopicPartition, way: str
    ) -> None:
        group = behind(servers, tp, 10, 100)
        first = two_lane_member(make_sync, servers, group, tp.topic, way, max_poll_records=20, client_id="first")
        seen = poll_all([first], lambda: bool(first.assignment()))
        while len(seen) < 20:
            seen += first.poll(1)
        first.commit()
        seen += first.poll(1)
        crash(first)
        remove_member(servers, group, "first")
        grow(servers, tp, 110, 100)
        second = two_lane_member(make_sync, servers, group, tp.topic, way)
        again = poll_all([second], lambda: bool(second.assignment()))
        while len(again) < 80:
            again += second.poll(1)
        assert sorted(offsets(again)) == list(range(30, 110))
        assert set(offsets(again, "live")) <= set(range(100, 110))

    @pytest.mark.parametrize("way", WAYS)
    def test_a_rolling_change_between_one_lane_and_two_loses_nothing(
        self, make_sync: MakeConsumer, servers: str, tp: TopicPartition, way: str
    ) -> None:
        """From a member with one lane to a member with two, and back. Each joins before the other leaves."""
        group = unique("g")
        grow(servers, tp, 100)
        settings = {**WAYS[way], "enable_auto_commit": True, "auto_commit_interval_ms": 20, "max_poll_records": 10}
        seen: list[Record] = []
        last = two_lane_member(make_sync, servers, group, tp.topic, **settings, enable_parallel_rebalance=False)
        for number, with_mode in enumerate((True, False, True), start=1):
            while len(seen) < 30 * number:
                seen += last.poll(1)
            following = two_lane_member(
                make_sync, servers, group, tp.topic, **settings, enable_parallel_rebalance=with_mode
            )
            following.poll(0)
            last.close()
            grow(servers, tp, 100 + 20 * number, 80 + 20 * number)
            last = following
        while set(offsets(seen)) != set(range(160)):
            seen += last.poll(1)
        assert len(seen) == 160, "no repeats, since every member was closed properly"

    def test_neither_lane_returns_records_of_partitions_whose_revoke_is_delayed(
        self, make_sync: MakeConsumer, servers: str, admin: Admin
    ) -> None:
        topic, group = admin.create("lanes", partitions=2), unique("g")
        for number in range(2):
            write(servers, topic, numbered(100, partition=number))
            commit_plainly(servers, group, TopicPartition(topic, number), 10)
        first = two_lane_member(make_sync, servers, group, topic, "cooperative", max_poll_records=10)
        poll_all([first], lambda: len(first.assignment()) == 2)
        first.pause(first.assignment())  # keep records unread, however long it takes
        second = two_lane_member(make_sync, servers, group, topic, "cooperative")
        after: list[Record] = []
        while not (asked := first.to_be_revoked_partitions()):
            first.poll(0.05)
            second.poll(0.05)
        first.resume(first.paused())
        rounds = 0
        while rounds < 5 or not after:
            rounds += 1
            assert first.delay_revoke(asked)
            after += first.poll(0.1)
            second.poll(0.05)
        assert not [record for record in after if (record.topic, record.partition) in asked]
        pair = [first, second]
        poll_all(pair, fully_assigned(pair, 2))


class TestCompletion:
    def test_records_of_both_lanes_can_be_done_in_any_order(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        first = laned(make, servers, group, tp.topic, commit_mode="done")
        assert first.position(tp) == 120
        grow(servers, tp, 140, 120)
        records = poll_until(first, 70)
        assert first.in_flight() == {tp: 70}
        left = {70, 71, 85, 119, 120, 133, 139}
        for record in records:
            if record.offset not in left:
                first.done(record)
        first.commit()
        one, two = both_logs(servers, group, tp)
        assert one is not None
        assert two is not None
        assert (one.offset, two.offset) == (120, 70)
        crash(first)
        grow(servers, tp, 142, 140)
        second = laned(make, servers, group, tp.topic, commit_mode="done")
        again = poll_until(second, 9)
        assert sorted(offsets(again)) == sorted(left | {140, 141})
        second.done(again[0])
        for record in again:
            second.done(record)
        assert second.in_flight() == {}
        second.commit()
        second.commit()
        assert commit_of(servers, group, tp) == OffsetAndMetadata(142)

    def test_the_final_commit_of_two_lanes_keeps_done_records(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        first = laned(make, servers, group, tp.topic, commit_mode="done", enable_auto_commit=True)
        records = poll_until(first, 50)
        for record in records:
            if record.offset not in (75, 100):
                first.done(record)
        first.close()
        assert commit_of(servers, group, tp).offset == 75  # type: ignore[union-attr]
        second = laned(make, servers, group, tp.topic)
        assert offsets(poll_until(second, 2)) == [75, 100]

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_run_handles_the_records_of_both_lanes(self, servers: str, tp: TopicPartition, kind: str) -> None:
        group = behind(servers, tp, 70, 120)
        kinds = Kind(kind)
        consumer = kinds.member(servers, group, tp.topic, enable_parallel_rebalance=True)
        handled: list[tuple[str | None, int]] = []
        handler = kinds.handler(lambda record: handled.append((record.lane, record.offset)))

        def enough(progress: Any) -> bool:
            if progress.handled >= 50 and not grown:
                grown.append(True)
                grow(servers, tp, 130, 120)
            return bool(progress.handled >= 60)

        grown: list[bool] = []
        consumer.run(handler, concurrency=4, order="none", **until(kinds.plain(consumer), enough))
        assert sorted(handled) == [
            *(("backlog", offset) for offset in range(70, 120)),
            *(("live", offset) for offset in range(120, 130)),
        ]
        consumer.close()
        assert commit_of(servers, group, tp) == OffsetAndMetadata(130)
