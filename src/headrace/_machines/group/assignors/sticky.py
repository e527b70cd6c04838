"""Sticky: balanced, with as few moves as possible."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ...._protocol.codes import printable
from ...._protocol.group_data import NO_GENERATION, read_sticky_data, write_sticky_data
from ....errors import ProtocolError
from ....types import TopicPartition
from .balance import Claim, balanced, rightful_owners
from .base import Assignor, GroupMember

log = logging.getLogger(__name__)


class StickyAssignor(Assignor):
    """As balanced as possible with as few moves as possible. All members stop consuming while the group rebalances."""

    name = "sticky"

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        return None if generation == NO_GENERATION else write_sticky_data(previous, generation)

    def assign(
        self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        claims = {member: _claim(member, subscription) for member, subscription in members.items()}
        return balanced(members, partitions, rightful_owners(claims))


def _claim(id: str, member: GroupMember) -> Claim:
    # Members revoke everything before they join, so only the user data says what they had. A member with unparseable
    # data counts as a new one; the assignment of the group is not affected.
    try:
        return Claim(*read_sticky_data(member.user_data))
    except ProtocolError as error:
        log.warning(
            "cannot parse the previous partitions of member %s, so it counts as new: %s", printable(id, 200), error
        )
        return Claim(frozenset(), NO_GENERATION)
