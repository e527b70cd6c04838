"""A classic member under test. Polls perform their actions at once; the test plays the coordinator."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode as E

from headrace._machines.backoff import Backoff
from headrace._machines.group.actions import ComputeAssignment, GroupSettings, PollAction, Send, Subscription
from headrace._machines.group.assignors import assignors_of
from headrace._machines.group.classic import ClassicMember, ClassicState
from headrace._protocol.group_data import MemberSubscription, read_subscription, write_assignment, write_subscription
from headrace._protocol.messages import HEARTBEAT, JOIN_GROUP, SYNC_GROUP, Api
from headrace.errors import NetworkError
from headrace.types import TopicPartition

from . import wire
from .member_driver import MemberDriver

TOPICS = frozenset({"t", "u"})
T0, T1, T2, U0 = (TopicPartition(*each) for each in [("t", 0), ("t", 1), ("t", 2), ("u", 0)])
PAUSE = 0.1  # the first pause, without jitter


class ClassicMemberDriver(MemberDriver[ClassicMember]):
    """A member with a virtual clock."""

    def __init__(
        self,
        strategy: str = "range",
        instance_id: str | None = None,
        topics: frozenset[str] = TOPICS,
        max_poll_interval: float = 20.0,
    ) -> None:
        settings = GroupSettings("g", instance_id, None, 10.0, 3.0, max_poll_interval, 5.0)
        super().__init__(ClassicMember(settings, assignors_of(strategy), Backoff(100, 1000), lambda: 0.5))
        self.member.subscribe(Subscription(topics))

    def request(self, api: Api, seconds: float = 0.0) -> Send:
        (action,) = self.sent(seconds)
        assert action.api is api
        return action

    def answer(self, action: Send, **fields: Any) -> None:
        self.member.answered(action, wire.answer(action.api, fields), self.now)

    def fail(self, action: Send | ComputeAssignment, error: Any = None) -> None:
        self.member.failed(action, error or NetworkError("it broke"), self.now)

    # -- steps of a join -----------------------------------------------------------------------------------------

    def joining(self) -> Send:
        """The JoinGroup request with a member id."""
        self.poll()
        request = self.request(JOIN_GROUP)
        if not request.fields["member_id"] and request.fields["group_instance_id"] is None:
            self.answer(request, error_code=E.member_id_required, member_id="m")
            request = self.request(JOIN_GROUP)
        return request

    def joined(self, request: Send, generation: int = 1, leader: str = "other", **more: Any) -> None:
        strategy = request.fields["protocols"][0]["name"]
        fields = {"generation_id": generation, "protocol_name": strategy, "leader": leader, "member_id": "m"}
        self.answer(request, **fields | more)

    def syncing(self, generation: int = 1) -> Send:
        self.joined(self.joining(), generation)
        return self.request(SYNC_GROUP)

    def stable(self, *assigned: TopicPartition, generation: int = 1) -> list[PollAction]:
        self.answer(self.syncing(generation), assignment=write_assignment(assigned))
        poll_actions = self.poll()
        assert self.member.state in (ClassicState.STABLE, ClassicState.JOINING)
        return poll_actions

    def refused_heartbeat(self, code: int) -> None:
        self.answer(self.request(HEARTBEAT, 3.0), error_code=code)


def subscription_in(request: Send) -> MemberSubscription:
    return read_subscription(request.fields["protocols"][0]["metadata"])


def leads(driver: ClassicMemberDriver, generation: int = 1, **more: Any) -> Any:
    """Join as the leader of a group with one other member; return the next actions."""
    blob = write_subscription(MemberSubscription(frozenset({"t", "v"})))
    other = {"member_id": "n", "group_instance_id": "i", "metadata": blob}
    self = {"member_id": "m", "group_instance_id": None, "metadata": write_subscription(MemberSubscription(TOPICS))}
    driver.joined(driver.joining(), generation, leader="m", members=[self, other], **more)
    return driver.sent()
