"""What the leader of a classic group works out for all of its members.

Any client may be a member, and what it says of itself goes through the coordinator unread. What cannot be read costs
that member its partitions, not the group its leader.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..arguments import shown
from ..errors import HeadraceError, ProtocolError, StateError
from ..protocol.codes import legible
from ..protocol.group_data import MemberSubscription, read_subscription, write_assignment
from ..types import TopicPartition
from .assignors import Assignor, GroupMember

log = logging.getLogger(__name__)


def members_in(body: Any, group_id: str) -> dict[str, GroupMember]:
    """The members that a JoinGroup answer tells the leader of. One that cannot be understood wants no topics and owns
    nothing."""
    return {each.member_id: _member(each, group_id) for each in body.members}


def _member(told: Any, group_id: str) -> GroupMember:
    try:
        subscription = read_subscription(told.metadata)
    except ProtocolError as error:
        log.warning(
            "group %s: the subscription of member %s cannot be read, it gets no partitions: %s",
            group_id,
            legible(told.member_id, 200),
            error,
        )
        subscription = MemberSubscription(frozenset())
    return GroupMember.of(subscription, told.group_instance_id)


def share_out(assignor: Assignor, group: Mapping[str, GroupMember], layout: Mapping[str, int]) -> dict[str, bytes]:
    """The assignment of each member, as it is sent to it. `layout` has the number of partitions of each topic.

    Raises StateError if the assignor does, or if it names a member or a partition that is not there.
    """
    try:
        given = assignor.assign(group, layout)
    except HeadraceError:
        raise
    except Exception as error:
        raise StateError(f"the assignor {assignor.name} raised {error!r}") from error
    try:
        shares = {
            member: frozenset(TopicPartition(*each) for each in partitions) for member, partitions in given.items()
        }
        invented = [tp for each in shares.values() for tp in each if not 0 <= tp.partition < layout.get(tp.topic, 0)]
    except Exception as error:
        raise StateError(f"the assignor {assignor.name} gave no partitions by member id: {error!r}") from error
    if strangers := shares.keys() - group.keys():
        raise StateError(f"the assignor {assignor.name} gave partitions to {shown(strangers)}, who are not members")
    if invented:
        raise StateError(f"the assignor {assignor.name} gave {invented[0]} away, which does not exist")
    return {member: write_assignment(shares.get(member, frozenset())) for member in group}
