"""Exactly-once writes: every row is visible once, wherever drivers are stopped and however many there are."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from headrace.errors import HeadraceError
from headrace.spark.sink.exactly_once import ExactlyOnceDriver
from headrace.spark.sink.protocol import LostTransactionsError, SinkError, TaskTransaction
from support.spark.sink_model import (
    QUERY,
    SINK,
    TIMEOUT_MS,
    KilledError,
    Query,
    StopAt,
    StoppableBrokers,
    Worker,
    fail,
    kill,
)

BATCHES = 3
AND_ONE_MORE = BATCHES + 1
"""Unneeded transactions may stay open until the next batch."""
STOPS = pytest.mark.parametrize("stop", [kill, fail], ids=["killed", "failed"])


def run_until(query: Query, number: int, stop: Callable[[str], None]) -> str | None:
    """Run until step `number` and return its name, or None if there are fewer steps."""
    at = StopAt(number, stop)
    with contextlib.suppress(KilledError, HeadraceError):
        query.drive(BATCHES, at)
    return at.step


def count_steps() -> int:
    steps: list[str] = []
    Query().drive(BATCHES, steps.append)
    return len(steps)


def test_without_faults_every_row_is_visible_once() -> None:
    query = Query()
    query.finish(BATCHES)
    query.check(BATCHES)
    assert query.cluster.largest_part <= 200
    assert len(query.cluster.offsets) > 1, "the decision has several parts"
    assert len(query.cluster.ids) <= 2 * 3 + 1, "ids must be reused"


@STOPS
def test_a_driver_can_be_stopped_at_every_step(stop: Callable[[str], None]) -> None:
    for number in range(1, count_steps() + 1):
        query = Query()
        step = run_until(query, number, stop)
        assert step is not None
        query.finish(AND_ONE_MORE)
        try:
            query.check(AND_ONE_MORE)
        except AssertionError as error:
            raise AssertionError(f"stopped {step} ({number}): {error}") from None


@STOPS
def test_a_second_driver_can_be_stopped_at_every_step_of_the_recovery(stop: Callable[[str], None]) -> None:
    for first in range(1, count_steps() + 1, 2):
        for second in itertools.count(1):
            query = Query()
            steps = run_until(query, first, kill), run_until(query, second, stop)
            query.finish(AND_ONE_MORE)
            try:
                query.check(AND_ONE_MORE)
            except AssertionError as error:
                raise AssertionError(f"stopped {steps} ({first}, {second}): {error}") from None
            if steps[1] is None:
                break


def test_an_older_driver_can_continue_after_a_newer_one_at_every_step() -> None:
    for number in range(1, count_steps() + 1):
        query = Query()
        is_paused, may_continue = threading.Event(), threading.Event()

        def pause(step: str, is_paused: threading.Event = is_paused, go: threading.Event = may_continue) -> None:
            is_paused.set()
            assert go.wait(30)

        older = threading.Thread(target=run_until, args=(query, number, pause))
        older.start()
        assert is_paused.wait(30)
        with contextlib.suppress(SinkError):
            query.drive(BATCHES, lambda step: None)
        may_continue.set()
        older.join(30)
        query.finish(BATCHES)
        wanted = sorted((batch, number) for batch in range(BATCHES) for number in range(query.partitions))
        assert sorted(query.cluster.visible) == wanted, f"paused at step {number}"


def test_a_driver_that_starts_aborts_what_others_left_before_its_tasks_start() -> None:
    query = Query()
    assert run_until(query, _number_of("before commit"), kill) == "before commit"
    assert len(query.cluster.open_ids()) == query.partitions + 1
    found: list[int] = []

    def look(step: str) -> None:
        if step == "task":
            found.append(len(query.cluster.open_ids()))

    query.drive(BATCHES, look)
    assert found == [1] * BATCHES, "only the transaction that has just started"
    query.check(BATCHES)


def test_an_older_driver_does_not_abort_transactions_of_a_newer_one() -> None:
    # The older driver has committed its batch. It lists unneeded transactions while the tasks of a newer driver run.
    query = Query()
    newer = ExactlyOnceDriver(SINK, StoppableBrokers(query.cluster, lambda step: None), lambda: query.cluster.now_ms)
    tasks: list[TaskTransaction | None] = []

    def begin(step: str) -> None:
        plan = newer.plan()
        tasks.append(Worker(query.cluster, 99).write(plan, 1, 0))

    steps: list[str] = []
    Query().drive(1, steps.append)
    last_list = max(number for number, step in enumerate(steps, 1) if step == "before list")
    query.drive(1, StopAt(last_list, begin))
    [task] = tasks
    assert task is not None
    assert query.cluster.open_ids() == [task.transaction.transactional_id]


def test_transactions_that_time_out_before_the_decision_are_written_again() -> None:
    query = Query()

    def wait(step: str) -> None:
        query.cluster.pass_time(TIMEOUT_MS + 1)

    at = StopAt(_number_of("before commit"), wait)
    with pytest.raises(SinkError, match="is not open any more"):
        query.drive(BATCHES, at)
    query.finish(BATCHES)
    query.check(BATCHES)


def test_a_transaction_that_is_about_to_time_out_is_not_decided() -> None:
    query = Query()

    def wait(step: str) -> None:
        query.cluster.pass_time(TIMEOUT_MS - 5_000)

    at = StopAt(_number_of("before commit"), wait)
    with pytest.raises(SinkError, match=r"is open for 55 s, and ends after 60 s"):
        query.drive(BATCHES, at)
    query.finish(BATCHES)
    query.check(BATCHES)


def test_a_driver_that_stays_away_for_too_long_after_the_decision_stops_with_what_is_missing() -> None:
    # After the decision, and after the first of three transactions was committed.
    query = Query()
    number = _number_of("after end", 2)
    assert run_until(query, number, kill) == "after end"
    assert query.cluster.visible == [(0, 0)]
    query.cluster.pass_time(TIMEOUT_MS + 1)
    for _ in range(2):  # each restart raises the same error
        with pytest.raises(LostTransactionsError) as caught:
            query.finish(BATCHES)
        text = str(caught.value)
        assert "Batch 0 of query query is written only in part: 2 of its 3 transactions" in text
        assert "1 rows of task 1" in text
        assert "1 rows of task 2" in text
        assert "of task 0" not in text
    assert query.cluster.visible == [(0, 0)]


def test_a_driver_that_is_paused_for_too_long_at_any_step_loses_nothing_silently() -> None:
    """All transactions time out while the driver is paused. Then it continues, and is restarted if it fails."""
    outcomes = Counter[str]()
    for number in range(1, count_steps() + 1):
        query = Query()
        at = StopAt(number, lambda step, cluster=query.cluster: cluster.pass_time(TIMEOUT_MS + 1))  # type: ignore[misc]
        with contextlib.suppress(SinkError):
            query.drive(BATCHES, at)
        outcomes[end(query, f"paused {at.step} ({number})")] += 1
    # Only between the first and the last EndTxn of a batch.
    assert outcomes["lost"] == BATCHES * (2 * query.partitions - 2)
    assert outcomes["complete"] > outcomes["lost"]


def test_a_driver_that_is_killed_at_any_step_and_stays_away_for_too_long_loses_nothing_silently() -> None:
    for number in range(1, count_steps() + 1):
        query = Query()
        step = run_until(query, number, kill)
        query.cluster.pass_time(TIMEOUT_MS + 1)
        end(query, f"killed {step} ({number})")


def end(query: Query, case: str) -> str:
    """Restart the query. Either every row is visible once, or an error says that the batch is visible in part."""
    lost = None
    try:
        query.finish(AND_ONE_MORE)
    except LostTransactionsError as error:
        lost = str(error)
    if lost is None:
        query.check(AND_ONE_MORE)
        return "complete"
    assert f"Batch {query.committed} of query query is written only in part" in lost, case
    assert 0 < query.visible_of(query.committed) < query.partitions, case
    return "lost"


def test_a_driver_that_was_paused_before_its_decision_has_the_batch_written_again() -> None:
    query = Query()
    at = StopAt(_number_of("before commit offsets"), lambda step: query.cluster.pass_time(TIMEOUT_MS + 1))
    with pytest.raises(SinkError, match="none of its rows is visible: its transactions were aborted meanwhile"):
        query.drive(BATCHES, at)
    assert query.cluster.visible == []
    query.finish(BATCHES)
    query.check(BATCHES)


def test_transactions_that_are_still_open_are_aborted_if_others_of_their_batch_have_timed_out() -> None:
    query = Query()
    assert run_until(query, _number_of("before describe", 2), kill) == "before describe"
    query.cluster.abort(query.cluster.open_ids()[-1])  # the first one is that of the speculative attempt
    query.finish(AND_ONE_MORE)
    query.check(AND_ONE_MORE)


def test_a_second_query_with_the_same_sink_is_refused_wherever_the_first_one_was_killed() -> None:
    """And the first one resumes without loss or duplicates, whatever the second one has done."""
    for number in range(1, count_steps() + 1):
        first = Query()
        step = run_until(first, number, kill)
        second = Query(name="another", cluster=first.cluster)
        with contextlib.suppress(SinkError):
            second.drive(1, lambda step: None)
        if second.committed:  # the first query had decided nothing: the sink belongs to the second one
            assert not first.cluster.visible_of(QUERY), step
            with pytest.raises(SinkError, match="belongs to another query, another"):
                first.finish(BATCHES)
            assert not first.cluster.visible_of(QUERY), step
        else:
            assert not first.cluster.visible_of("another"), step
            first.finish(AND_ONE_MORE)
            first.check(AND_ONE_MORE)


def test_batches_without_rows_are_recorded() -> None:
    query = Query(partitions=0)
    query.finish(2)
    query.partitions = 3
    query.finish(BATCHES)
    assert sorted(query.cluster.visible) == [(2, number) for number in range(3)]


def test_an_old_checkpoint_is_refused() -> None:
    query = Query()
    query.finish(BATCHES)
    query.committed = 1
    with pytest.raises(SinkError, match="the checkpoint is an old copy"):
        query.finish(BATCHES)
    query.check(BATCHES)


def _number_of(step: str, occurrence: int = 1) -> int:
    steps: list[str] = []
    Query().drive(BATCHES, steps.append)
    return [number for number, each in enumerate(steps, 1) if each == step][occurrence - 1]
