"""A member of either group protocol under test, with a virtual clock."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from headrace._machines.group.actions import PollAction
from headrace._machines.group.classic import ClassicMember
from headrace._machines.group.consumer_protocol import ConsumerProtocolMember

M = TypeVar("M", ClassicMember, ConsumerProtocolMember)


class MemberDriver(Generic[M]):
    """A driver whose polls perform their actions at once."""

    def __init__(self, member: M) -> None:
        self.member = member
        self.now = 100.0

    def poll(self) -> list[PollAction]:
        done: list[PollAction] = []
        self.member.poll_begins()
        while (poll_action := self.member.poll_action()) is not None:
            done.append(poll_action)
            self.member.done(poll_action)
        self.member.poll_ends(self.now)
        return done

    def sent(self, seconds: float = 0.0) -> list[Any]:
        self.now += seconds
        return self.member.tick(self.now)
