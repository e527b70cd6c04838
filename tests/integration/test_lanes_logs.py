"""KIP-333: ranges in logs that lose records, are compacted, hold transactions; a lane that fails."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace import OffsetAndMetadata, Record, TopicPartition
from support.admin import Admin
from support.consumers import MakeConsumer, poll_until
from support.groups import Diary
from support.lanes import (
    behind,
    commit_of,
    grow,
    laned,
    laned_member,
    offsets,
)
from support.produce import numbered, write
from support.waiting import wait_for


@pytest.fixture
def tp(admin: Admin) -> TopicPartition:
    return TopicPartition(admin.create("lanes"), 0)


def recreated(admin: Admin, topic: str) -> bool:
    """The broker takes the name again only when the deletion is through."""
    try:
        admin.create("", name=topic)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


class LostRanges(Diary):
    def __init__(self) -> None:
        super().__init__()
        self.lost: list[tuple[TopicPartition, int, int]] = []

    def on_lost_range(self, partition: TopicPartition, start: int, end: int) -> None:
        self.lost.append((partition, start, end))


class TestLogs:
    def test_what_retention_has_deleted_is_told_and_passed_over(
        self, make: MakeConsumer, servers: str, admin: Admin, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        admin.delete_records(tp.topic, 90)
        diary = LostRanges()
        consumer = laned_member(make, servers, group, tp.topic, "cooperative", listener=diary)
        records = poll_until(consumer, 30)
        assert offsets(records, "backlog") == list(range(90, 120))
        assert diary.lost == [(tp, 70, 90)]
        assert consumer.metrics()["backlog"]["lost"] == 20
        consumer.commit()
        assert consumer.committed([tp])[tp].offset == 120

    def test_all_of_a_range_is_gone(
        self, make_sync: MakeConsumer, servers: str, admin: Admin, tp: TopicPartition
    ) -> None:
        group = behind(servers, tp, 70, 120)
        admin.delete_records(tp.topic, 120)
        consumer = laned(make_sync, servers, group, tp.topic)
        assert consumer.position(tp) == 120
        grow(servers, tp, 125, 120)
        assert offsets(poll_until(consumer, 5)) == list(range(120, 125))
        wait_for(
            "it is passed over", lambda: consumer.poll(0.05) is not None and not consumer.metrics()["backlog"]["open"]
        )
        consumer.commit()
        assert commit_of(servers, group, tp) == OffsetAndMetadata(125)

    def test_a_topic_made_again(self, make_sync: MakeConsumer, servers: str, admin: Admin, tp: TopicPartition) -> None:
        group = behind(servers, tp, 70, 120)
        consumer = laned(make_sync, servers, group, tp.topic, metadata_max_age_ms=200, max_poll_records=10)
        assert len(consumer.poll(10)) == 10
        admin.delete(tp.topic)
        wait_for("the new topic", lambda: recreated(admin, tp.topic))
        write(servers, tp.topic, numbered(7))
        seen: list[Record] = []
        while 6 not in offsets(seen, "live"):
            seen += consumer.poll(1)
        assert offsets(seen, "live") == list(range(7))
        wait_for("nothing is open", lambda: not consumer.metrics()["backlog"]["open"])

    def test_the_lane_for_the_backlog_fails_and_resumes_from_its_last_commit(
        self, make_sync: MakeConsumer, servers: str, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        group = behind(servers, tp, 0, 100)
        consumer = laned(make_sync, servers, group, tp.topic, max_poll_records=20)
        assert offsets(consumer.poll(10)) == list(range(20))
        consumer.commit()
        assert offsets(consumer.poll(10)) == list(range(20, 40))
        backlog = consumer._aio._intake.backlog
        plan = backlog.fetching.plan

        def fails(*_: object) -> None:
            monkeypatch.setattr(backlog.fetching, "plan", plan)
            raise RuntimeError("a bug")

        monkeypatch.setattr(backlog.fetching, "plan", fails)
        backlog.wake_all()
        wait_for("the failure", lambda: backlog.fetching.plan is plan)
        grow(servers, tp, 110, 100)
        wait_for("the lane is back", lambda: backlog.assignment.state(tp).position.offset == 20)
        seen = poll_until(consumer, 90)
        assert offsets(seen, "backlog") == list(range(20, 100))
        assert offsets(seen, "live") == list(range(100, 110))
        assert consumer.child_consumer_is_alive()
