"""Commands about groups while a broker is away."""

from __future__ import annotations

from headrace import Consumer, LocalBroker, TopicPartition
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.shell import headrace
from support.harness.waiting import wait_for


def test_a_reset_of_a_partition_without_a_leader_names_it_and_the_broker(
    whole_cluster: LocalBroker, cluster_admin: Admin
) -> None:
    servers, group = whole_cluster.bootstrap_servers, unique("reset")
    topic = cluster_admin.create("leaderless", replicas=[[1], [3]])
    write(servers, topic, [*numbered(20), *numbered(10, 1)])
    with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 4})
    whole_cluster.stop_broker(3)
    wait_for("the partition has no leader", lambda: cluster_admin.leader(topic, 1) == -1)
    command = ("groups", "reset", "-b", servers, "-g", group, "--to", "earliest", "--yes", "--timeout", "3")
    refused = headrace(*command)
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert f"{topic}-1: LEADER_NOT_AVAILABLE" in refused.err
    assert refused.err.endswith("no leader, while of its replicas broker 3 is away. Start it again\n")
    assert headrace(*command, "-t", f"{topic}:0").code == 0, "the others can be reset"
    with Consumer(bootstrap_servers=servers, group_id=group) as consumer:
        found = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    assert [None if it is None else it.offset for it in found.values()] == [0, 4]
