"""Decisions of the exactly-once sink at a real broker, whose transactions have ended in some other way than planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.open_transaction import OpenTransaction
from headrace.spark import producer_access
from headrace.spark.sink.exactly_once import ExactlyOnceDriver
from headrace.spark.sink.protocol import (
    BatchDecision,
    LostTransactionsError,
    SinkError,
    TaskTransaction,
    driver_transactional_id,
)
from headrace.spark.sink.verdicts import Batch, judge_batch
from headrace.types import OffsetAndMetadata, TopicPartition
from support.brokers.admin import Admin, unique
from support.brokers.topic_contents import oracle_rows
from support.spark.sink_driver import QUERY, TASKS, DrivenSink

pytestmark = pytest.mark.timeout(120)
ONCE = Counter({b"0 %d" % task: 1 for task in range(TASKS)})


class Sink(DrivenSink):
    def __init__(self, servers: str, topic: str) -> None:
        super().__init__({"bootstrap.servers": servers}, unique("sink"), topic)
        self._servers = servers

    def end(self, task: TaskTransaction, *, commits: bool) -> None:
        """An abort has the same result as the timeout of the transaction."""
        producer_access.ask_coordinators(self.producer(), lambda admin: admin.end(task.transaction, commits=commits))

    def visible(self) -> Counter[bytes]:
        return Counter(row.value or b"" for row in oracle_rows(self._servers, self.topic, 1, "read_committed"))

    def write_again(self) -> None:
        """The restarted query, which Spark has repeat batch 0."""
        driver = self.driver()
        plan = driver.plan()
        assert judge_batch(plan.decided, Batch(QUERY, 0), self.name)
        driver.commit(plan, Batch(QUERY, 0), self.write())


@pytest.fixture
def sink(servers: str, admin: Admin) -> Iterator[Sink]:
    made = Sink(servers, admin.create("sunk", 1))
    yield made
    made.close()


def test_a_batch_is_written_again_if_its_transactions_have_timed_out_before_the_decision(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = sink.driver()
    plan, tasks = driver.plan(), sink.write()
    record = ExactlyOnceDriver._record

    def paused(self: ExactlyOnceDriver, identity: ProducerIdentity, decision: BatchDecision) -> ProducerIdentity:
        if not decision.is_complete:
            for task in tasks:
                sink.end(task, commits=False)
        return record(self, identity, decision)

    with monkeypatch.context() as patched:
        patched.setattr(ExactlyOnceDriver, "_record", paused)
        with pytest.raises(SinkError, match=r"none of its rows is visible.* Restart the query") as caught:
            driver.commit(plan, Batch(QUERY, 0), tasks)
    assert not isinstance(caught.value, LostTransactionsError)
    sink.write_again()
    assert sink.visible() == ONCE


def test_a_batch_is_written_again_if_one_of_its_transactions_has_ended_before_the_first_is_committed(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = sink.decide(monkeypatch)
    sink.end(tasks[1], commits=False)
    sink.write_again()
    assert sink.visible() == ONCE


def test_a_batch_that_is_visible_in_part_is_an_error_at_every_restart(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = sink.decide(monkeypatch)
    sink.end(tasks[0], commits=True)
    sink.end(tasks[1], commits=False)
    for _ in range(2):
        with pytest.raises(LostTransactionsError, match=r"1 of its 2 .* Missing: 1 rows of task 1 \(aborted\)"):
            sink.driver().plan()
    assert sink.visible() == Counter([b"0 0"])


def test_a_first_decision_that_was_interrupted_is_no_decision(sink: Sink) -> None:
    """Without an authorizer, its group cannot have offsets that are hidden."""
    plan = sink.driver().plan()
    driver = OpenTransaction(driver_transactional_id(sink.name), *plan.driver)
    offsets = {TopicPartition("__consumer_offsets", 0): OffsetAndMetadata(0, "never committed")}
    producer = sink.producer()
    producer_access.ask_coordinators(producer, lambda admin: admin.commit_offsets(driver, sink.name, offsets))
    assert producer_access.ask_coordinators(producer, lambda admin: admin.group_exists(sink.name))
    assert sink.driver().plan().decided is None
    sink.write_again()
    assert sink.visible() == ONCE
