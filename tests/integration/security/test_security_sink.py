"""The exactly-once sink whose rights are taken away: it aborts nothing that may be decided, and names the right.

The driver of the sink is real, and so are its brokers. Only Spark is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from headrace import Producer
from headrace._machines.produce.open_transaction import OpenTransaction
from headrace.spark import producer_access
from headrace.spark.options.sink import SinkOptions
from headrace.spark.sink.brokers import BrokerCoordination
from headrace.spark.sink.exactly_once import ExactlyOnceDriver
from headrace.spark.sink.protocol import (
    BatchDecision,
    BatchPlan,
    SinkError,
    TaskTransaction,
    driver_transactional_id,
    task_transactional_id,
)
from headrace.spark.sink.verdicts import Batch
from headrace.types import OffsetAndMetadata, TopicPartition
from support.brokers.admin import unique
from support.brokers.secured import SecuredBroker

pytestmark = pytest.mark.timeout(120)
USER = "writer"
INTERNAL = "__consumer_offsets"
QUERY = "a-query"
TASKS = 2


WORKER = "0123456789abcdef"


class KilledError(BaseException):
    """The driver is killed right after its decision."""


class Sink:
    """One sink of a user with exactly the rights that docs/spark.md lists."""

    def __init__(self, secured: SecuredBroker) -> None:
        self.secured = secured
        self.name, self.topic = unique("sink"), secured.create("sunk")
        self.former = secured.create("decisions")  # another topic for decisions
        self._settings = {**secured.broker.config_of(USER, "PLAIN"), "default.api.timeout.ms": "20000"}
        self._producers: list[Producer] = []
        secured.allow(USER, "topic", self.topic, "write")
        secured.allow(USER, "transactional_id", self.name, "write", "describe", is_prefix=True)
        secured.allow(USER, "group", self.name, "read")
        secured.allow(USER, "topic", INTERNAL, "read")

    def driver(self, **options: str) -> ExactlyOnceDriver:
        given = {f"kafka.{name}": value for name, value in self._settings.items()}
        parsed = SinkOptions.parse({**given, "exactlyOnce": "true", "sinkId": self.name, **options})
        coordination = BrokerCoordination(self.producer(), parsed)
        return ExactlyOnceDriver(self.name, coordination, lambda: int(time.time() * 1000))

    def producer(self, **changes: str) -> Producer:
        producer = Producer({**self._settings, **changes})
        self._producers.append(producer)
        return producer

    def write(self, number: int = 0) -> list[TaskTransaction]:
        """The tasks of a batch, which leave their transactions open."""
        found = []
        for task in range(TASKS):
            name = task_transactional_id(self.name, WORKER, number * TASKS + task)
            producer = self.producer(**{"transactional.id": name, "transaction.timeout.ms": "60000"})
            producer.begin()
            producer.send(self.topic, b"%d %d" % (number, task))
            producer.flush()
            transaction = producer_access.hand_over(producer)
            assert transaction is not None
            found.append(TaskTransaction(transaction, task, 1))
        return found

    def decide(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> list[TaskTransaction]:
        """Write batch 0 and kill the driver between its decision and the first commit of a transaction."""
        driver = self.driver(**options)
        plan, tasks = driver.plan(), self.write()

        def kill(*_: object) -> tuple[BatchDecision, BatchPlan]:
            raise KilledError

        with monkeypatch.context() as patched:
            patched.setattr(ExactlyOnceDriver, "_complete", kill)
            with pytest.raises(KilledError):
                driver.commit(plan, Batch(QUERY, 0), tasks)
        assert self.open() == {task.transaction for task in tasks}
        return tasks

    def open(self) -> set[OpenTransaction]:
        names = [task_transactional_id(self.name, WORKER, number) for number in range(TASKS)]
        found = producer_access.ask_coordinators(self.producer(), lambda admin: admin.describe(names))
        return {OpenTransaction(name, each.producer_id, each.epoch) for name, each in found.items() if each.is_open}

    def close(self) -> None:
        for producer in self._producers:
            producer.close(timeout=0)
        for kind, name in (("topic", INTERNAL), ("topic", self.topic), ("topic", self.former), ("group", self.name)):
            self.secured.disallow(USER, kind, name)


@pytest.fixture
def sink(secured: SecuredBroker) -> Iterator[Sink]:
    made = Sink(secured)
    yield made
    made.close()


@pytest.mark.parametrize(("kind", "right"), [("topic", f"the topic {INTERNAL}"), ("group", "the group sink")])
def test_a_right_to_read_that_is_taken_away_after_the_decision_stops_the_query_and_aborts_nothing(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, kind: str, right: str
) -> None:
    name = {"topic": INTERNAL, "group": sink.name}[kind]
    tasks = sink.decide(monkeypatch)
    sink.secured.disallow(USER, kind, name)
    for _ in range(2):  # and again at every restart
        with pytest.raises(
            SinkError, match=r"Cannot read the decisions of sinkId='sink-.*Nothing was aborted"
        ) as caught:
            sink.driver().plan()
        assert right in str(caught.value)
        assert sink.open() == {task.transaction for task in tasks}
    sink.secured.allow(USER, kind, name, "read")
    plan = sink.driver().plan()
    assert plan.decided is not None
    assert (plan.decided.query, plan.decided.batch, plan.decided.is_complete) == (QUERY, 0, True)
    assert sink.open() == set()


def test_another_decision_topic_is_refused_if_the_former_one_cannot_be_read(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = sink.decide(monkeypatch)
    sink.secured.disallow(USER, "topic", INTERNAL)
    sink.secured.allow(USER, "topic", sink.former, "read")
    with pytest.raises(SinkError, match=r"the group .* exists, but none of its offsets is visible"):
        sink.driver(decisionTopic=sink.former).plan()
    assert sink.open() == {task.transaction for task in tasks}


def test_another_decision_topic_is_refused_if_the_former_one_can_be_read(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.secured.allow(USER, "topic", sink.former, "read")
    tasks = sink.decide(monkeypatch, decisionTopic=sink.former)
    with pytest.raises(SinkError, match=f"stored under the topic {sink.former}, but the decisionTopic is {INTERNAL}"):
        sink.driver().plan()
    assert sink.open() == {task.transaction for task in tasks}
    assert sink.driver(decisionTopic=sink.former).plan().decided is not None
    assert sink.open() == set()


def test_a_right_that_is_missing_from_the_start_is_named(sink: Sink) -> None:
    sink.secured.disallow(USER, "topic", INTERNAL)
    with pytest.raises(SinkError, match=f"Allow it Read on the topic {INTERNAL}"):
        sink.driver().plan()
    sink.secured.allow(USER, "topic", sink.former, "read")
    driver = sink.driver(decisionTopic=sink.former)
    plan = driver.plan()
    assert plan.decided is None
    driver.commit(plan, Batch(QUERY, 0), sink.write())
    found = sink.driver(decisionTopic=sink.former).plan().decided
    assert found is not None
    assert (found.batch, found.is_complete) == (0, True)


def test_a_first_decision_that_was_interrupted_is_no_decision_once_its_group_is_gone(sink: Sink) -> None:
    """The group of its aborted offset may have others, which are hidden. The broker removes it after a while."""
    plan = sink.driver().plan()
    driver = OpenTransaction(driver_transactional_id(sink.name), *plan.driver)
    offsets = {TopicPartition(INTERNAL, 0): OffsetAndMetadata(0, "never committed")}
    producer = sink.producer()
    producer_access.ask_coordinators(producer, lambda admin: admin.commit_offsets(driver, sink.name, offsets))
    with pytest.raises(SinkError, match=r"brokers remove the group within 10 minutes"):
        sink.driver().plan()
    sink.secured.delete_group(sink.name)  # as the broker does
    assert sink.driver().plan().decided is None


def test_without_an_authorizer_nothing_is_hidden(servers: str) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        group = unique("sink")
        assert not producer_access.ask_coordinators(producer, lambda admin: admin.checks_rights(group))
