"""OffsetMap (offsets with values, stored as runs) against a plain dict."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace._machines.share.offset_map import OffsetMap, OffsetRun, count

SPANS = st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))
STEPS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), SPANS), max_size=40)


@given(STEPS, SPANS)
def test_an_offset_map_behaves_like_a_dict_of_offsets(
    steps: list[tuple[str | None, tuple[int, int]]], look: tuple[int, int]
) -> None:
    runs: OffsetMap[str] = OffsetMap()
    plain: dict[int, str] = {}
    for value, (first, last) in steps:
        if value is None:
            removed = runs.remove(first, last)
            assert _plain(removed) == {o: plain.pop(o) for o in range(first, last + 1) if o in plain}
        else:
            runs.set(first, last, value)
            plain |= dict.fromkeys(range(first, last + 1), value)
        assert _plain(list(runs)) == plain
        assert (len(runs), bool(runs)) == (len(plain), bool(plain))
        _is_canonical(list(runs))
    assert _plain(runs.within(*look)) == {o: v for o, v in plain.items() if look[0] <= o <= look[1]}
    assert count(runs.take()) == len(plain)
    assert not runs


def _plain(runs: list[OffsetRun[str]]) -> dict[int, str]:
    return {offset: run.value for run in runs for offset in run.offsets}


def _is_canonical(runs: list[OffsetRun[str]]) -> None:
    for before, after in itertools.pairwise(runs):
        assert before.last < after.first
        assert before.last + 1 < after.first or before.value != after.value


def test_a_million_offsets_of_an_offset_map_are_one_run() -> None:
    runs: OffsetMap[int] = OffsetMap()
    for first in range(0, 1_000_000, 500):
        runs.set(first, first + 499, 1)
    assert list(runs) == [OffsetRun(0, 999_999, 1)]


def test_an_empty_range_adds_nothing_to_an_offset_map() -> None:
    runs: OffsetMap[int] = OffsetMap()
    runs.set(5, 4, 1)
    assert not runs
