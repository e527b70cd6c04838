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
        whole_cluster.stop_broker(3)

        # The partition that only this broker had has no leader. The other one, and the group, are read as before.
        def is_leaderless() -> bool:
            exporter.wait_pass()
            return exporter.value("headrace_topic_leaderless_partitions", topic=topic) == 1

        wait_for("the partition has no leader", is_leaderless)
        wait_for(
            "the other partition",
            lambda: exporter.values("kafka_consumergroup_lag", **names) == {("0",): 16},
            every=0.2,
        )
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
        assert exporter.values("kafka_consumergroup_lag", **names) == {("0",): 16}
        assert (exporter.value("headrace_exporter_failures_total") or 0) >= 2

        for broker in whole_cluster.live_brokers:
            whole_cluster.resume(broker)
        whole_cluster.restart(3)
        wait_for(
            "all partitions",
            lambda: exporter.values("kafka_consumergroup_lag", **names) == {("0",): 16, ("1",): 6},
            every=0.2,
        )
        assert exporter.value("headrace_exporter_up") == 1
        assert exporter.value("headrace_topic_leaderless_partitions", topic=topic) == 0


def test_an_exporter_that_starts_before_its_brokers_waits_for_them() -> None:
    (port,) = free_ports(1)
    with exporting({"bootstrap.servers": f"127.0.0.1:{port}"}, timeout=1.0) as exporter:
        assert exporter.value("headrace_exporter_up") == 0
        assert exporter.values("kafka_brokers") == {}
        assert exporter.values("headrace_exporter_age_seconds") == {}
