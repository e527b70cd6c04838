"""What the leader of a classic group computes for all members.

Any client may be a member, and the coordinator passes on the members' data without parsing it. A member with an
unparseable subscription is excluded from the assignment; the leader and the others are not affected.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Self

from ..._arguments import short_repr
from ..._protocol.codes import printable
from ..._protocol.group_data import MemberSubscription, read_subscription, write_assignment
from ...errors import HeadraceError, ProtocolError, StateError
from ...types import TopicPartition
from .assignors import Assignor, GroupMember

log = logging.getLogger(__name__)


def members_in(body: Any, group_id: str) -> dict[str, GroupMember]:
    """The members in the leader's JoinGroup answer. A member with an unparseable subscription has no topics and owns
    nothing."""
    return {each.member_id: _member(each, group_id) for each in body.members}


def _member(item: Any, group_id: str) -> GroupMember:
    try:
        subscription = read_subscription(item.metadata)
    except ProtocolError as error:
        log.warning(
            "group %s: cannot parse the subscription of member %s, so it gets no partitions: %s",
            group_id,
            printable(item.member_id, 200),
            error,
        )
        subscription = MemberSubscription(frozenset())
    return GroupMember.of(subscription, item.group_instance_id)


def compute_assignment(
    assignor: Assignor, group: Mapping[str, GroupMember], counts: Mapping[str, int]
) -> dict[str, bytes]:
    """The assignment of each member, in bytes for SyncGroup. `counts` has the number of partitions of each topic.

    Raises StateError if the assignor raises, or if it returns a member or a partition that does not exist.
    """
    try:
        returned = assignor.assign(group, counts)
    except HeadraceError:
        raise
    except Exception as error:
        raise StateError(f"the assignor {assignor.name} raised {error!r}") from error
    try:
        assignments = {
            member: frozenset(TopicPartition(*each) for each in partitions) for member, partitions in returned.items()
        }
        invented = [
            tp for each in assignments.values() for tp in each if not 0 <= tp.partition < counts.get(tp.topic, 0)
        ]
    except Exception as error:
        raise StateError(f"the assignor {assignor.name} did not return partitions by member id: {error!r}") from error
    if strangers := assignments.keys() - group.keys():
        names = short_repr(strangers)
        raise StateError(f"the assignor {assignor.name} assigned partitions to {names}, who are not members")
    if invented:
        raise StateError(f"the assignor {assignor.name} assigned {invented[0]}, which does not exist")
    return {member: write_assignment(assignments.get(member, frozenset())) for member in group}


class LeaderTopics:
    """The topics of all members, and how many partitions they had when the leader computed the assignment. When that
    number changes, the leader starts a rebalance. Empty for members that do not lead."""

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self.names = names
        self.latest: Mapping[str, int] | None = None
        """Counts that arrived while the assignor was running."""
        self._assigned: Mapping[str, int] | None = None

    @classmethod
    def of(cls, members: Mapping[str, GroupMember]) -> Self:
        return cls(frozenset().union(*(each.topics for each in members.values())))

    def assign(self, counts: Mapping[str, int]) -> bool:
        """The assignment was computed for these counts. Returns whether they have changed since."""
        self._assigned = self._own(counts)
        return self.latest is not None and self.update(self.latest, is_assigned=False)

    def update(self, counts: Mapping[str, int], *, is_assigned: bool) -> bool:
        """Returns whether the counts have changed. `is_assigned`: this generation has its assignment."""
        now = self._own(counts)
        if self._assigned is None:
            if self.names and is_assigned:
                self._assigned = now  # a static leader that restarted: it did not compute this assignment
            return False
        has_changed, self._assigned = now != self._assigned, now
        return has_changed

    def _own(self, counts: Mapping[str, int]) -> dict[str, int]:
        return {topic: count for topic, count in counts.items() if topic in self.names}
