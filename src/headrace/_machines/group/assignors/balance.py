"""The balanced assignment of both sticky assignors, with as few moves as possible.

1. Each member keeps the partitions that it rightfully owns: of several claims to a partition the one with the highest
   generation counts, and none if two claims have that generation.
2. Free partitions go to the member with the fewest, starting with those that have the fewest subscribers.
3. The member with the most passes one to the member with the fewest, as long as it has at least two more; via other
   members if necessary (A to B, B to C), because not all subscribe to every topic. First only partitions from step 2
   are passed on, then owned ones, too.

With equal subscriptions the numbers differ by at most one. With different ones they are as even as possible: when no
such chain is left, no other assignment has a lower maximum, or a lower sum of squares.

For balance, partitions with the same subscribers are interchangeable. So the topics with the same subscribers are one
*pool*: `quotas.py` decides how many partitions of each pool a member gets, and this module decides which ones.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ....types import TopicPartition
from .base import GroupMember, in_order, partitions_of, subscribers
from .quotas import Quotas


class Claim(NamedTuple):
    """The partitions that a member says it owns, and since which generation."""

    partitions: frozenset[TopicPartition]
    generation: int


def rightful_owners(claims: Mapping[str, Claim]) -> dict[TopicPartition, str]:
    strongest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, (partitions, generation) in claims.items():
        for partition in partitions:
            other = strongest.get(partition)
            if other is None or generation > other[0]:
                strongest[partition] = generation, member
            elif generation == other[0]:
                strongest[partition] = generation, None
    return {partition: member for partition, (_, member) in strongest.items() if member is not None}


def balanced(
    members: Mapping[str, GroupMember], partitions: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    """The assignment of each member, in order."""
    pools = _pools(members, partitions, owners)
    ids = in_order(members)
    number_of = {member: number for number, member in enumerate(ids)}
    quotas = Quotas(
        [[number_of[member] for member in pool.owned] for pool in pools],
        [{at: len(pool.owned[member]) for at, pool in enumerate(pools) if pool.owned.get(member)} for member in ids],
    )
    quotas.deal([len(pool.free) for pool in pools])
    quotas.level(only_dealt=True)
    quotas.level()

    result: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for at, pool in enumerate(pools):
        counts = {member: quotas.counts[number_of[member]].get(at, 0) for member in pool.owned}
        for member, assigned in pool.assign(counts).items():
            result[member] += assigned
    return {member: sorted(assigned) for member, assigned in result.items()}


class _Pool:
    """The partitions of all topics with the same subscribers."""

    def __init__(self, members: Iterable[str]) -> None:
        self.owned: dict[str, list[TopicPartition]] = {member: [] for member in members}
        self.free: list[TopicPartition] = []

    def assign(self, counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
        """Each member gets its count, with as many of the partitions that it owned as possible."""
        result = {}
        free = self.free.copy()
        for turn, (member, owned) in enumerate(self.owned.items()):
            count = counts[member]
            if count < len(owned):
                owned = _best_kept_first(owned, turn)
                free += owned[count:]
            result[member] = owned[:count]
        takers = deque(member for member, kept in result.items() if len(kept) < counts[member])
        for partition in sorted(free):
            taker = takers.popleft()
            result[taker].append(partition)
            if len(result[taker]) < counts[taker]:
                takers.append(taker)
        return result


def _pools(
    members: Mapping[str, GroupMember], partitions: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> list[_Pool]:
    pools: dict[tuple[str, ...], _Pool] = {}
    for topic, wanting in subscribers(members, partitions).items():
        audience = tuple(wanting)
        pool = pools.get(audience)
        if pool is None:
            pool = pools[audience] = _Pool(audience)
        for partition in partitions_of(topic, partitions):
            owner = owners.get(partition)
            # An owner that no longer subscribes to the topic loses it.
            (pool.free if owner is None else pool.owned.get(owner, pool.free)).append(partition)
    return list(pools.values())


def _best_kept_first(owned: list[TopicPartition], turn: int) -> list[TopicPartition]:
    """Partitions are taken away from the end: of the topics of which the member has the most, and among those of a
    different one from each member. So a new member does not get the same topic from all others."""
    topics = sorted({topic for topic, _ in owned})
    rank = {topic: (index + turn) % len(topics) for index, topic in enumerate(topics)}
    so_far: Counter[str] = Counter()
    ranked = []
    for partition in owned:
        ranked.append((so_far[partition.topic], rank[partition.topic], partition))
        so_far[partition.topic] += 1
    return [partition for _, _, partition in sorted(ranked)]
