"""Round robin: all partitions of all topics, one by one.

The partitions by topic and number, the members in a circle (see `in_order`): each partition goes to the next member
that subscribes to its topic. A member that is skipped gets no compensation. The result is the same as in Java.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....types import TopicPartition
from .base import Assignor, GroupMember, in_order, partitions_of, subscribers


class RoundRobinAssignor(Assignor):
    """Partitions dealt one by one, as Java's RoundRobinAssignor."""

    name = "roundrobin"

    def assign(
        self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in members}
        circle = in_order(members)
        turn = 0
        for topic in subscribers(members, partitions):  # each has one, so the circle does not turn forever
            for partition in partitions_of(topic, partitions):
                while topic not in members[circle[turn]].topics:
                    turn = (turn + 1) % len(circle)
                assignment[circle[turn]].append(partition)
                turn = (turn + 1) % len(circle)
        return assignment
