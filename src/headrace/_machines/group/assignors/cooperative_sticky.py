"""Cooperative sticky: like sticky, but members keep consuming the partitions that they keep during a rebalance.

A partition that moves to another member is assigned to nobody in this round. Its owner revokes it, because it is not in
the new assignment, and rejoins; in that round the partition is free. A member that claims a partition may still consume
it, so any claim of another member withholds it, even if a higher generation has a stronger claim. Only the rightful
owner keeps it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ...._protocol.codes import printable
from ...._protocol.group_data import NO_GENERATION, read_generation, write_generation
from ....errors import ProtocolError
from ....types import TopicPartition
from .balance import Claim, balanced, rightful_owners
from .base import Assignor, GroupMember

log = logging.getLogger(__name__)


class CooperativeStickyAssignor(Assignor):
    """As balanced as possible with as few moves as possible. Partitions that do not move keep being consumed."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        return write_generation(generation)

    def assign(
        self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        claims = {member: Claim(each.owned, _generation(member, each)) for member, each in members.items()}
        owners = rightful_owners(claims)
        claimed = {partition for claim in claims.values() for partition in claim.partitions}
        return {
            member: [each for each in assigned if each not in claimed or owners.get(each) == member]
            for member, assigned in balanced(members, partitions, owners).items()
        }


def _generation(id: str, member: GroupMember) -> int:
    # Subscriptions before version 2 have no generation, so the assignor says it.
    if member.generation != NO_GENERATION:
        return member.generation
    try:
        return read_generation(member.user_data)
    except ProtocolError as error:
        log.warning("cannot parse the generation of member %s, so it counts as new: %s", printable(id, 200), error)
        return NO_GENERATION
