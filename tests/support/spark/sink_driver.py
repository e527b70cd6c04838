"""The driver of the exactly-once sink at a real broker, without Spark: tasks are producers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from headrace import Producer
from headrace._machines.produce.open_transaction import OpenTransaction, TransactionDescription
from headrace.spark import producer_access
from headrace.spark.options.sink import SinkOptions
from headrace.spark.sink.brokers import BrokerCoordination
from headrace.spark.sink.exactly_once import ExactlyOnceDriver
from headrace.spark.sink.protocol import TaskTransaction, task_transactional_id
from headrace.spark.sink.verdicts import Batch

QUERY = "a-query"
TASKS = 2
WORKER = "0123456789abcdef"


class KilledError(BaseException):
    """The driver is killed."""


class DrivenSink:
    """A sink, and what its drivers and tasks do. `settings` are those of clients."""

    def __init__(self, settings: Mapping[str, Any], name: str, topic: str) -> None:
        self.name, self.topic = name, topic
        self._settings = {**settings, "default.api.timeout.ms": "20000"}
        self._producers: list[Producer] = []
        self._tasks = 0

    def driver(self, **options: str) -> ExactlyOnceDriver:
        given = {f"kafka.{name}": str(value) for name, value in self._settings.items()}
        parsed = SinkOptions.parse({**given, "exactlyOnce": "true", "sinkId": self.name, **options})
        coordination = BrokerCoordination(self.producer(), parsed)
        return ExactlyOnceDriver(self.name, coordination, lambda: int(time.time() * 1000))

    def producer(self, **changes: str) -> Producer:
        producer = Producer({**self._settings, **changes})
        self._producers.append(producer)
        return producer

    def write(self, batch: int = 0) -> list[TaskTransaction]:
        """The tasks of a batch, which leave their transactions open."""
        found = []
        for task in range(TASKS):
            producer = self.producer(**{"transactional.id": self._task_id(self._tasks)})
            self._tasks += 1
            producer.begin()
            producer.send(self.topic, b"%d %d" % (batch, task))
            producer.flush()
            transaction = producer_access.hand_over(producer)
            assert transaction is not None
            found.append(TaskTransaction(transaction, task, 1))
        return found

    def decide(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> list[TaskTransaction]:
        """Write batch 0, and kill the driver between its decision and the first commit of a transaction."""
        driver = self.driver(**options)
        plan, tasks = driver.plan(), self.write()

        def kill(*_: object) -> None:
            raise KilledError

        with monkeypatch.context() as patched:
            patched.setattr(ExactlyOnceDriver, "_complete", kill)
            with pytest.raises(KilledError):
                driver.commit(plan, Batch(QUERY, 0), tasks)
        assert self.open() == {task.transaction for task in tasks}
        return tasks

    def open(self) -> set[OpenTransaction]:
        found = self.describe([self._task_id(number) for number in range(self._tasks)])
        return {OpenTransaction(name, each.producer_id, each.epoch) for name, each in found.items() if each.is_open}

    def describe(self, names: list[str]) -> Mapping[str, TransactionDescription]:
        return producer_access.ask_coordinators(self.producer(), lambda admin: admin.describe(names))

    def _task_id(self, number: int) -> str:
        return task_transactional_id(self.name, WORKER, number)

    def close(self) -> None:
        for producer in self._producers:
            producer.close(timeout=0)
