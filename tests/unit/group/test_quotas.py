"""Quotas: how many partitions of which pool each member gets, until no chain of moves makes them more even."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from headrace._machines.group.assignors.quotas import Quotas

Pools = Sequence[Sequence[int]]
Counts = Sequence[Mapping[int, int]]


def leveled(pools: Pools, owned: Counts, free: Sequence[int]) -> Counts:
    quotas = Quotas(pools, owned)
    quotas.deal(free)
    quotas.level(only_dealt=True)
    quotas.level()
    return quotas.counts


def loads(counts: Counts) -> list[int]:
    return [sum(each.values()) for each in counts]


def in_reach(member: int, pools: Pools, counts: Counts) -> set[int]:
    """The members that a partition of this one can reach, each passing one on to the next."""
    found, rest = {member}, [member]
    while rest:
        giver = rest.pop()
        for pool, count in counts[giver].items():
            more = set(pools[pool]) - found if count else set()
            found |= more
            rest += more
    return found


def check(pools: Pools, owned: Counts, free: Sequence[int]) -> Counts:
    counts = leveled(pools, owned, free)
    for pool, members in enumerate(pools):
        assert sum(each.get(pool, 0) for each in counts) == free[pool] + sum(each.get(pool, 0) for each in owned)
        assert all(pool not in each for member, each in enumerate(counts) if member not in members)
    assert all(count >= 0 for each in counts for count in each.values())
    found = loads(counts)
    for member, load in enumerate(found):
        assert load - min(found[other] for other in in_reach(member, pools, counts)) <= 1
    return counts


@pytest.mark.parametrize(
    ("pools", "owned", "free", "found"),
    [
        pytest.param([[0, 1]], [{}, {}], [3], [2, 1], id="free ones are dealt"),
        pytest.param([[0, 1]], [{0: 3}, {}], [0], [2, 1], id="one is moved, and no more"),
        pytest.param([[0, 1], [1, 2]], [{0: 3}, {1: 2}, {}], [0, 0], [2, 2, 1], id="along a chain"),
        pytest.param(
            [[0, 1, 2], [1, 2], [2]], [{}, {0: 4}, {1: 4, 2: 4}], [0, 0, 0], [4, 4, 4],
            id="a member that got some gives others away before those with fewer do",
        ),
    ],
)  # fmt: skip
def test_loads_are_as_even_as_subscriptions_allow(
    pools: Pools, owned: Counts, free: Sequence[int], found: list[int]
) -> None:
    assert loads(check(pools, owned, free)) == found


def test_no_chain_of_moves_between_random_members_is_left() -> None:
    for seed in range(1500):
        dice = random.Random(seed)
        size = dice.randint(2, 8)
        pools = [sorted(dice.sample(range(size), dice.randint(1, size))) for _ in range(dice.randint(1, 5))]
        owned = [
            {
                pool: dice.choice((1, 2, 5, 9))
                for pool, members in enumerate(pools)
                if member in members and dice.random() < 0.6
            }
            for member in range(size)
        ]
        check(pools, owned, [dice.randint(0, 9) for _ in pools])
