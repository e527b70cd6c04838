"""Range: each topic by itself, in contiguous ranges.

The partitions of a topic in order, the members that want it in order (see `in_order`): each gets the next
`partitions // members`, the first `partitions % members` get one more. So topics with the same number of partitions
and the same subscribers are split in the same way, which joins by key rely on.

The result is the same as in Java, except that racks are ignored: where partition replicas and members have racks, Java
prefers members in the rack of a replica.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....types import TopicPartition
from .base import Assignor, GroupMember, partitions_of, subscribers


class RangeAssignor(Assignor):
    """Contiguous ranges of each topic, as Java's RangeAssignor without racks."""

    name = "range"

    def assign(
        self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for topic, wanting in subscribers(members, partitions).items():
            all_of_it = partitions_of(topic, partitions)
            each, one_more = divmod(len(all_of_it), len(wanting))
            start = 0
            for index, member in enumerate(wanting):
                end = start + each + (index < one_more)
                assignment[member] += all_of_it[start:end]
                start = end
        return assignment
