"""`kafka-consumer-groups` shows groups of headrace like those of Java, and groups resume at the offsets it sets."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from support.brokers.admin import Admin, unique
from support.brokers.consumer_groups_tool import (
    GroupCommandError,
    GroupDescription,
    delete_group,
    describe,
    reset_offsets,
)
from support.brokers.produce import numbered, write
from support.harness.consumers import MakeConsumer, poll_until
from support.members.commands import COMMANDS, Membership
from support.members.events import TopicAndPartition
from support.members.processes import Peers

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 4
FIRST, SOME, MORE = 25, 5, 5


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("shown", PARTITIONS)
    append(servers, topic, FIRST)
    return topic


def append(servers: str, topic: str, count: int) -> None:
    write(servers, topic, (record for number in range(PARTITIONS) for record in numbered(count, number)))


def partitions(topic: str) -> list[TopicAndPartition]:
    return [(topic, number) for number in range(PARTITIONS)]


def wait_all_read(peers: Peers, topic: str, end: int) -> None:
    ledger = peers.ledger
    peers.wait("all records read", lambda: not ledger.unread(dict.fromkeys(partitions(topic), end)))
    peers.wait(
        "all records committed", lambda: not any(ownership.uncommitted for ownership in ledger.open_ownerships())
    )


def alike(description: GroupDescription) -> object:
    """The parts of a description that two groups have in common. Ids and the assigned halves differ by chance."""
    state, members = description.state, description.members
    owners = {member.member_id: member for member in members}
    for tp, row in description.partitions.items():
        owner = owners[row.member_id or ""]
        assert tp in owner.partitions
        assert (row.host, row.client_id) == (owner.host, owner.client_id)
    return (
        (state.coordinator.partition(":")[0], state.strategy, state.state, state.members),
        [(member.instance_id, member.host, member.client_id, len(member.partitions)) for member in members],
        [(member.epoch == state.epoch, member.target == member.partitions) for member in members],
        sorted((tp, row.current_offset, row.log_end_offset, row.lag) for tp, row in description.partitions.items()),
    )


@pytest.mark.parametrize(
    "strategy", [pytest.param("range", id="classic", marks=pytest.mark.soak), pytest.param(None, id="consumer")]
)
def test_kafka_consumer_groups_shows_a_group_as_it_shows_java_s(strategy: str | None, topic: str, servers: str) -> None:
    """Each group has two members, one of them static. They are paused when the last records arrive: there is a lag."""
    java = Membership(servers, unique("java"), topic, strategy)
    ours = Membership(servers, unique("ours"), topic, strategy)
    with Peers(partitions(topic)) as first, Peers(partitions(topic)) as second:
        for peers, membership, kind in ((first, java, "java"), (second, ours, "headrace")):
            static = replace(membership, settings={"group.instance.id": "second"})
            peers.start("one", COMMANDS[kind](membership, "one", peers.directory))
            peers.start("two", COMMANDS[kind](static, "two", peers.directory))
        for peers in (first, second):
            peers.wait_stable(peers)
        append(servers, topic, SOME)  # the group knows the assignment of a member that has committed these
        for peers in (first, second):
            wait_all_read(peers, topic, FIRST + SOME)
            for peer in peers:
                peer.pause()
        append(servers, topic, MORE)
        shown = describe(servers, java.group, ours.group)
        for peers in (first, second):
            for peer in peers:
                peer.resume()
            wait_all_read(peers, topic, FIRST + SOME + MORE)

    assert alike(shown[ours.group]) == alike(shown[java.group])
    described = shown[ours.group]
    assert (described.state.strategy, described.state.state, described.state.members) == (
        strategy or "uniform",
        "Stable",
        2,
    )
    assert [(member.host, member.client_id, member.instance_id) for member in described.members] == [
        ("/127.0.0.1", "one", None),
        ("/127.0.0.1", "two", "second"),
    ]
    assert [described.partitions[tp].lag for tp in partitions(topic)] == [MORE] * PARTITIONS


@pytest.mark.parametrize("strategy", ["range", None], ids=["classic", "consumer"])
def test_a_group_resumes_where_kafka_consumer_groups_put_it(
    strategy: str | None, make_sync: MakeConsumer, topic: str, servers: str
) -> None:
    """Offsets can be reset without members, not with members, and a deleted group starts at the beginning."""
    membership = Membership(servers, unique("reset"), topic, strategy)
    group = membership.group

    def read_to_end(count: int) -> dict[int, list[int]]:
        consumer = make_sync(membership.config("reader"))
        consumer.subscribe([topic])
        offsets: dict[int, list[int]] = defaultdict(list)
        for record in poll_until(consumer, count):
            offsets[record.partition].append(record.offset)
        assert {consumer.position(tp) for tp in partitions(topic)} == {FIRST}
        consumer.commit()
        if count == FIRST * PARTITIONS:
            with pytest.raises(GroupCommandError, match=r"can only be reset if the group .* is inactive"):
                reset_offsets(servers, group, topic, "--to-earliest")
        consumer.close()
        return offsets

    everything = {number: list(range(FIRST)) for number in range(PARTITIONS)}
    assert read_to_end(FIRST * PARTITIONS) == everything
    asked = {(topic, 0): 7, (topic, 1): 7}
    assert reset_offsets(servers, group, f"{topic}:0,1", "--to-offset", "7") == asked
    assert read_to_end(2 * (FIRST - 7)) == {0: list(range(7, FIRST)), 1: list(range(7, FIRST))}
    delete_group(servers, group)
    assert read_to_end(FIRST * PARTITIONS) == everything
