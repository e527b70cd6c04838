"""One pass over a real cluster: what a view has beyond the metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import LocalBroker, TopicPartition
from headrace.errors import HeadraceError
from headrace.local.ports import free_ports
from headrace.monitor.collector import Collector, Scope
from headrace.monitor.model import ClusterView, GroupKey
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.waiting import wait_for


def passes(servers: str, *between: Any, **scope: Any) -> list[ClusterView]:
    """A pass, and one more after each call."""

    async def run() -> list[ClusterView]:
        async with Collector({"bootstrap.servers": servers}, Scope(**scope)) as collector:
            views = [await collector.collect()]
            for call in between:
                await asyncio.to_thread(call)
                views.append(await collector.collect())
            return views

    return asyncio.run(run())


def test_a_topic_has_its_size_replicas_and_rate(servers: str, admin: Admin) -> None:
    topic = admin.create("sized", 2)
    write(servers, topic, numbered(100, size=1000))
    before, after = passes(servers, lambda: write(servers, topic, numbered(50, 1)), with_sizes=True)
    found = before.topics[topic]
    assert [(log.begin, log.end, log.leader, log.replicas, log.in_sync) for log in found.partitions] == [
        (0, 100, 1, (1,), (1,)),
        (0, 0, 1, (1,), (1,)),
    ]
    assert found.partitions[0].size is not None
    assert found.partitions[0].size > 1000  # compressed
    assert found.partitions[1].size == 0
    assert (found.records, found.rate) == (100, None)
    later = after.topics[topic]
    assert later.records == 150
    assert later.rate == pytest.approx(50 / (after.steady_at - before.steady_at))
    assert [(it.id, it.is_controller, it.error) for it in before.brokers] == [(1, True, None)]
    assert "__consumer_offsets" not in before.topics or before.topics["__consumer_offsets"].is_internal


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_and_their_partitions_are_those_of_the_group(
    servers: str, admin: Admin, make_sync: Any, protocol: str
) -> None:
    topic, group = admin.create("members", 2), unique(protocol)
    settings = {"bootstrap_servers": servers, "group_id": group, "client_id": "me", "group_protocol": protocol}
    one, two = make_sync(**settings), make_sync(**settings)
    one.subscribe([topic])
    two.subscribe([topic])

    def have_one_each() -> bool:
        one.poll(0.1)
        two.poll(0.1)
        return len(one.assignment()) == len(two.assignment()) == 1

    wait_for("a partition each", have_one_each)
    (view,) = passes(servers)
    found = view.group(GroupKey(False, group))
    assert found is not None
    assert (found.kind, found.state, found.coordinator) == (protocol, "Stable", 1)
    owned = {frozenset(each.assignment()) for each in (one, two)}
    assert {member.partitions for member in found.members} == owned
    assert {member.target for member in found.members} == (owned if protocol == "consumer" else {None})
    assert {member.owner for member in found.members} == {"me@127.0.0.1"}
    assert {row.tp: row.member for row in found.partitions} == {
        tp: member.id for member in found.members for tp in member.partitions
    }


def test_a_group_without_offsets_says_so(servers: str, admin: Admin, make_sync: Any) -> None:
    topic, group = admin.create("idle"), unique("idle")
    consumer = make_sync(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
    consumer.subscribe([topic])
    wait_for("partitions", lambda: consumer.poll(0.1) or consumer.assignment())
    (owned,) = passes(servers)
    (row,) = owned.group(GroupKey(False, group)).partitions  # type: ignore[union-attr]
    assert (row.tp, row.lag, row.committed) == (TopicPartition(topic, 0), 0, None)
    consumer.unsubscribe()
    (view,) = passes(servers)
    found = view.group(GroupKey(False, group))
    assert found is not None
    assert (found.state, found.lag) == ("Empty", None)
    assert "has no committed offsets" in str(found.error)


def test_a_cluster_that_is_away_is_an_error_that_names_it() -> None:
    (port,) = free_ports(1)
    with pytest.raises(HeadraceError, match=f"127.0.0.1:{port}"):
        passes(f"127.0.0.1:{port}")


def test_a_cluster_that_falls_silent_during_a_pass_fails_it(
    kafka_broker: LocalBroker, servers: str, admin: Admin
) -> None:
    """Otherwise the last view of a cluster that is away would have nothing but errors."""
    admin.create("silent")

    async def run() -> None:
        async with Collector({"bootstrap.servers": servers}, timeout=5.0) as collector:
            assert (await collector.collect()).topics
            list_groups = collector._survey.groups

            async def pause_after(nodes: Any) -> Any:
                found = await list_groups(nodes)
                kafka_broker.pause(1)
                return found

            collector._survey.groups = pause_after  # type: ignore[method-assign]
            with pytest.raises(HeadraceError, match="to broker 1: no answer within 5 s"):
                await collector.collect()

    try:
        asyncio.run(run())
    finally:
        kafka_broker.resume(1)
