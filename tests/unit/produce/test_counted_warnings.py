"""How often a producer warns about records that fail."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace._machines.counted_warnings import EVERY, CountedWarnings


def test_an_outage_of_eighteen_minutes_gives_eighteen_warnings() -> None:
    warnings, logged = CountedWarnings(), []
    for second in range(18 * 60):
        warnings.add(100, second)
        if (found := warnings.due(second)) is not None:
            logged.append((second, *found))
    assert len(logged) == 18
    assert logged[:3] == [(0, 100, 0), (60, 6000, 60), (120, 6000, 120)]


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(0, 5)), max_size=30))
def test_every_failure_is_counted_once_and_never_twice_a_minute(steps: list[tuple[float, int]]) -> None:
    warnings, now, total = CountedWarnings(), 0.0, 0
    reported: list[tuple[float, int]] = []
    for pause, count in steps:
        end = now + pause
        while (due := warnings.next_due) is not None and due < end:
            now = due
            found = warnings.due(now)
            assert found is not None, "it is due when it says so"
            reported.append((now, found[0]))
        now = end
        total += count
        if count:
            warnings.add(count, now)
        if (found := warnings.due(now)) is not None:
            reported.append((now, found[0]))
    if (found := warnings.due(now, is_last=True)) is not None:
        total -= found[0]
    assert sum(count for _, count in reported) == total
    assert all(later >= earlier + EVERY for (earlier, _), (later, _) in itertools.pairwise(reported))
