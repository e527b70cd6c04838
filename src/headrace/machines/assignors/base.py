"""What an assignor is: the part of a consumer group's leader that decides who reads what.

One that is made for a special case looks like this, and is given to a consumer as `partition_assignment_strategy`:

    class EverythingToOne(Assignor):
        name = "everything-to-one"

        def assign(self, members, partitions):
            chosen = min(members)
            return {chosen: [p for topic in members[chosen].topics for p in partitions_of(topic, partitions)]}

All members of a group must know the assignor by the same name; those of other clients need their own version of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from ...protocol.group_data import MemberSubscription
from ...types import TopicPartition


@dataclasses.dataclass(frozen=True, slots=True)
class GroupMember(MemberSubscription):
    """A member as its leader sees it: what it subscribed to, what it owns, and what its assignor said of it."""

    instance_id: str | None = None
    """`group.instance.id` of a static member."""

    @classmethod
    def of(cls, subscription: MemberSubscription, instance_id: str | None = None) -> GroupMember:
        s = subscription
        return cls(s.topics, s.owned, s.generation, s.rack, s.user_data, instance_id)


class Assignor(Protocol):
    """How a group's leader shares partitions out. Any object with these members will do; a subclass inherits the
    defaults."""

    name: str
    """By which the members of a group agree on an assignor."""
    cooperative: bool = False
    """Whether members may keep what they own through a rebalance. If so, `assign` must never give a partition to one
    member while another one still owns it: left out in one round, it is free in the next."""

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        """What this member tells the leader: it finds it in `GroupMember.user_data`.

        `previous` is what the member was last given, in `generation` (-1 before the first assignment).
        """
        return None

    def assign(
        self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]
    ) -> Mapping[str, Collection[TopicPartition]]:
        """What each member reads from now on, by member id. A member that is left out reads nothing.

        `partitions` has the number of partitions of each topic that exists; topics that a member asks for may be
        missing.
        """
        ...


def partitions_of(topic: str, partitions: Mapping[str, int]) -> list[TopicPartition]:
    """All partitions of the topic; none if it does not exist."""
    return [TopicPartition(topic, number) for number in range(partitions.get(topic, 0))]


def in_order(members: Mapping[str, GroupMember], ids: Iterable[str] | None = None) -> list[str]:
    """The members in the order of Java's assignors: static ones by their instance ids, then the others by theirs.

    Member ids change with every start, instance ids do not, so a static member that comes back finds its place.
    """

    def place(member: str) -> tuple[bool, str]:
        instance = members[member].instance_id
        return instance is None, member if instance is None else instance

    return sorted(members if ids is None else ids, key=place)


def subscribers(members: Mapping[str, GroupMember], partitions: Mapping[str, int]) -> dict[str, list[str]]:
    """Who wants each topic, both in order. Topics that do not exist, or that nobody wants, are left out."""
    found: dict[str, list[str]] = {}
    for member in in_order(members):
        for topic in members[member].topics:
            if partitions.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member)
    return dict(sorted(found.items()))
