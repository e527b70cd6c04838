"""What commit() of a share consumer returns: every result of an acknowledgement once, whoever learned of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import TopicPartition
from headrace._aio.share.results import UnreturnedResults
from headrace.errors import KafkaError
from support.harness.interrupts import Interrupter, interrupted_everywhere
from support.harness.share_consumer_in_memory import ShareConsumerDriver

# An interrupt inside a generator that is being finalized cannot be raised.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

KINDS = ["sync", "async"]
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ERROR, OTHER = (KafkaError(code, name, False, name) for code, name in ((121, "INVALID_RECORD_STATE"), (9, "OTHER")))


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    while ShareConsumerDriver.opened:
        ShareConsumerDriver.opened.pop().close()


def test_the_first_error_of_a_partition_is_its_result() -> None:
    results = UnreturnedResults()
    for tp, error in [(A, None), (B, None), (A, ERROR), (A, None), (A, OTHER)]:
        results.add(tp, error)
    assert results.hand_over()[0] == {A: ERROR, B: None}


def test_results_are_handed_over_until_a_commit_has_returned_them() -> None:
    results = UnreturnedResults()
    results.add(A, ERROR)
    _, following = results.hand_over()
    following.add(A, OTHER)
    following.add(B, None)
    found, last = following.hand_over()
    assert found == {A: ERROR, B: None}, "the first commit was interrupted"
    following.is_returned = True
    last.add(B, OTHER)
    assert last.hand_over()[0] == {B: OTHER}


def test_results_that_nobody_asks_for_take_no_memory_but_one_entry_of_a_partition() -> None:
    results = UnreturnedResults()
    for _ in range(1000):
        results.add(A, ERROR)
        _, results = results.hand_over()  # each of these commits is interrupted
    assert results._before is not None
    assert results._before._before is None
    assert results.hand_over()[0] == {A: ERROR}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("polls", [False, True])
def test_commit_returns_what_was_sent_before_it(kind: str, polls: bool) -> None:
    driver = ShareConsumerDriver(kind, share_acknowledgement_mode="explicit")
    driver.consumer.acknowledge(driver.poll())
    driver.send()
    if polls:
        driver.consumer.acknowledge(driver.poll())
    assert driver.call(driver.consumer.commit) == {A: None}
    assert driver.call(driver.consumer.commit) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_commit_interrupted_anywhere_leaves_its_results_to_the_next(kind: str) -> None:
    def scenario(at: int) -> bool:
        driver = ShareConsumerDriver(kind, share_acknowledgement_mode="explicit")
        driver.consumer.acknowledge(driver.poll())
        driver.send()
        found: list[Any] = []
        try:
            with Interrupter(at) as interrupter:
                found.append(driver.call(driver.consumer.commit))
        except KeyboardInterrupt:
            pass
        found += [driver.call(driver.consumer.commit) for _ in range(2)]
        assert [each for each in found if each] == [{A: None}]
        driver.close()
        return interrupter.has_raised

    assert interrupted_everywhere(scenario) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_that_raises_takes_no_result_from_commit(kind: str) -> None:
    driver = ShareConsumerDriver(kind, share_acknowledgement_mode="explicit")

    def callback(offsets: Any, error: Any) -> None:
        raise ZeroDivisionError

    driver.consumer.set_acknowledgement_commit_callback(callback)
    driver.consumer.acknowledge(driver.poll())
    driver.send()
    with pytest.raises(ZeroDivisionError):
        driver.call(driver.consumer.commit)
    assert driver.call(driver.consumer.commit) == {A: None}


@pytest.mark.parametrize("kind", KINDS)
def test_close_passes_all_results_to_a_callback_that_raises(kind: str) -> None:
    driver = ShareConsumerDriver(kind, share_acknowledgement_mode="explicit")
    heard: list[Any] = []

    def callback(offsets: Any, error: Any) -> None:
        heard.extend(offsets[A])
        raise ZeroDivisionError(len(heard))

    driver.consumer.set_acknowledgement_commit_callback(callback)
    records = driver.poll()
    for part in (records[:2], records[2:]):
        driver.consumer.acknowledge(part)
        driver.send()
    driver.parts.lifecycle.runtime = None
    with pytest.raises(ZeroDivisionError, match="1"):
        driver.call(driver.consumer.close)
    assert heard == [range(2), range(2, 4)]


@pytest.mark.parametrize("kind", KINDS)
def test_rejected_acknowledgements_are_counted_in_one_warning_a_minute(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Locks that are too short for the work fail with every poll. close() logs the rest."""
    driver = ShareConsumerDriver(kind, share_acknowledgement_mode="explicit")
    records = driver.poll()
    assert len(records) == 4
    for entry in driver.model.logs[0]:
        entry.state = "available"  # the locks have ended, and the consumer does not know
    for record in records:
        driver.consumer.acknowledge(record)
        driver.send()
        driver.call(driver.consumer.commit)
    assert _warnings(caplog) == [1]
    driver.close()
    assert _warnings(caplog) == [1, 3]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[int]:
    found = [record.getMessage() for record in caplog.records if "were not acknowledged" in record.getMessage()]
    return [int(text.split()[0]) for text in found]
