"""What counts as a leak: growth from cycle to cycle, and not what a process needs at first."""

from __future__ import annotations

from collections.abc import Callable

from leaks.figures import Figures, growth

MB = 1_000_000


def samples(memory: Callable[[int], int], threads: Callable[[int], int] = lambda number: 9) -> list[Figures]:
    return [Figures(10 * number, memory(number), 20, threads(number), 50_000) for number in range(20)]


def test_a_process_that_has_grown_at_first_does_not_leak() -> None:
    assert growth(samples(lambda number: min(number, 4) * 20 * MB)) == []
    assert growth(samples(lambda number: (100 + number % 3) * MB)) == []


def test_growth_in_every_cycle_is_a_leak() -> None:
    [text] = growth(samples(lambda number: (100 + 2 * number) * MB))
    assert text == "memory grew from 114,000,000 to 134,000,000 in 140 cycles"


def test_a_few_threads_more_are_a_leak() -> None:
    [text] = growth(samples(lambda number: 100 * MB, lambda number: 9 + number // 3))
    assert text.startswith("threads grew from 11 to 14 ")


def test_the_figures_of_this_process_can_be_read() -> None:
    found = Figures.now(3)
    assert found.memory > 10 * MB
    assert min(found.descriptors, found.threads, found.objects) > 0
    assert "3" in found.line(1.0)
