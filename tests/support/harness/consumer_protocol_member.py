"""A KIP-848 member without a network, for tests of the machine."""

from __future__ import annotations

import uuid
from typing import Any

from headrace._machines.backoff import Backoff
from headrace._machines.group.actions import GroupSettings, PollAction, Send, Subscription
from headrace._machines.group.consumer_protocol import ConsumerProtocolMember
from headrace._protocol.messages import CONSUMER_GROUP_HEARTBEAT
from headrace.errors import NetworkError
from headrace.types import TopicPartition
from simulation import wire
from simulation.member_driver import MemberDriver

T, U, AGAIN = (uuid.UUID(int=n) for n in (1, 2, 3))
NAMES = {T: "t", U: "u"}
T0, T1, T2, U0 = (TopicPartition(*each) for each in [("t", 0), ("t", 1), ("t", 2), ("u", 0)])
INTERVAL = 5.0
PAUSE = 0.1


class ConsumerProtocolDriver(MemberDriver[ConsumerProtocolMember]):
    """A member with a virtual clock. Polls perform their actions at once; the test plays the coordinator."""

    def __init__(self, instance_id: str | None = None, pattern: str | None = None, **settings: Any) -> None:
        own = GroupSettings("g", instance_id, max_poll_interval=60.0, request_timeout=5.0, **settings)
        super().__init__(ConsumerProtocolMember(own, "me", Backoff(100, 1000), lambda: 0.5))
        self.member.update_topic_names(NAMES)
        self.member.subscribe(Subscription(frozenset({"u", "t"}), pattern))

    def request(self, seconds: float = 0.0) -> Send:
        (action,) = self.sent(seconds)
        assert action.api is CONSUMER_GROUP_HEARTBEAT
        return action

    def answer(
        self, action: Send, epoch: int = 1, assigned: Any = None, code: int = 0, interval: float = INTERVAL
    ) -> bool:
        """Returns whether polls have to look."""
        fields: dict[str, Any] = {"error_code": code, "member_epoch": epoch, "heartbeat_interval": int(interval * 1000)}
        if code:
            fields["heartbeat_interval"] = 0
        if assigned is not None:
            topics = [{"topic_id": topic, "partitions": numbers} for topic, numbers in assigned.items()]
            fields["assignment"] = {"topic_partitions": topics}
        return self.member.answered(action, wire.answer(CONSUMER_GROUP_HEARTBEAT, fields), self.now)

    def fail(self, action: Send) -> None:
        self.member.failed(action, NetworkError("it broke"), self.now)

    def joined(self, assigned: Any = None, epoch: int = 2) -> list[PollAction]:
        self.poll()
        self.answer(self.request(), epoch, assigned or {})
        poll_actions = self.poll()
        if poll_actions:
            self.answer(self.request(), epoch)
        return poll_actions


def changes(request: Send) -> dict[str, Any]:
    """The fields of a heartbeat, without the identity of its sender."""
    quiet = {"rebalance_timeout": -1}
    who = ("group_id", "member_id", "member_epoch", "instance_id")
    return {name: value for name, value in request.fields.items() if name not in who and value != quiet.get(name)}


def some(*partitions: TopicPartition) -> frozenset[TopicPartition]:
    return frozenset(partitions)


def listed(**topics: tuple[int, ...]) -> list[dict[str, Any]]:
    ids = {name: id for id, name in NAMES.items()}
    return [{"topic_id": ids[name], "partitions": numbers} for name, numbers in topics.items()]
