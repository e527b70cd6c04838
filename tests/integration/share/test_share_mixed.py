"""One share group of headrace, Java and confluent-kafka, and its description by `kafka-share-groups`."""

from __future__ import annotations

import threading
import time

from confluent_kafka import ShareConsumer as ConfluentShareConsumer

from support.brokers.admin import Admin, client_settings
from support.brokers.produce import numbered
from support.brokers.share_groups_tool import VerifiableShareConsumer, describe
from support.harness.share_consumers import MakeShareConsumer, poll_some, put, share_group
from support.harness.waiting import wait_for

PARTITIONS = 2


class Confluent:
    """confluent-kafka's share consumer, on a thread, in implicit mode."""

    def __init__(self, servers: str, group: str, topic: str) -> None:
        self.got: list[tuple[int, int]] = []
        self._consumer = ConfluentShareConsumer({**client_settings(servers), "group.id": group})
        self._consumer.subscribe([topic])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.poll(0.2):
                assert message.error() is None, message.error()
                self.got.append((message.partition(), message.offset()))
        self._consumer.commit_sync()
        self._consumer.close()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)


def test_headrace_java_and_confluent_kafka_share_one_share_group(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    """Each consumer gets some records, together they get all, and without faults no record is delivered twice."""
    topic, group = admin.create("mixed", PARTITIONS), share_group(servers)
    ours: list[tuple[int, int]] = []
    stop = threading.Event()
    consumer = make_sync_share(
        bootstrap_servers=servers, group_id=group, topics=[topic], max_poll_records=20, client_id="ours"
    )

    def read() -> None:
        while not stop.is_set():
            ours.extend((record.partition, record.offset) for record in consumer.poll(0.2))
        consumer.commit()

    reading = threading.Thread(target=read)
    with VerifiableShareConsumer(servers, group, topic) as java:
        other = Confluent(servers, group, topic)
        reading.start()
        try:
            deadline = time.monotonic() + 100
            while not _all_have_partitions(members := describe(servers, group, "--members")):
                assert time.monotonic() < deadline, members
            assert "ours" in {row["CLIENT-ID"] for row in members}
            written = 0
            while not (ours and java.got and other.got and written >= 400):
                assert time.monotonic() < deadline, (len(ours), len(java.got), len(other.got), java.other)
                for number in range(PARTITIONS):
                    put(servers, topic, numbered(20, partition=number))
                written += 20 * PARTITIONS
            wait_for("all records", lambda: len({*ours, *java.got, *other.got}) >= written)
        finally:
            stop.set()
            reading.join(60)
            other.end()
    everything = [*ours, *java.got, *other.got]
    assert len(everything) == len(set(everything)) == written
    assert sorted(everything) == [(number, at) for number in range(PARTITIONS) for at in range(written // PARTITIONS)]
    assert consumer.metrics()["refused"] == 0


def _all_have_partitions(members: list[dict[str, str]]) -> bool:
    return len(members) == 3 and all(int(row["#PARTITIONS"]) for row in members)


def test_kafka_share_groups_shows_state_lag_and_members(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    topic, group = admin.create("shown"), share_group(servers)
    put(servers, topic, numbered(30))
    consumer = make_sync_share(
        bootstrap_servers=servers,
        group_id=group,
        topics=[topic],
        max_poll_records=10,
        share_acquire_mode="record_limit",
    )
    assert len(poll_some(consumer)) == 10
    assert list(consumer.commit().values()) == [None]
    (state,) = describe(servers, group, "--state")
    assert (state["STATE"], state["#MEMBERS"]) == ("Stable", "1")

    def lag() -> str:
        (row,) = describe(servers, group)
        assert (row["TOPIC"], row["PARTITION"]) == (topic, "0")
        return row["LAG"]

    assert lag() == "20"
    while consumer.metrics()["acknowledged"] < 30:
        consumer.poll(0.2)
    assert lag() == "0"
    (member,) = describe(servers, group, "--members")
    assert (member["CLIENT-ID"], member["ASSIGNMENT"]) == ("headrace", f"{topic}:0")
    assert member["CONSUMER-ID"] == consumer.metrics()["group"]["member_id"]
    consumer.close()

    def is_empty() -> bool:  # close() does not wait long for a slow broker
        (state,) = describe(servers, group, "--state")
        return (state["STATE"], state["#MEMBERS"]) == ("Empty", "0")

    wait_for("an empty group", is_empty)
