"""Backoff: pauses between retries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.backoff import Backoff


@pytest.mark.parametrize(
    ("failures", "dice", "seconds"),
    [
        pytest.param(0, 0.5, 0.0, id="no failure, no pause"),
        pytest.param(1, 0.5, 0.1, id="the first"),
        pytest.param(2, 0.5, 0.2, id="doubled"),
        pytest.param(4, 0.5, 0.8, id="and doubled"),
        pytest.param(5, 0.5, 1.0, id="up to the limit"),
        pytest.param(10_000, 0.5, 1.0, id="however often"),
        pytest.param(1, 0.0, 0.08, id="a fifth less"),
        pytest.param(1, 1.0, 0.12, id="a fifth more"),
        pytest.param(10_000, 1.0, 1.2, id="jitter is on top of the limit, as in Java"),
    ],
)
def test_pauses_double_up_to_their_limit(failures: int, dice: float, seconds: float) -> None:
    assert Backoff(100, 1000).seconds(failures, dice) == pytest.approx(seconds)


def test_a_limit_below_the_first_pause_does_not_shorten_it() -> None:
    assert Backoff(500, 100).seconds(3, 0.5) == pytest.approx(0.5)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(1, 2**31), st.floats(0, 1))
def test_a_pause_is_never_negative_and_never_beyond_the_limit(
    initial: int, limit: int, failures: int, dice: float
) -> None:
    pause = Backoff(initial, limit).seconds(failures, dice)
    assert 0 <= pause <= max(initial, limit) * 1.2 / 1000 + 1e-9
