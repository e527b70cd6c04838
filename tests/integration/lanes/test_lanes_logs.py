"""KIP-333: backlog ranges with deleted records, compaction and transactions, and a failing lane."""

from __future__ import annotations

import pytest

from headrace import OffsetAndMetadata, Record, TopicPartition, Watermarks
from headrace.errors import HeadraceError
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, Writer, numbered, write
from support.brokers.topic_contents import oracle_rows
from support.harness.consumers import MakeConsumer, poll_until
from support.harness.groups import RecordingListener
from support.harness.two_lanes import (
    behind,
    commit_of,
    commit_plainly,
    grow,
    laned,
    offsets,
    read_by_confluent,
    two_lane_member,
)
from support.harness.waiting import wait_for


class LostRanges(RecordingListener):
    def __init__(self) -> None:
        super().__init__()
        self.lost: list[tuple[TopicPartition, int, int]] = []

    def on_lost_range(self, partition: TopicPartition, start: int, end: int) -> None:
        self.lost.append((partition, start, end))


class TestLogs:
    def test_backlog_deleted_by_retention_is_reported_and_skipped(
        self, make: MakeConsumer, servers: str, admin: Admin, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        admin.delete_records(tp.topic, 90)
        listener = LostRanges()
        consumer = two_lane_member(make, servers, group, tp.topic, "cooperative", listener=listener)
        records = poll_until(consumer, 30)
        assert offsets(records, "backlog") == list(range(90, 120))
        assert listener.lost == [(tp, 70, 90)]
        assert consumer.metrics()["backlog"]["lost"] == 20
        consumer.commit()
        assert consumer.committed([tp])[tp].offset == 120

    def test_a_backlog_range_deleted_by_retention_is_closed(
        self, make_sync: MakeConsumer, servers: str, admin: Admin, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        admin.delete_records(tp.topic, 120)
        consumer = laned(make_sync, servers, group, tp.topic)
        assert consumer.position(tp) == 120
        grow(servers, tp, 125, 120)
        assert offsets(poll_until(consumer, 5)) == list(range(120, 125))
        wait_for(
            "the range to be skipped",
            lambda: consumer.poll(0.05) is not None and not consumer.metrics()["backlog"]["open"],
        )
        consumer.commit()
        assert commit_of(servers, group, tp) == OffsetAndMetadata(125)

    def test_the_backlog_of_a_recreated_topic_is_dropped(
        self, make_sync: MakeConsumer, servers: str, admin: Admin, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        # Its metadata requests must not create the topic.
        mine = {"metadata_max_age_ms": 200, "max_poll_records": 10, "allow_auto_create_topics": False}
        consumer = laned(make_sync, servers, group, tp.topic, **mine)
        assert len(consumer.poll(60)) == 10
        admin.delete(tp.topic)
        wait_for("the end of the old topic", lambda: not admin.is_there(tp.topic))
        admin.recreate(tp.topic)
        write(servers, tp.topic, numbered(7))
        seen: list[Record] = []
        while 6 not in offsets(seen, "live"):
            seen += consumer.poll(1)
        assert offsets(seen, "live") == list(range(7))
        wait_for("an empty backlog", lambda: not consumer.metrics()["backlog"]["open"])

    def test_a_failed_backlog_lane_resumes_from_its_last_commit(
        self, make_sync: MakeConsumer, servers: str, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        group = behind(servers, tp, 0, 100)
        consumer = laned(make_sync, servers, group, tp.topic, max_poll_records=20)
        assert offsets(consumer.poll(60)) == list(range(20))
        consumer.commit()
        assert offsets(consumer.poll(60)) == list(range(20, 40))
        backlog = consumer._parts.buffer.source.backlog
        plan = backlog.fetching.plan

        def fails(*_: object) -> None:
            monkeypatch.setattr(backlog.fetching, "plan", plan)
            raise RuntimeError("a bug")

        monkeypatch.setattr(backlog.fetching, "plan", fails)
        backlog.wake_all()
        wait_for("the failure", lambda: backlog.fetching.plan is plan)
        grow(servers, tp, 110, 100)

        def is_back() -> bool:
            with backlog.lock:
                return bool(backlog.assignment.state(tp).position.offset == 20)

        wait_for("the lane to resume", is_back)
        seen = poll_until(consumer, 90)
        assert offsets(seen, "backlog") == list(range(20, 100))
        assert offsets(seen, "live") == list(range(100, 110))
        assert consumer.child_consumer_is_alive()

    @pytest.mark.parametrize("mode", ["returned", "done"])
    def test_a_backlog_range_with_transactions_is_worked_off(
        self, make: MakeConsumer, servers: str, tp: TopicPartition, mode: str
    ) -> None:
        group = unique("g")
        writer = Writer(servers, transactional_id=unique("tx"))
        for turn in range(6):
            writer.producer.begin_transaction()
            writer.send(tp.topic, numbered(10, start=10 * turn))
            writer.flush()
            writer.producer.abort_transaction(30) if turn % 2 else writer.producer.commit_transaction(30)
        writer.producer.begin_transaction()
        writer.send(tp.topic, numbered(5, start=100))
        writer.flush()
        commit_plainly(servers, group, tp, 5)
        consumer = laned(make, servers, group, tp.topic, isolation_level="read_committed", commit_mode=mode)
        assert consumer.watermarks(tp) == Watermarks(0, 66 + 5)
        assert consumer.position(tp) == 66, "the last stable offset is the end of the log"
        seen = poll_until(consumer, 25)
        assert [int(record.value or b"") for record in seen] == [*range(5, 10), *range(20, 30), *range(40, 50)]
        if mode == "done":
            consumer.done(seen[3])
            consumer.commit()
            assert consumer.committed([tp])[tp].offset == 5
            for record in seen:
                consumer.done(record)
        wait_for(
            "markers passed", lambda: consumer.poll(0.02) is not None and not consumer.metrics()["backlog"]["open"]
        )
        writer.producer.commit_transaction(30)
        seen = poll_until(consumer, 5)
        assert offsets(seen, "live") == list(range(66, 71))
        if mode == "done":
            for record in seen:
                consumer.done(record)
        consumer.commit()
        found = commit_of(servers, group, tp)
        assert found is not None
        assert found.metadata == ""
        assert found.offset in (71, 72)

    @pytest.mark.parametrize("last", ["committed", "aborted"])
    @pytest.mark.parametrize("way", ["commit", "commit_async", "close"])
    def test_explicit_commits_close_a_range_that_ends_in_a_marker_or_aborted_records(
        self, make: MakeConsumer, servers: str, tp: TopicPartition, last: str, way: str
    ) -> None:
        """The range ends with a transaction marker, or with aborted records and a marker. No user can commit an offset
        after them, and another client cannot know, so a proper close must commit the offset after them."""
        group = unique("g")
        writer = Writer(servers, transactional_id=unique("tx"))
        for turn in range(2):
            writer.producer.begin_transaction()
            writer.send(tp.topic, numbered(10, start=10 * turn))
            writer.flush()
            is_aborted = turn == 1 and last == "aborted"
            writer.producer.abort_transaction(30) if is_aborted else writer.producer.commit_transaction(30)
        commit_plainly(servers, group, tp, 5)
        consumer = laned(make, servers, group, tp.topic, isolation_level="read_committed")
        assert consumer.position(tp) == 22
        backlog = poll_until(consumer, 5 if last == "aborted" else 15)
        grow(servers, tp, 40, 22)
        live = poll_until(consumer, 18)
        wait_for(
            "the end of the range", lambda: not len(consumer.poll(0.02)) and not consumer.metrics()["backlog"]["open"]
        )
        if way == "close":
            consumer.commit({tp: live[-1].offset + 1})  # the live commit comes before that of the range
        for record in (backlog[-1], live[-1]):
            if way == "commit_async":
                results: list[HeadraceError | None] = []
                consumer.commit_async({tp: record.offset + 1}, lambda _, error, results=results: results.append(error))
                wait_for("the callback", lambda results=results: consumer.poll(0.02) is not None and bool(results))
                assert results == [None]
            elif way == "commit" or record is backlog[-1]:
                consumer.commit({tp: record.offset + 1})
        if way != "close":
            assert commit_of(servers, group, tp) == OffsetAndMetadata(40), "a plain commit without open ranges"
        consumer.close()
        grow(servers, tp, 41, 40)
        assert read_by_confluent(servers, group, tp, 1) == [40]

    def test_a_compacted_backlog_range_is_worked_off(self, make_sync: MakeConsumer, servers: str, admin: Admin) -> None:
        topic = admin.create(
            "lanes", cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.001, segment_bytes=2**20
        )
        tp, group = TopicPartition(topic, 0), unique("g")
        for _ in range(4):
            write(servers, topic, [Outgoing(b"x", b"key-%d" % key) for key in range(100)])

        def compacted() -> bool:
            write(servers, topic, [Outgoing(b"tick", b"tick")])
            return len(oracle_rows(servers, topic)) < 250

        wait_for("compaction", compacted, every=0.3)
        commit_plainly(servers, group, tp, 10)
        consumer = laned(make_sync, servers, group, topic, commit_mode="done")
        end = consumer.position(tp)
        seen: list[Record] = []
        while consumer.metrics()["backlog"]["open"]:
            seen += consumer.poll(0.2)
        expected = {row.offset for row in oracle_rows(servers, topic) if 10 <= row.offset < end}
        assert expected <= set(offsets(seen, "backlog")), "the cleaner may still be running"
        for record in seen:
            consumer.done(record)
        consumer.commit()
        assert consumer.committed([tp])[tp].offset == end
