"""KIP-333 with a broker: a live lane at the end of the log, and a backlog lane for missed records."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import OffsetAndMetadata, Record, TopicPartition, Watermarks
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import CommitMark
from headrace.errors import StateError
from support.brokers.admin import unique
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until
from support.harness.groups import member, poll_all
from support.harness.two_lanes import (
    behind,
    both_logs,
    commit_of,
    crash,
    grow,
    laned,
    offsets,
    open_ranges,
    read_in_two_lanes,
)
from support.harness.waiting import wait_for


def test_the_proposal_s_example_is_read_in_two_lanes(make: MakeConsumer, servers: str, tp: TopicPartition) -> None:
    group = unique("g")
    first = laned(make, servers, group, tp.topic)
    grow(servers, tp, 100)
    assert offsets(poll_until(first, 100)) == list(range(100))
    assert not first.child_consumer_is_alive()
    first.commit({tp: 70})
    assert first.position(tp) == 100
    crash(first)

    grow(servers, tp, 120, 100)
    second = laned(make, servers, group, tp.topic, max_poll_records=20)
    assert second.position(tp) == 120
    one, two = both_logs(servers, group, tp)
    assert one is not None
    assert (one.offset, open_ranges(one), two) == (120, [(70, 120)], None), (
        "the token is committed before a record is delivered"
    )
    assert second.committed([tp])[tp].offset == 70
    grow(servers, tp, 125, 120)
    wait_for("records of both lanes", lambda: _full(second, 50, 5))
    seen = poll_until(second, 5 + 30)
    assert offsets(seen, "live") == list(range(120, 125))
    assert offsets(seen, "backlog")[:15] == list(range(70, 85))
    assert second.child_consumer_is_alive()
    second.commit()
    one, two = both_logs(servers, group, tp)
    assert one is not None
    assert two is not None
    reached = 70 + len(offsets(seen, "backlog"))
    assert (one.offset, open_ranges(one), two.offset, two.token) == (125, [(70, 120)], reached, one.token)
    assert second.committed([tp])[tp].offset == reached, "all records before it are done"
    assert second.position(tp) == 125

    seen += poll_until(second, 55 - len(seen))
    assert offsets(seen, "backlog") == list(range(70, 120))
    grow(servers, tp, 140, 125)
    seen += poll_until(second, 15)
    second.commit()
    assert both_logs(servers, group, tp) == (CommitMark(140, OffsetSet(140)), None), (
        "the backlog is done and its commit deleted"
    )
    assert second.committed([tp])[tp].offset == 140
    grow(servers, tp, 170, 140)
    assert offsets(poll_until(second, 30), "live") == list(range(140, 170))
    assert second.child_consumer_is_alive(), "on standby"
    crash(second)

    grow(servers, tp, 190, 170)
    third = laned(make, servers, group, tp.topic)
    assert third.position(tp) == 190
    one, two = both_logs(servers, group, tp)
    assert one is not None
    assert (one.offset, open_ranges(one), two) == (190, [(140, 190)], None)
    assert third.committed([tp])[tp].offset == 140
    assert offsets(third.poll(60, max_records=30)) == list(range(140, 170))
    third.commit()
    one, two = both_logs(servers, group, tp)
    assert one is not None
    assert two is not None
    assert (one.offset, open_ranges(one), two.offset, two.token) == (190, [(140, 190)], 170, one.token)
    assert offsets(poll_until(third, 20)) == list(range(170, 190))
    third.commit()
    assert third.committed([tp])[tp].offset == 190
    assert both_logs(servers, group, tp) == (CommitMark(190, OffsetSet(190)), None)


def test_a_second_crash_resumes_a_half_worked_off_range(make: MakeConsumer, servers: str, tp: TopicPartition) -> None:
    group = behind(servers, tp, 70, 120)
    first = laned(make, servers, group, tp.topic)
    assert len(first.poll(60, max_records=30)) == 30
    first.commit()
    assert len(first.poll(60, max_records=5)) == 5
    crash(first)
    grow(servers, tp, 200, 120)
    second = laned(make, servers, group, tp.topic)
    assert second.position(tp) == 200
    one, _ = both_logs(servers, group, tp)
    assert one is not None
    assert open_ranges(one) == [(100, 200)]
    assert offsets(poll_until(second, 100), "backlog") == list(range(100, 200))


class TestPolls:
    def test_a_poll_starts_with_live_records_and_keeps_the_portion_of_the_backlog(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 0, 400)
        consumer = laned(make, servers, group, tp.topic, max_poll_records=40, parallel_rebalance_backlog_share=0.25)
        assert consumer.position(tp) == 400
        grow(servers, tp, 800, 400)
        wait_for("full lanes", lambda: consumer.poll(0.01, max_records=1) is not None and _full(consumer))
        polls = [consumer.poll(1) for _ in range(8)]
        for records in polls:
            assert len(records) == 40
            assert len(offsets(records, "backlog")) == 10
            assert records[0].lane == "live"

    def test_polls_of_one_record_starve_neither_lane(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 0, 100)
        consumer = laned(make, servers, group, tp.topic, max_poll_records=1)
        assert consumer.position(tp) == 100
        grow(servers, tp, 200, 100)
        wait_for("full lanes", lambda: _full(consumer, 100, 100))
        lanes = [record.lane for _ in range(40) for record in consumer.poll(1)]
        assert lanes.count("backlog") == 10
        assert lanes.count("live") == 30

    def test_an_iteration_returns_the_records_of_both_lanes(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 0, 10)
        consumer = laned(make, servers, group, tp.topic)
        assert consumer.position(tp) == 10
        grow(servers, tp, 14, 10)
        wait_for("records of both lanes", lambda: _full(consumer, 10, 4))
        taken: list[Record] = []
        for record in consumer:
            taken.append(record)
            if len(taken) == 7:
                break
        consumer.commit()
        assert consumer.committed([tp])[tp].offset == len(offsets(taken, "backlog"))
        taken += poll_until(consumer, 14 - 7)
        assert sorted(offsets(taken)) == list(range(14))

    def test_a_lag_below_min_lag_makes_no_second_lane(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        consumer = laned(make, servers, group, tp.topic, parallel_rebalance_min_lag=51)
        records = poll_until(consumer, 50)
        assert offsets(records, "live") == list(range(70, 120))
        assert not consumer.child_consumer_is_alive()

    def test_pause_and_resume_act_on_both_lanes(self, make: MakeConsumer, servers: str, tp: TopicPartition) -> None:
        group = behind(servers, tp, 70, 120)
        consumer = laned(make, servers, group, tp.topic)
        assert consumer.position(tp) == 120
        consumer.pause([tp])
        grow(servers, tp, 130, 120)
        assert len(consumer.poll(0.5)) == 0
        consumer.resume([tp])
        assert sorted(offsets(poll_until(consumer, 60))) == list(range(70, 130))

    def test_arrow_tables_have_the_lane_of_each_record(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        records = laned(make, servers, group, tp.topic).poll(60)
        assert set(records.to_arrow(lane=True)["lane"].to_pylist()) == {"backlog"}


def _full(consumer: AnyConsumer, beside: int = 90, live: int = 90) -> bool:
    figures = consumer.metrics()
    waiting = figures["backlog"]["buffered_records"]
    return bool(waiting >= beside and figures["buffered_records"] - waiting >= live)


class TestQuestions:
    def test_position_and_offsets_count_what_both_lanes_have_read(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        consumer = laned(make, servers, group, tp.topic)
        assert consumer.position(tp) == 120
        assert consumer.beginning_offsets([tp]) == {tp: 0}, "nothing was read yet: the log's own offset"
        assert consumer.end_offsets([tp]) == {tp: 120}
        assert len(consumer.poll(60, max_records=10)) == 10
        assert consumer.beginning_offsets([tp]) == {tp: 70}
        assert consumer.end_offsets([tp]) == {tp: 80}
        grow(servers, tp, 125, 120)
        poll_until(consumer, 45)
        assert consumer.beginning_offsets([tp]) == {tp: 70}
        assert consumer.end_offsets([tp]) == {tp: 125}
        assert consumer.watermarks(tp) == Watermarks(0, 125)
        assert consumer.offsets_for_times({tp: 0})[tp].offset == 0

    def test_metrics_report_the_open_part_of_the_backlog(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        consumer = laned(make, servers, group, tp.topic)
        consumer.poll(60, max_records=30)
        figures = consumer.metrics()
        assert figures["partitions"][str(tp)]["lag"] in (0, None)
        backlog = figures["backlog"]
        assert backlog["open"] == 20
        assert backlog["expected_seconds"] >= 0, "known, even if below a millisecond"
        assert backlog["partitions"][str(tp)] == {"position": 100, "open": 20, "ranges": [[70, 120]]}
        poll_until(consumer, 20)
        consumer.commit()
        assert consumer.metrics()["backlog"]["open"] == 0


class TestCommits:
    def test_explicit_commits_are_split_by_the_range_they_fall_in(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group, consumer = read_in_two_lanes(make, servers, tp)
        consumer.commit({tp: OffsetAndMetadata(90, "half")})
        one, two = both_logs(servers, group, tp)
        assert one is not None
        assert two is not None
        assert (one.offset, two.offset, two.note) == (120, 90, "half")
        consumer.commit({tp: OffsetAndMetadata(126, "mine")})
        one, two = both_logs(servers, group, tp)
        assert one is not None
        assert two is not None
        assert (one.offset, one.note, open_ranges(one), two.offset) == (126, "mine", [(70, 120)], 90)
        assert consumer.committed([tp])[tp] == OffsetAndMetadata(90, "mine")
        results: list[Any] = []
        consumer.commit_async({tp: 120}, lambda *outcome: results.append(outcome))
        wait_for("the callback", lambda: consumer.poll(0.05) is not None and bool(results))
        assert results == [({tp: OffsetAndMetadata(120)}, None)]
        consumer.commit({tp: 130})
        assert commit_of(servers, group, tp) == OffsetAndMetadata(130)
        with pytest.raises(StateError, match="only the owner"):
            consumer.commit({TopicPartition("elsewhere", 0): 5})

    def test_committing_the_live_position_does_not_close_an_open_range(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        consumer = laned(make, servers, group, tp.topic)
        consumer.commit({tp: consumer.position(tp)})
        assert consumer.committed([tp])[tp].offset == 70

    def test_auto_commit_commits_both_lanes_separately(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        consumer = laned(make, servers, group, tp.topic, enable_auto_commit=True, auto_commit_interval_ms=20)
        assert len(consumer.poll(60, max_records=20)) == 20
        wait_for("progress", lambda: _committed_beside(consumer, servers, group, tp) == 90)
        one, _ = both_logs(servers, group, tp)
        assert one is not None
        assert one.offset == 120
        grow(servers, tp, 125, 120)
        records = poll_until(consumer, 35)
        assert sorted(offsets(records)) == [*range(90, 125)]
        wait_for(
            "plain again", lambda: (consumer.poll(0.02), commit_of(servers, group, tp))[1] == OffsetAndMetadata(125)
        )

    def test_a_failed_commit_of_the_backlog_lane_does_not_stop_the_live_lane(
        self, make: MakeConsumer, servers: str, tp: TopicPartition
    ) -> None:
        group, consumer = read_in_two_lanes(make, servers, tp)
        with_members = member(make, servers, f"{group}.backlog", [tp.topic])
        poll_all([with_members], lambda: bool(with_members.assignment()))
        with pytest.raises(Exception, match="backlog"):
            consumer.commit()
        one, two = both_logs(servers, group, tp)
        assert one is not None
        assert (one.offset, open_ranges(one), two) == (130, [(70, 120)], None)
        with_members.close()
        consumer.commit()
        assert consumer.committed([tp])[tp].offset == 130


def _committed_beside(consumer: AnyConsumer, servers: str, group: str, tp: TopicPartition) -> int | None:
    consumer.pause([tp])
    consumer.poll(0.02)
    consumer.resume([tp])
    found = both_logs(servers, group, tp)[1]
    return None if found is None else found.offset


def test_seek_ends_the_backlog(make: MakeConsumer, servers: str, tp: TopicPartition) -> None:
    group = behind(servers, tp, 70, 120)
    consumer = laned(make, servers, group, tp.topic)
    assert len(consumer.poll(60, max_records=5)) == 5
    consumer.seek(tp, 100)
    assert offsets(poll_until(consumer, 20)) == list(range(100, 120))
    consumer.commit()
    assert commit_of(servers, group, tp) == OffsetAndMetadata(120)
