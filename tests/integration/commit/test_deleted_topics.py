"""Topics deleted while they are consumed: no call waits for their commits, and no other commit is lost."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from headrace import Consumer, OffsetAndMetadata, TopicPartition
from headrace.errors import CommitFailedError, HeadraceError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, numbered_topic, write
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until
from support.harness.groups import WAYS, member, poll_all
from support.harness.two_lanes import commit_plainly
from support.harness.waiting import wait_for

RECORDS = 10
# Otherwise the consumer itself would recreate the topic.
NO_CREATION: dict[str, Any] = {"allow_auto_create_topics": False}
# Far below default.api.timeout.ms, and long enough for a busy machine.
SOON = 25.0  # seconds on a busy machine; less than half of default.api.timeout.ms, the wait for a topic that is gone


@pytest.fixture
def gone(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("gone"), 1, RECORDS)


@pytest.fixture
def stays(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("stays"), 1, RECORDS)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def deleted(admin: Admin, topic: str) -> None:
    admin.delete(topic)
    wait_for("the deletion", lambda: not admin.is_there(topic))


def committed_of(make: MakeConsumer, servers: str, group: str, tp: TopicPartition) -> int | None:
    other = make(bootstrap_servers=servers, group_id=group, **NO_CREATION)
    found: OffsetAndMetadata | None = other.committed([tp])[tp]
    return None if found is None else found.offset


class TestGroups:
    @pytest.mark.parametrize("lanes", [False, True], ids=["one lane", "two lanes"])
    @pytest.mark.parametrize("way", WAYS)
    def test_a_group_gives_up_a_deleted_topic_and_no_poll_waits_for_its_commit(
        self,
        make: MakeConsumer,
        servers: str,
        admin: Admin,
        gone: str,
        stays: str,
        way: str,
        lanes: bool,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        group = unique("g")
        if lanes:
            for topic in (gone, stays):
                commit_plainly(servers, group, TopicPartition(topic, 0), 2)
        settings = {**WAYS[way], **NO_CREATION, "enable_parallel_rebalance": lanes}
        consumer = member(make, servers, group, [gone, stays], auto_commit_interval_ms=3_600_000, **settings)
        poll_until(consumer, 2 * (RECORDS - 2 if lanes else RECORDS))
        deleted(admin, gone)
        write(servers, stays, numbered(5, start=RECORDS))
        caplog.clear()

        longest, more, deadline = 0.0, 0, time.monotonic() + 60
        while TopicPartition(gone, 0) in consumer.assignment() or more < 5 or not consumer.assignment():
            assert time.monotonic() < deadline, consumer.assignment()
            began = time.monotonic()
            more += len(consumer.poll(0.5))
            longest = max(longest, time.monotonic() - began)
        assert longest < 8
        assert consumer.assignment() == {TopicPartition(stays, 0)}
        consumer.close()
        messages = [each for each in warnings(caplog) if gone in each]
        assert len(messages) == 1, messages
        assert "does not exist" in messages[0]
        assert not [each for each in warnings(caplog) if "delivered again" in each]
        assert committed_of(make, servers, group, TopicPartition(stays, 0)) == RECORDS + 5

    def test_a_classic_leader_unassigns_a_deleted_topic_from_all_members(
        self, make_sync: MakeConsumer, servers: str, admin: Admin, gone: str, stays: str
    ) -> None:
        """The leader learns about it only from its own metadata."""
        group = unique("g")
        settings = {**WAYS["cooperative"], **NO_CREATION, "metadata_max_age_ms": 500}
        members = [member(make_sync, servers, group, [gone, stays], **settings) for _ in range(2)]
        poll_all(members, lambda: all(len(each.assignment()) == 1 for each in members))
        deleted(admin, gone)
        poll_all(members, lambda: {tp.topic for each in members for tp in each.assignment()} == {stays})


class TestCommits:
    def test_a_commit_of_all_positions_leaves_the_deleted_topic_out(
        self,
        make: MakeConsumer,
        servers: str,
        admin: Admin,
        gone: str,
        stays: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        group = unique("g")
        consumer = self.reader(make, servers, group, gone, stays)
        deleted(admin, gone)
        began = time.monotonic()
        consumer.commit()
        results: list[HeadraceError | None] = []
        consumer.commit_async(None, lambda _, error: results.append(error))
        wait_for("the callback", lambda: consumer.poll(0.02) is not None and bool(results))
        consumer.close()
        assert time.monotonic() - began < SOON
        assert results == [None]
        assert len([each for each in warnings(caplog) if gone in each]) == 1, "logged once"
        assert committed_of(make, servers, group, TopicPartition(stays, 0)) == RECORDS

    def test_explicit_offsets_of_a_deleted_topic_are_refused_and_the_others_committed(
        self, make: MakeConsumer, servers: str, admin: Admin, gone: str, stays: str
    ) -> None:
        group = unique("g")
        old, left = TopicPartition(gone, 0), TopicPartition(stays, 0)
        consumer = self.reader(make, servers, group, gone, stays)
        deleted(admin, gone)
        began = time.monotonic()
        with pytest.raises(CommitFailedError, match="does not exist") as refused:
            consumer.commit({old: 5, left: 6})
        assert refused.value.partitions == {old}
        assert not refused.value.retriable
        assert consumer.committed([old, left]) == {old: None, left: OffsetAndMetadata(6)}
        results: list[HeadraceError | None] = []
        consumer.commit_async({old: 5, left: 7}, lambda _, error: results.append(error))
        wait_for("the callback", lambda: consumer.poll(0.02) is not None and bool(results))
        assert isinstance(results[0], CommitFailedError)
        assert results[0].partitions == {old}
        assert committed_of(make, servers, group, left) == 7
        assert time.monotonic() - began < SOON

    @pytest.mark.parametrize("place", [("never", 0), (None, 99)], ids=["topic", "partition"])
    def test_a_commit_of_a_partition_that_never_existed_is_rejected(
        self, make: MakeConsumer, servers: str, admin: Admin, stays: str, place: tuple[str | None, int]
    ) -> None:
        unknown = TopicPartition((place[0] and unique(place[0])) or stays, place[1])
        consumer = make(bootstrap_servers=servers, group_id=unique("g"))
        began = time.monotonic()
        with pytest.raises(CommitFailedError, match="does not exist") as refused:
            consumer.commit({unknown: 5, TopicPartition(stays, 0): 6})
        assert time.monotonic() - began < SOON
        assert refused.value.partitions == {unknown}
        assert consumer.committed([TopicPartition(stays, 0)])[TopicPartition(stays, 0)].offset == 6
        assert place[0] is None or not admin.is_there(unknown.topic), "the lookup must not create the topic"

    def test_positions_are_not_committed_for_a_recreated_topic(
        self, make: MakeConsumer, servers: str, admin: Admin, gone: str, stays: str
    ) -> None:
        """The new topic has other records at these offsets, or none."""
        group = unique("g")
        consumer = self.reader(make, servers, group, gone, stays)
        inner = consumer if isinstance(consumer, Consumer) else consumer._consumer
        plan = inner._parts.committer.plan(None)
        deleted(admin, gone)
        admin.recreate(gone)
        write(servers, gone, numbered(3))
        poll_until(consumer, 3)
        with pytest.raises(CommitFailedError, match="deleted and recreated") as refused:
            self.write(consumer, plan)
        assert refused.value.partitions == {TopicPartition(gone, 0)}
        assert committed_of(make, servers, group, TopicPartition(gone, 0)) is None
        assert committed_of(make, servers, group, TopicPartition(stays, 0)) == RECORDS
        consumer.commit()
        assert committed_of(make, servers, group, TopicPartition(gone, 0)) == 3

    @staticmethod
    def reader(make: MakeConsumer, servers: str, group: str, *topics: str) -> AnyConsumer:
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **NO_CREATION}
        consumer = make(bootstrap_servers=servers, group_id=group, **settings)
        consumer.assign([(topic, 0) for topic in topics])
        poll_until(consumer, RECORDS * len(topics))
        return consumer

    @staticmethod
    def write(consumer: AnyConsumer, plan: Any) -> None:
        """Perform a commit that was planned earlier and has waited for its turn."""
        inner = consumer if isinstance(consumer, Consumer) else consumer._consumer
        lifecycle = inner._parts.lifecycle
        lifecycle.portal.run(lambda: lifecycle.runtime.store.commit(plan))
