"""The exporter with a real broker, scraped and read by Prometheus' own parser."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import Consumer, Producer, TopicPartition
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.exporters import exporting
from support.harness.share_consumers import poll_some, put, share_group
from support.harness.two_lanes import crash, laned
from support.harness.waiting import wait_for
from support.members.streams_member import heartbeat


def commit(servers: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as consumer:
        consumer.commit(offsets)


def settings(servers: str) -> dict[str, Any]:
    return {"bootstrap.servers": servers}


def test_lag_offsets_and_topics_are_those_of_the_broker(servers: str, admin: Admin) -> None:
    topic, other, group = admin.create("orders", 2), admin.create("orders"), unique("billing")
    write(servers, topic, [*numbered(20), *numbered(10, 1)])
    commit(servers, group, {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 10})
    admin.delete_records(topic, 8)
    with exporting(settings(servers), group, f"{topic}|{other}") as exporter:
        names = {"consumergroup": group, "topic": topic}
        # Retention deleted three records that were waiting: they are lost, and not part of the lag.
        assert exporter.values("kafka_consumergroup_lag", **names) == {("0",): 12, ("1",): 0}
        assert exporter.value("headrace_consumergroup_lost_records", **names) == 3
        assert exporter.values("kafka_consumergroup_current_offset", **names) == {("0",): 5, ("1",): 10}
        assert exporter.value("kafka_consumergroup_lag_sum", **names) == 12
        assert exporter.value("kafka_consumergroup_members", consumergroup=group) == 0
        assert exporter.values("kafka_topic_partition_current_offset", topic=topic) == {("0",): 20, ("1",): 10}
        assert exporter.values("kafka_topic_partition_oldest_offset", topic=topic) == {("0",): 8, ("1",): 0}
        assert exporter.values("kafka_topic_partitions") == {(topic,): 2, (other,): 1}, "only the chosen topics"
        assert exporter.values("kafka_brokers") == {(): 1}
        assert exporter.value("headrace_exporter_up") == 1
        write(servers, topic, numbered(5, 1))
        commit(servers, group, {TopicPartition(topic, 0): 20})
        exporter.wait_pass()
        assert exporter.values("kafka_consumergroup_lag", **names) == {("0",): 0, ("1",): 5}
        assert exporter.value("headrace_consumergroup_lost_records", **names) == 0


def test_groups_of_every_kind_are_exported(
    servers: str,
    admin: Admin,
    make_sync: Any,
    make_sync_share: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = admin.create("orders", 2)
    write(servers, topic, [*numbered(20), *numbered(10, 1)])
    run = unique("every")
    classic, modern, streams, empty = (f"{run}-{kind}" for kind in ("classic", "consumer", "streams", "empty"))
    for group, protocol in ((classic, "classic"), (modern, "consumer")):
        consumer = make_sync(bootstrap_servers=servers, group_id=group, group_protocol=protocol, client_id="c")
        consumer.subscribe([topic])
        wait_for("partitions", lambda consumer=consumer: consumer.poll(0.1) or consumer.assignment())
        consumer.commit({TopicPartition(topic, 0): 3})
    heartbeat(servers, streams, topic, "streams-member-1")
    idle = admin.create("idle")
    waiting = make_sync(bootstrap_servers=servers, group_id=empty, enable_auto_commit=False)
    waiting.subscribe([idle])
    wait_for("partitions", lambda: waiting.poll(0.1) or waiting.assignment())
    waiting.close()  # without a commit
    share, queue = share_group(servers), admin.create("queue")
    put(servers, queue, numbered(30), linger_ms=0, batch_num_messages=1)
    acquirer = make_sync_share(bootstrap_servers=servers, group_id=share, topics=[queue], max_poll_records=4)
    done = len(poll_some(acquirer))
    checkpoint = tmp_path / classic  # a relative path would be the name of a group
    for name, text in (("offsets", "v1\n{}\n" + json.dumps({topic: {"0": 18, "1": 4}})), ("commits", "v1")):
        (checkpoint / name).mkdir(parents=True)
        (checkpoint / name / "0").write_text(text)
    monkeypatch.chdir(tmp_path)
    with exporting(settings(servers), f"{run}.*|{share}", checkpoints=(Path(classic),)) as exporter:
        wait_for("the streams group's task", lambda: _has_settled(servers, exporter, streams, topic))
        kinds = {group: (kind, state) for group, kind, state in exporter.values("headrace_group_state")}
        assert {group: kind for group, (kind, _) in kinds.items()} == {
            classic: "classic",
            empty: "classic",
            modern: "consumer",
            streams: "streams",
            share: "share",
            str(checkpoint): "spark",
        }
        for group in (classic, modern):
            names = {"consumergroup": group, "topic": topic}
            assert exporter.values("kafka_consumergroup_lag", **names) == {("0",): 17, ("1",): 10}
            assert exporter.values("kafka_consumergroup_current_offset", **names) == {("0",): 3}
            assert exporter.value("kafka_consumergroup_members", consumergroup=group) == 1
        assert exporter.value("kafka_consumergroup_members", consumergroup=streams) == 1
        assert exporter.values("kafka_consumergroup_lag_sum", consumergroup=streams) == {(topic,): 30}
        assert exporter.values("kafka_consumergroup_lag_sum", consumergroup=str(checkpoint)) == {(topic,): 2 + 6}
        assert exporter.values("kafka_sharegroup_lag", sharegroup=share) == {}, (
            "unknown before the first acknowledgement"
        )
        acquirer.commit()
        exporter.wait_pass()
        assert exporter.values("kafka_sharegroup_lag_sum", sharegroup=share) == {(queue,): 30 - done}
        assert set(exporter.values("kafka_sharegroup_start_offset", sharegroup=share)) == {(queue, "0")}
        assert exporter.values("kafka_sharegroup_lag_seconds", sharegroup=share)[queue, "0"] < 60
        assert exporter.value("kafka_sharegroup_members", sharegroup=share) == 1
        assert exporter.values("kafka_consumergroup_lag", consumergroup=share) == {}
        assert exporter.values("kafka_consumergroup_lag", consumergroup=empty) == {}
        assert exporter.value("kafka_consumergroup_members", consumergroup=empty) == 0
        assert exporter.value("headrace_exporter_read_errors", kind="group") == 0
    heartbeat(servers, streams, topic, "streams-member-1", -1)


def _has_settled(servers: str, exporter: Any, group: str, topic: str) -> bool:
    """The coordinator assigns tasks with the heartbeats after the first."""
    heartbeat(servers, group, topic, "streams-member-1", 0)
    exporter.wait_pass()
    return exporter.value("kafka_consumergroup_lag_sum", consumergroup=group) is not None


def test_both_lanes_of_a_partition_are_exported(servers: str, admin: Admin, make_sync: Any) -> None:
    tp, group = TopicPartition(admin.create("lanes"), 0), unique("laned")
    write(servers, tp.topic, numbered(10))
    commit(servers, group, {tp: 0})
    write(servers, tp.topic, numbered(90, start=10))
    consumer = laned(make_sync, servers, group, tp.topic)
    seen = 0
    while seen < 40:
        seen += len(consumer.poll(10, max_records=20))
    consumer.commit()
    write(servers, tp.topic, numbered(5, start=100))
    crash(consumer)
    with exporting(settings(servers), f"{group}.*") as exporter:
        names = {"consumergroup": group, "topic": tp.topic, "partition": "0"}
        assert exporter.value("kafka_consumergroup_lag", **names) == 105 - seen
        assert exporter.value("headrace_backlog_lag", **names) == 100 - seen
        assert exporter.value("headrace_backlog_open_ranges", **names) == 1

        def has_the_age_of_the_backlog() -> bool:  # a pass may come between the two scrapes
            backlog = exporter.value("headrace_backlog_lag_seconds", **names)
            return backlog is not None and exporter.value("kafka_consumergroup_lag_seconds", **names) == backlog

        wait_for("the group to have the age of the backlog", has_the_age_of_the_backlog)
        groups = {group for group, _, _ in exporter.values("headrace_group_state")}
        assert groups == {group}, "the second commit log is not a group of its own"


def test_the_age_of_a_lag_is_read_once_and_then_follows_from_the_ends(servers: str, admin: Admin) -> None:
    topic, group = admin.create("aged"), unique("old")
    tp = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(10):  # an hour ago, by their timestamps
            producer.send(topic, b"%d" % number, timestamp=round((time.time() - 3600) * 1000))
    commit(servers, group, {tp: 2})
    with exporting(settings(servers), group, topic) as exporter:
        names = {"consumergroup": group, "topic": topic, "partition": "0"}
        before = exporter.value("kafka_consumergroup_lag_seconds", **names)
        assert before == pytest.approx(3600, abs=60)
        exporter.wait_pass(2)
        after = exporter.value("kafka_consumergroup_lag_seconds", **names)
        assert after is not None
        assert before < after < before + 60, "it grows with time"
        written = time.time()
        write(servers, topic, numbered(5))
        exporter.wait_pass()
        commit(servers, group, {tp: 12})
        exporter.wait_pass()
        age = exporter.value("kafka_consumergroup_lag_seconds", **names)
        assert age is not None
        assert 0 < age < time.time() - written + 5, "of a record that was appended while the exporter looked"
        commit(servers, group, {tp: 15})
        exporter.wait_pass()
        assert exporter.value("kafka_consumergroup_lag_seconds", **names) == 0


def test_a_topic_that_is_recreated_has_no_age_of_the_old_one(servers: str, admin: Admin) -> None:
    topic, group = admin.create("again"), unique("again")
    tp = TopicPartition(topic, 0)
    write(servers, topic, numbered(50))
    commit(servers, group, {tp: 20})
    with exporting(settings(servers), group, topic) as exporter:
        names = {"consumergroup": group, "topic": topic}
        assert exporter.value("kafka_consumergroup_lag", **names) == 30
        admin.delete(topic)
        wait_for("the deletion", lambda: not admin.is_there(topic))
        exporter.wait_pass()
        assert exporter.values("kafka_topic_partitions") == {}
        assert exporter.value("kafka_consumergroup_lag", **names) is None
        admin.recreate(topic)
        write(servers, topic, numbered(5))
        commit(servers, group, {tp: 1})
        exporter.wait_pass()
        assert exporter.value("kafka_consumergroup_lag", **names) == 4


def test_an_address_that_is_in_use_is_an_error(servers: str) -> None:
    with (
        exporting(settings(servers)) as exporter,
        pytest.raises(OSError, match="in use"),
        exporting(settings(servers), port=exporter.address[1]),
    ):
        pytest.fail("two exporters at one address")
