"""A classic member with a subscription that the leader cannot parse: only this member gets no partitions."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from headrace._net.connection import Connection
from headrace._protocol.group_data import MemberSubscription, read_assignment, write_subscription
from headrace._protocol.messages import JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from headrace.config.consumer import ConsumerConfig
from headrace.types import TopicPartition
from support.brokers.admin import Admin, unique
from support.brokers.fake_broker import run
from support.harness.consumers import MakeConsumer
from support.harness.groups import WAYS, RecordingListener, all_of, fully_assigned, member, poll_all

_PARTITIONS = 2
_DAMAGED = b"\0\x01\xff\xff"


class Stranger:
    """A thread that joins a group, takes its assignment and leaves."""

    def __init__(self, servers: str, group: str, strategy: str, metadata: bytes) -> None:
        self.member_id = ""
        self.given: frozenset[TopicPartition] | None = None
        self._config = ConsumerConfig.parse({"bootstrap.servers": servers})
        self._group = group
        self._protocol = {"name": strategy, "metadata": metadata}
        self.thread = threading.Thread(target=lambda: run(self._visit()))

    async def _visit(self) -> None:
        link = await Connection.open(*self._config.bootstrap_servers[0], self._config, 10.0)
        try:
            self.member_id = (await self._join(link)).member_id
            generation = (await self._join(link)).generation_id
            identity = {"generation_id": generation, "member_id": self.member_id, "group_instance_id": None}
            kind = {"protocol_type": "consumer", "protocol_name": self._protocol["name"]}
            synced = await link.call(SYNC_GROUP, {"group_id": self._group, **identity, **kind, "assignments": []})
            assert synced.body.error_code == 0
            self.given, _ = read_assignment(synced.body.assignment)
            leaving = [{"member_id": self.member_id, "group_instance_id": None, "reason": None}]
            await link.call(LEAVE_GROUP, {"group_id": self._group, "members": leaving})
        finally:
            link.close()
            await asyncio.sleep(0)  # the transport closes in the next iteration of the loop

    async def _join(self, link: Connection) -> Any:
        fields = {
            "group_id": self._group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [self._protocol],
            "reason": None,
        }
        return (await link.call(JOIN_GROUP, fields, timeout=40.0)).body


@pytest.mark.parametrize(
    ("strategy", "user_data"),
    [("range", None), ("cooperative-sticky", None), ("sticky", _DAMAGED)],
    ids=["range", "cooperative-sticky", "sticky, with damaged user data"],
)
def test_only_the_member_with_an_unparseable_subscription_gets_no_partitions(
    make: MakeConsumer,
    servers: str,
    admin: Admin,
    strategy: str,
    user_data: bytes | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    topic, group, listener = admin.create("strangers", _PARTITIONS), unique("g"), RecordingListener()
    way = {**WAYS["eager"], "partition_assignment_strategy": strategy}
    leader = member(make, servers, group, [topic], listener=listener, **way)
    poll_all([leader], fully_assigned([leader], _PARTITIONS))
    subscribed = MemberSubscription(frozenset({topic}), user_data=user_data)
    stranger = Stranger(servers, group, strategy, write_subscription(subscribed) if user_data else _DAMAGED)
    stranger.thread.start()
    poll_all([leader], lambda: not stranger.thread.is_alive())
    poll_all([leader], fully_assigned([leader], _PARTITIONS))
    assert leader.assignment() == all_of(topic, _PARTITIONS)
    warnings = [record.getMessage() for record in caplog.records]
    assert any(stranger.member_id in each and "cannot parse" in each for each in warnings), warnings
    if user_data is None:
        assert stranger.given == frozenset()
        assert any(f"group {group}: " in each for each in warnings)
    else:
        assert stranger.given is not None
        assert len(stranger.given) == 1, "its claims are ignored, but it gets partitions"
