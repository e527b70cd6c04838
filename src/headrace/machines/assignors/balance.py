"""The balance that both sticky assignors strive for, and the least that has to move to get there.

1. Everybody keeps what it rightfully owns: of several claims to a partition the one with the highest generation
   counts, and none if there are two of those.
2. What is free is dealt, always to who has least, starting with what the fewest want.
3. Who has most gives one to who has least, as long as it has at least two more; through others if need be (A to B,
   B to C), as not everybody wants every topic. First only what was dealt is passed on, then what was owned too.

With equal subscriptions the numbers differ by at most one. With others they are as even as they can be: where nobody
can be relieved over any detour, no other assignment has a lower maximum, or a lower sum of squares.

For balance, partitions that the same members want are alike. So the topics with the same subscribers are one *pool*,
`shares.py` counts how many partitions of each pool everybody gets, and here it is decided which ones these are.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ...types import TopicPartition
from .base import GroupMember, in_order, partitions_of, subscribers
from .shares import Shares


class Claim(NamedTuple):
    """What a member says it owns, and since which generation."""

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
    """What each member gets, in order."""
    pools = _pools(members, partitions, owners)
    ids = in_order(members)
    number_of = {member: number for number, member in enumerate(ids)}
    shares = Shares(
        [[number_of[member] for member in pool.owned] for pool in pools],
        [{at: len(pool.owned[member]) for at, pool in enumerate(pools) if pool.owned.get(member)} for member in ids],
    )
    shares.deal([len(pool.free) for pool in pools])
    shares.level(only_dealt=True)
    shares.level()

    result: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for at, pool in enumerate(pools):
        counts = {member: shares.counts[number_of[member]].get(at, 0) for member in pool.owned}
        for member, share in pool.hand_out(counts).items():
            result[member] += share
    return {member: sorted(share) for member, share in result.items()}


class _Pool:
    """The partitions of all topics with the same subscribers."""

    def __init__(self, members: Iterable[str]) -> None:
        self.owned: dict[str, list[TopicPartition]] = {member: [] for member in members}
        self.free: list[TopicPartition] = []

    def hand_out(self, counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
        """As many as `counts` says for each, and of what it owned as many as possible."""
        result = {}
        free = self.free.copy()
        for turn, (member, owned) in enumerate(self.owned.items()):
            kept = counts[member]
            if kept < len(owned):
                owned = _best_kept_first(owned, turn)
                free += owned[kept:]
            result[member] = owned[:kept]
        takers = deque(member for member, share in result.items() if len(share) < counts[member])
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
            # An owner that no longer wants the topic has to let it go.
            (pool.free if owner is None else pool.owned.get(owner, pool.free)).append(partition)
    return list(pools.values())


def _best_kept_first(owned: list[TopicPartition], turn: int) -> list[TopicPartition]:
    """What is given up is taken from the end: of the topics of which the member has most, and among those from each
    member of another one. So a newcomer does not get one topic from everybody."""
    topics = sorted({topic for topic, _ in owned})
    place = {topic: (index + turn) % len(topics) for index, topic in enumerate(topics)}
    so_far: Counter[str] = Counter()
    ranked = []
    for partition in owned:
        ranked.append((so_far[partition.topic], place[partition.topic], partition))
        so_far[partition.topic] += 1
    return [partition for _, _, partition in sorted(ranked)]
