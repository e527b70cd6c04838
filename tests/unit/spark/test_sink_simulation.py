"""The exactly-once sink in virtual time, with real requests: see `simulation/writing/sink.py`."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from headrace.spark.sink.brokers import BrokerCoordination
from headrace.spark.sink.exactly_once import ExactlyOnceDriver
from simulation.writing import sink
from simulation.writing.world import Violation


@pytest.mark.parametrize("part", range(2))
def test_every_row_is_visible_once_wherever_drivers_and_workers_die(part: int) -> None:
    for seed in range(part, 80, 2):
        sink.run(seed)


def test_a_seed_gives_the_same_simulation_again() -> None:
    assert sink.run(7) == sink.run(7)


# -- bugs that the simulation must find --------------------------------------------------------------------------------


def first_violation(first: int = 0, seeds: int = 300) -> str:
    for seed in range(first, first + seeds):
        try:
            sink.run(seed)
        except Violation as violation:
            return str(violation).partition("\n")[0]
    raise AssertionError(f"{seeds} simulations have not found the bug")


def test_a_decision_that_a_driver_does_not_see_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver takes it for absent, aborts its transactions, and has the batch written again."""
    monkeypatch.setattr(sink, "judge_batch", lambda decided, batch, sink_id: True)
    monkeypatch.setattr(BrokerCoordination, "latest_decision", lambda self: None)
    assert "twice" in first_violation()


def test_an_abort_that_ignores_the_decision_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(self: ExactlyOnceDriver, plan: Any, tasks: Any) -> None:
        self._brokers.end_all([task.transaction for task in tasks], commits=False)

    monkeypatch.setattr(ExactlyOnceDriver, "abort", abort)
    assert first_violation()


def test_a_lost_request_that_aborts_a_decided_transaction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An InitProducerId without a response arrives late, when its transactional id is in use."""
    monkeypatch.setattr(sink, "_has_stray_init", lambda producer: False)
    assert first_violation()


def test_a_decision_that_is_not_recorded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All transactions are committed, but a driver that dies between two of them leaves no trace."""
    monkeypatch.setattr(ExactlyOnceDriver, "_record", lambda self, identity, decision: identity)
    assert first_violation()
