"""KIP-41: how the records of one poll are divided among partitions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.fetch.drain import fair_quotas, greedy_quotas

AVAILABLE = st.lists(st.integers(0, 1000), min_size=1, max_size=12)
LIMIT = st.integers(1, 3000)
STEADY = settings(deadline=None, derandomize=True, max_examples=200)


@pytest.mark.parametrize(
    ("available", "limit", "shares", "start"),
    [
        pytest.param([500, 500, 500], 300, [100, 100, 100], 0, id="the proposal's ideal"),
        pytest.param([500, 500, 0], 300, [150, 150, 0], 0, id="one has nothing"),
        pytest.param([500, 20, 500], 300, [140, 20, 140], 0, id="the unused part of a quota goes to the others"),
        pytest.param([10, 20, 500], 300, [10, 20, 270], 0, id="twice"),
        pytest.param([500, 500, 500], 301, [101, 100, 100], 1, id="a remainder of one: the next poll starts after it"),
        pytest.param([500, 500, 500], 302, [101, 101, 100], 2, id="a remainder of two"),
        pytest.param([500, 500, 500], 2, [1, 1, 0], 2, id="fewer than partitions"),
        pytest.param([101, 101, 101], 302, [101, 101, 100], 2, id="just enough for a remainder of two"),
        pytest.param([100, 101, 101], 302, [100, 101, 101], 0, id="one too few for a remainder"),
        pytest.param([500, 0, 500], 1, [1, 0, 0], 1, id="the next poll starts at a partition that is empty now"),
        pytest.param([5, 500, 500], 1, [1, 0, 0], 1, id="just one"),
        pytest.param([0, 0, 5], 1, [0, 0, 1], 0, id="wraps around to the first partition"),
        pytest.param([1, 2, 3], 100, [1, 2, 3], 0, id="more than there is"),
        pytest.param([0, 0], 100, [0, 0], 0, id="nothing"),
        pytest.param([], 100, [], 0, id="no partitions"),
    ],
)
def test_fair_quotas_are_equal_from_where_the_last_poll_stopped(
    available: list[int], limit: int, shares: list[int], start: int
) -> None:
    assert fair_quotas(available, limit) == (shares, start)


@pytest.mark.parametrize(
    ("available", "limit", "shares", "start"),
    [
        pytest.param([500, 500, 500], 300, [300, 0, 0], 1, id="all of it from the first"),
        pytest.param([100, 500, 500], 300, [100, 200, 0], 2, id="the rest from the next"),
        pytest.param([100, 100, 500], 300, [100, 100, 100], 0, id="wraps around to the first partition"),
        pytest.param([100, 0, 500], 100, [100, 0, 0], 1, id="exactly one partition's worth"),
        pytest.param([1, 2, 3], 100, [1, 2, 3], 0, id="more than there is"),
    ],
)
def test_greedy_quotas_take_one_partition_after_the_other(
    available: list[int], limit: int, shares: list[int], start: int
) -> None:
    assert greedy_quotas(available, limit) == (shares, start)


@pytest.mark.parametrize("strategy", [fair_quotas, greedy_quotas])
@STEADY
@given(available=AVAILABLE, limit=LIMIT)
def test_quotas_add_up_to_the_limit_or_to_all_available_records(strategy, available: list[int], limit: int) -> None:
    shares, start = strategy(available, limit)
    assert sum(shares) == min(limit, sum(available))
    assert all(0 <= share <= have for share, have in zip(shares, available, strict=True))
    assert 0 <= start < len(available)


@STEADY
@given(available=AVAILABLE, limit=LIMIT)
def test_fair_quotas_are_equal_among_partitions_with_more_records(available: list[int], limit: int) -> None:
    shares, _ = fair_quotas(available, limit)
    pairs = list(zip(shares, available, strict=True))
    unfilled = [share for share, have in pairs if share < have]
    if unfilled:
        # Partitions with records left have equal quotas, up to one for the remainder. No drained partition got more.
        assert max(unfilled) - min(unfilled) <= 1
        assert max(shares) - min(unfilled) <= 1


@pytest.mark.parametrize("strategy", [fair_quotas, greedy_quotas])
@STEADY
@given(others=st.integers(1, 8), limit=st.integers(1, 20), rounds=st.just(40))
def test_partitions_that_are_always_full_get_equal_quotas_over_time(
    strategy, others: int, limit: int, rounds: int
) -> None:
    order = list(range(others + 1))
    taken = dict.fromkeys(order, 0)
    for _ in range(rounds):
        shares, start = strategy([1000] * len(order), limit)
        for who, share in zip(order, shares, strict=True):
            taken[who] += share
        order = order[start:] + order[:start]
    assert min(taken.values()) > 0
    assert max(taken.values()) - min(taken.values()) <= limit
