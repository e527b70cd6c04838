"""Sticky: balanced, and what need not move does not."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ...errors import ProtocolError
from ...protocol.codes import legible
from ...protocol.group_data import NO_GENERATION, read_sticky_data, write_sticky_data
from ...types import TopicPartition
from .balance import Claim, balanced, rightful_owners
from .base import Assignor, GroupMember

log = logging.getLogger(__name__)


class StickyAssignor(Assignor):
    """As balanced as possible with as few moves as possible. Everybody stops reading while the group rebalances."""

    name = "sticky"

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        return None if generation == NO_GENERATION else write_sticky_data(previous, generation)

    def assign(
        self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        claims = {member: _claim(member, subscription) for member, subscription in members.items()}
        return balanced(members, partitions, rightful_owners(claims))


def _claim(id: str, member: GroupMember) -> Claim:
    # Members give everything up before they join, so only the user data tells what they had. Data that cannot be
    # read costs the member its partitions, not the group its assignment.
    try:
        return Claim(*read_sticky_data(member.user_data))
    except ProtocolError as error:
        log.warning("what member %s had before cannot be read, it counts as nothing: %s", legible(id, 200), error)
        return Claim(frozenset(), NO_GENERATION)
