"""The exactly-once sink whose rights are taken away: it aborts nothing that may be decided, and names the right.

The driver of the sink is real, and so are its brokers. Only Spark is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from headrace._machines.produce.open_transaction import OpenTransaction
from headrace.spark import producer_access
from headrace.spark.sink.protocol import SinkError, driver_transactional_id
from headrace.spark.sink.verdicts import Batch
from headrace.types import OffsetAndMetadata, TopicPartition
from support.brokers.admin import unique
from support.brokers.secured import SecuredBroker
from support.spark.sink_driver import QUERY, DrivenSink

pytestmark = pytest.mark.timeout(120)
USER = "writer"
INTERNAL = "__consumer_offsets"


class SecuredSink(DrivenSink):
    """Of a user with exactly the rights that docs/spark.md lists."""

    def __init__(self, secured: SecuredBroker) -> None:
        super().__init__(secured.broker.config_of(USER, "PLAIN"), unique("sink"), secured.create("sunk"))
        self.secured = secured
        self.other = secured.create("decisions")  # another topic for decisions
        secured.allow(USER, "topic", self.topic, "write")
        secured.allow(USER, "transactional_id", self.name, "write", "describe", is_prefix=True)
        secured.allow(USER, "group", self.name, "read")
        secured.allow(USER, "topic", INTERNAL, "read")

    def close(self) -> None:
        super().close()
        for kind, name in (("topic", INTERNAL), ("topic", self.topic), ("topic", self.other), ("group", self.name)):
            self.secured.disallow(USER, kind, name)


@pytest.fixture
def sink(secured: SecuredBroker) -> Iterator[SecuredSink]:
    made = SecuredSink(secured)
    yield made
    made.close()


@pytest.mark.parametrize(("kind", "right"), [("topic", f"the topic {INTERNAL}"), ("group", "the group sink")])
def test_a_right_to_read_that_is_taken_away_after_the_decision_stops_the_query_and_aborts_nothing(
    sink: SecuredSink, monkeypatch: pytest.MonkeyPatch, kind: str, right: str
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
    sink: SecuredSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = sink.decide(monkeypatch)
    sink.secured.disallow(USER, "topic", INTERNAL)
    sink.secured.allow(USER, "topic", sink.other, "read")
    with pytest.raises(SinkError, match=r"the group .* exists, but none of its offsets is visible"):
        sink.driver(decisionTopic=sink.other).plan()
    assert sink.open() == {task.transaction for task in tasks}


def test_another_decision_topic_is_refused_if_the_former_one_can_be_read(
    sink: SecuredSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.secured.allow(USER, "topic", sink.other, "read")
    tasks = sink.decide(monkeypatch, decisionTopic=sink.other)
    with pytest.raises(SinkError, match=f"stored under the topic {sink.other}, but the decisionTopic is {INTERNAL}"):
        sink.driver().plan()
    assert sink.open() == {task.transaction for task in tasks}
    assert sink.driver(decisionTopic=sink.other).plan().decided is not None
    assert sink.open() == set()


def test_a_right_that_is_missing_from_the_start_is_named(sink: SecuredSink) -> None:
    sink.secured.disallow(USER, "topic", INTERNAL)
    with pytest.raises(SinkError, match=f"Allow it Read on the topic {INTERNAL}. Or set decisionTopic"):
        sink.driver().plan()
    sink.secured.allow(USER, "topic", sink.other, "read")
    driver = sink.driver(decisionTopic=sink.other)
    plan = driver.plan()
    assert plan.decided is None
    driver.commit(plan, Batch(QUERY, 0), sink.write())
    found = sink.driver(decisionTopic=sink.other).plan().decided
    assert found is not None
    assert (found.batch, found.is_complete) == (0, True)


def test_a_first_decision_that_was_interrupted_is_no_decision_once_its_group_is_gone(sink: SecuredSink) -> None:
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
