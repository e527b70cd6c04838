"""Requirements of exactly-once writes on brokers, and the errors if they are not met."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from kio.schema.errors import ErrorCode

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.open_transaction import OpenTransaction
from headrace._protocol.codes import kafka_error
from headrace.errors import UnsupportedVersionError
from headrace.spark import producer_access
from headrace.spark.options.parsers import OptionError
from headrace.spark.options.sink import SinkOptions
from headrace.spark.sink.brokers import BrokerCoordination
from headrace.spark.sink.protocol import BatchDecision, SinkError, TaskTransaction
from headrace.sync.producer import Producer
from headrace.types import OffsetAndMetadata, TopicPartition

GIVEN = {"kafka.bootstrap.servers": "localhost:9092", "exactlyOnce": "true", "sinkId": "s"}
NOT_YET = UnsupportedVersionError("the broker supports InitProducerId versions 0 to 5")
DENIED = kafka_error(ErrorCode.transactional_id_authorization_failed, "InitProducerId")


class OldBroker:
    """A `TransactionAdmin` for brokers with limits."""

    def __init__(self, version: int = 2, max_timeout_ms: int = 900_000, two_phase: Exception | None = NOT_YET) -> None:
        self._version = version
        self._two_phase = two_phase
        self._max_timeout_ms = max_timeout_ms
        self.committed: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}

    async def transaction_version(self, transactional_id: str) -> int:
        return self._version

    async def init(self, transactional_id: str, timeout_ms: int, *, is_two_phase: bool = False) -> ProducerIdentity:
        if is_two_phase and self._two_phase is not None:
            raise self._two_phase
        if timeout_ms > self._max_timeout_ms:
            raise kafka_error(ErrorCode.invalid_transaction_timeout, "InitProducerId")
        return ProducerIdentity(1, 0)

    async def commit_offsets(self, transaction: OpenTransaction, group: str, offsets: Any) -> None:
        self.committed[group] = offsets

    async def end(self, transaction: OpenTransaction, *, commits: bool) -> ProducerIdentity:
        return ProducerIdentity(1, 1)


class FewPartitions:
    """A producer that only knows the partition counts of topics."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> list[int]:
        return list(range(self._counts.get(topic, 0)))


def coordination(monkeypatch: pytest.MonkeyPatch, broker: OldBroker, **options: str) -> BrokerCoordination:
    def ask(producer: Producer, call: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(call(broker))

    monkeypatch.setattr(producer_access, "ask_coordinators", ask)
    given = GIVEN | {name.replace("__", "."): value for name, value in options.items()}
    producer = FewPartitions({"__consumer_offsets": 50, "decisions": 1})
    return BrokerCoordination(cast(Producer, producer), SinkOptions.parse(given))


def test_clusters_without_the_feature_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SinkError, match=r"needs brokers with transaction\.version=2 or above, but the cluster has 1"):
        coordination(monkeypatch, OldBroker(version=1)).init("s-driver")


@pytest.mark.parametrize(("limit", "expected"), [(900_000, 900_000), (3_600_000, 900_000), (60_000, 60_000)])
def test_transactions_have_the_longest_timeout_that_brokers_accept(
    monkeypatch: pytest.MonkeyPatch, limit: int, expected: int
) -> None:
    assert coordination(monkeypatch, OldBroker(max_timeout_ms=limit)).init("s-driver")[1] == expected


def test_a_given_timeout_is_used_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"kafka__transaction__timeout__ms": "120000"}
    assert coordination(monkeypatch, OldBroker(), **options).init("s-driver")[1] == 120_000
    with pytest.raises(OptionError, match=r"kafka\.transaction\.timeout\.ms=120000 exceeds the limit of the brokers"):
        coordination(monkeypatch, OldBroker(max_timeout_ms=60_000), **options).init("s-driver")


@pytest.mark.parametrize(("answer", "expected"), [(None, None), (NOT_YET, 900_000), (DENIED, 900_000)])
def test_transactions_have_no_timeout_where_brokers_allow_that(
    monkeypatch: pytest.MonkeyPatch, answer: Exception | None, expected: int | None
) -> None:
    assert coordination(monkeypatch, OldBroker(two_phase=answer)).init("s-driver")[1] == expected
    timeout = {"kafka__transaction__timeout__ms": "120000"}
    assert coordination(monkeypatch, OldBroker(two_phase=answer), **timeout).init("s-driver")[1] == 120_000


@pytest.mark.parametrize(
    ("options", "topic"),
    [
        ({"topic": "orders"}, "__consumer_offsets"),
        ({"topic": "orders", "decisionTopic": "decisions"}, "decisions"),
    ],
)
def test_decisions_are_recorded_in_the_group_of_the_sink(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], topic: str
) -> None:
    broker = OldBroker()
    decision = BatchDecision(1, "q", 7, True)
    coordination(monkeypatch, broker, **options).record(OpenTransaction("s-driver", 1, 0), decision)
    [(tp, offset)] = broker.committed["s"].items()
    assert tp == TopicPartition(topic, 0)
    assert offset.offset == 7


def test_a_decision_that_needs_more_partitions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tuple(TaskTransaction(OpenTransaction(str(number) * 9, number, 0), number, 1) for number in range(1000))
    decision = BatchDecision(1, "q", 7, False, tasks)
    driver = OpenTransaction("s-driver", 1, 0)
    broker = OldBroker()
    coordination(monkeypatch, broker).record(driver, decision)
    assert len(broker.committed["s"]) > 1
    with pytest.raises(SinkError, match=r"about 1000 tasks needs \d+ partitions of the topic decisions, which has 1"):
        coordination(monkeypatch, broker, decisionTopic="decisions").record(driver, decision)


def test_a_missing_decision_topic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="decisionTopic=nowhere does not exist"):
        coordination(monkeypatch, OldBroker(), decisionTopic="nowhere").init("s-driver")
