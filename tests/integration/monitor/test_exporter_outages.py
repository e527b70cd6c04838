"""The exporter while brokers are away: whatever can be read goes on, and the rest says why."""

from __future__ import annotations

import time

import pytest

from headrace import Consumer, LocalBroker, TopicPartition
from headrace.local.ports import free_ports
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.exporters import exporting
from support.harness.waiting import wait_for


def test_brokers_go_away_and_come_back(whole_cluster: LocalBroker, cluster_admin: Admin) -> None:
    servers, group = whole_cluster.bootstrap_servers, unique("outage")
    topic = cluster_admin.create("outage", replicas=[[1], [3]])
    write(servers, topic, [*numbered(20), *numbered(10, 1)])
    places = [TopicPartition(topic, n) for n in range(2)]
    with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as consumer:
        consumer.commit(dict.fromkeys(places, 4))
    names = {"consumergroup": group, "topic": topic}
    with exporting({"bootstrap.servers": servers}, group, topic, timeout=1.0) as exporter:
        assert exporter.values("kafka_consumergroup_lag", **names) == {("0",): 16, ("1",): 6}
        assert exporter.value("headrace_consumergroup_unread_partitions", **names) == 0
        whole_cluster.stop_broker(3)

        # The partition that only this broker had has no leader. The other one, and the group, are read as before.
        def is_leaderless() -> bool:
            exporter.wait_pass()
            return exporter.value("headrace_topic_leaderless_partitions", topic=topic) == 1

        wait_for("the partition has no leader", is_leaderless)
        wait_for(
            "the partition is unread", lambda: exporter.value("headrace_consumergroup_unread_partitions", **names) == 1
        )
        assert exporter.values("kafka_consumergroup_lag", **names) == {("0",): 16, ("1",): 6}, "no alert resolves"
        assert exporter.value("kafka_consumergroup_lag_sum", **names) == 22
        assert set(exporter.values("kafka_topic_partition_current_offset", topic=topic)) == {("0",)}
        assert exporter.value("headrace_broker_up", id="3") == 0
        read_at = exporter.value("headrace_consumergroup_read_timestamp_seconds", **names)
        assert read_at is not None
        assert 0 < time.time() - read_at < 60
        assert exporter.value("headrace_exporter_up") == 1
        assert (exporter.value("headrace_exporter_read_errors", kind="partition") or 0) >= 2
        assert exporter.values("kafka_consumergroup_current_offset", **names) == {("0",): 4, ("1",): 4}

        # Nobody answers: the old values stay, and their age grows.
        for broker in whole_cluster.live_brokers:
            whole_cluster.pause(broker)
        wait_for("a failure", lambda: exporter.value("headrace_exporter_up") == 0)
        before = exporter.value("headrace_exporter_age_seconds")
        begun = time.monotonic()
        exporter.wait_pass()
        after = exporter.value("headrace_exporter_age_seconds")
        assert before is not None
        assert after is not None
        assert after - before == pytest.approx(time.monotonic() - begun, abs=1.0)
        assert exporter.values("kafka_consumergroup_lag", **names) == {("0",): 16, ("1",): 6}
        assert (exporter.value("headrace_exporter_failures_total") or 0) >= 2

        for broker in whole_cluster.live_brokers:
            whole_cluster.resume(broker)
        whole_cluster.restart(3)
        wait_for(
            "all partitions",
            lambda: exporter.value("headrace_consumergroup_unread_partitions", **names) == 0,
            every=0.2,
        )
        assert exporter.values("kafka_consumergroup_lag", **names) == {("0",): 16, ("1",): 6}
        assert exporter.value("headrace_exporter_up") == 1
        assert exporter.value("headrace_topic_leaderless_partitions", topic=topic) == 0
        assert exporter.value("headrace_broker_up", id="3") == 1


def test_a_group_whose_coordinator_is_away_keeps_its_lag_until_it_returns() -> None:
    """Each partition of `__consumer_offsets` is on one broker only. The group's is on a broker that stops."""
    with LocalBroker(2, properties={"offsets.topic.replication.factor": 1}) as cluster:
        servers, admin = cluster.bootstrap_servers, Admin(cluster.bootstrap_servers)
        topic = admin.create("coordinated", replicas=[[1]])
        write(servers, topic, numbered(20))
        groups = [unique("away") for _ in range(8)]
        for group in groups:
            with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as consumer:
                consumer.commit({TopicPartition(topic, 0): 4})
        with exporting({"bootstrap.servers": servers}, "away.*", topic, timeout=2.0) as exporter:
            lags = exporter.values("kafka_consumergroup_lag", topic=topic, partition="0")
            assert lags == {(group,): 16 for group in groups}
            cluster.stop_broker(2)
            wait_for("broker 2 is away", lambda: exporter.value("headrace_broker_up", id="2") == 0)
            exporter.wait_pass(2)
            assert exporter.values("kafka_consumergroup_lag", topic=topic, partition="0") == lags
            states = {it[0]: it[2] for it in exporter.values("headrace_group_state")}
            away = {group for group, state in states.items() if state == "Unknown"}
            assert set(states) == set(groups)
            assert away, "no group has its coordinator on broker 2"
            assert away < set(groups)
            unread = exporter.values("headrace_consumergroup_unread_partitions", topic=topic)
            assert {group for (group,), count in unread.items() if count} == away
            cluster.restart(2)
            wait_for(
                "all are read", lambda: not any(exporter.values("headrace_consumergroup_unread_partitions").values())
            )
            assert exporter.values("kafka_consumergroup_lag", topic=topic, partition="0") == lags
        admin.close()


def test_an_exporter_that_starts_before_its_brokers_waits_for_them() -> None:
    (port,) = free_ports(1)
    with exporting({"bootstrap.servers": f"127.0.0.1:{port}"}, timeout=1.0) as exporter:
        assert exporter.value("headrace_exporter_up") == 0
        assert exporter.values("kafka_brokers") == {}
        assert exporter.values("headrace_exporter_age_seconds") == {}
