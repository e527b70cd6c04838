"""The interface of assignors: the leader of a classic group uses one to assign partitions to members.

A custom one looks like this, and is passed to a consumer as `partition_assignment_strategy`:

    class EverythingToOne(Assignor):
        name = "everything-to-one"

        def assign(self, members, partitions):
            chosen = min(members)
            return {chosen: [p for topic in members[chosen].topics for p in partitions_of(topic, partitions)]}

All members of a group must have an assignor of this name; those of other clients need their own implementation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Protocol

from ...._protocol.group_data import MemberSubscription
from ....types import TopicPartition


@dataclasses.dataclass(frozen=True, slots=True)
class GroupMember(MemberSubscription):
    """A member as the leader knows it: its subscription, its partitions, and the user data of its assignor."""

    instance_id: str | None = None
    """`group.instance.id` of a static member."""

    @classmethod
    def of(cls, subscription: MemberSubscription, instance_id: str | None = None) -> GroupMember:
        """The member with this subscription."""
        s = subscription
        return cls(s.topics, s.owned, s.generation, s.rack, s.user_data, instance_id)


class Assignor(Protocol):
    """Computes the assignment of a group. Any object with these attributes works; a subclass inherits the defaults."""

    name: str
    """The members of a group agree on an assignor by its name."""
    cooperative: bool = False
    """Whether members keep their partitions during a rebalance. If so, `assign` must never assign a partition to one
    member while another one still owns it: it leaves the partition out, and assigns it in the next round."""

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        """Data of this member for the leader, which finds it in `GroupMember.user_data`.

        `previous` is the last assignment of the member, in `generation` (-1 before the first assignment).
        """
        return None

    def assign(
        self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]
    ) -> Mapping[str, Collection[TopicPartition]]:
        """The new assignment, by member id. A member that is left out gets no partitions.

        `partitions` has the number of partitions of each existing topic; subscribed topics may be missing.
        """
        ...


def partitions_of(topic: str, partitions: Mapping[str, int]) -> list[TopicPartition]:
    """All partitions of the topic; none if it does not exist."""
    return [TopicPartition(topic, number) for number in range(partitions.get(topic, 0))]


def in_order(members: Mapping[str, GroupMember]) -> list[str]:
    """The members in the order of Java's assignors: static ones by their instance ids, then the others by theirs.

    Member ids change with every start, instance ids do not. So a static member keeps its place.
    """

    def place(member: str) -> tuple[bool, str]:
        instance = members[member].instance_id
        return instance is None, member if instance is None else instance

    return sorted(members, key=place)


def subscribers(members: Mapping[str, GroupMember], partitions: Mapping[str, int]) -> dict[str, list[str]]:
    """The subscribers of each topic, both in order. Topics that do not exist, or have no subscribers, are left out."""
    found: dict[str, list[str]] = {}
    for member in in_order(members):
        for topic in members[member].topics:
            if partitions.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member)
    return dict(sorted(found.items()))
