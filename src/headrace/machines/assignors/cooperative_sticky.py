"""Cooperative sticky: as sticky, but members go on reading what they keep while the group rebalances.

A partition that changes hands is given to nobody in this round, so its owner, seeing that it is missing, gives it up
and asks for another round; then it is free. Whoever claims a partition may still be reading it, so any claim of
another member withholds it, also one that lost against a higher generation; only who rightfully owns it keeps it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ...errors import ProtocolError
from ...protocol.codes import legible
from ...protocol.group_data import NO_GENERATION, read_generation, write_generation
from ...types import TopicPartition
from .balance import Claim, balanced, rightful_owners
from .base import Assignor, GroupMember

log = logging.getLogger(__name__)


class CooperativeStickyAssignor(Assignor):
    """As balanced as possible with as few moves as possible; what does not move is read without a pause."""

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
            member: [each for each in share if each not in claimed or owners.get(each) == member]
            for member, share in balanced(members, partitions, owners).items()
        }


def _generation(id: str, member: GroupMember) -> int:
    # Subscriptions before version 2 have no generation, so the assignor says it.
    if member.generation != NO_GENERATION:
        return member.generation
    try:
        return read_generation(member.user_data)
    except ProtocolError as error:
        log.warning("the generation of member %s cannot be read, it counts as none: %s", legible(id, 200), error)
        return NO_GENERATION
