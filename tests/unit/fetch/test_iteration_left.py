"""Abandoned iterations, with Ctrl-C while their remaining records are given back."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from support.harness.buffer_in_memory import TP, buffer, polled, position_of
from support.harness.interrupts import Interrupter, interrupted_everywhere


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # from dropped iterations
@pytest.mark.parametrize("handed_out", [0, 1, 4, 9])
def test_the_rest_of_a_left_iteration_comes_again_wherever_giving_it_back_is_interrupted(handed_out: int) -> None:
    def scenario(at: int) -> bool:
        made = buffer()
        iteration = made.one_by_one(polled(made, 0, 10))
        for offset in range(handed_out):
            assert next(iteration).offset == offset
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            made.end_iteration()
        made.end_iteration()
        made.poll_begins()
        assert position_of(made) == handed_out
        again = made.take(500)  # None if they have to be fetched again
        assert again is None or [record.offset for record in again] == list(range(handed_out, 10))
        assert again is not None or made.assignment.state(TP).fetch_offset == handed_out
        return interrupter.has_raised

    # An iteration that has not started has nothing to give back.
    interrupted_everywhere(scenario, more_than=10 if handed_out else 0)


def test_the_rest_of_a_left_iteration_comes_again_if_waiting_for_the_lock_is_interrupted() -> None:
    """Ctrl-C comes while another thread holds the lock, so this thread never acquires it."""

    class InterruptedOnce:
        def __init__(self, lock: Any) -> None:
            self._lock, self._interrupts = lock, 1

        def __enter__(self) -> None:
            if self._interrupts:
                self._interrupts = 0
                raise KeyboardInterrupt
            self._lock.acquire()

        def __exit__(self, *problem: object) -> None:
            self._lock.release()

    made = buffer()
    iteration = made.one_by_one(polled(made, 0, 10))
    assert [next(iteration).offset for _ in range(4)] == [0, 1, 2, 3]
    made.lock = InterruptedOnce(made.lock)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        made.end_iteration()
    made.poll_begins()
    assert made.take(500) is None
    assert made.assignment.state(TP).fetch_offset == 4
