"""One cycle of an application: clients start, join groups, read, write and end. Some live as long as the process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from headrace import (
    AsyncConsumer,
    AsyncProducer,
    AsyncShareConsumer,
    Consumer,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from headrace.errors import NetworkError

TOPIC, SMALL_TOPIC = "leaks", "leaks-small"
"""The first one grows until the broker deletes its segments, every few minutes. Clients that begin at its start would
use the more memory the faster the cycles are, so they read the second one, which gets no records later."""
PARTITIONS = 4
RECORDS = 200
_BY_HAND = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
_PATIENCE = 30.0  # seconds until records must have arrived


class Application:
    """`close` ends the clients that live from cycle to cycle."""

    def __init__(self, servers: str) -> None:
        self.settings: dict[str, Any] = {"bootstrap_servers": servers}
        self._producer = Producer(**self.settings, linger_ms=0)
        self._reader = Consumer(**self.settings, auto_offset_reset="earliest")
        self._reader.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        self._member = self._member_of("long-lived", topic=TOPIC)
        self._number = 0
        self._producer.send_all(SMALL_TOPIC, [b"." * 100] * RECORDS).result()

    def cycle(self) -> None:
        """All steps, one after the other."""
        self._number += 1
        for step in (
            self._write,
            self._transact,
            self._rebalance,
            self._share,
            self._fail_to_connect,
            self._in_a_loop,
            self._abandon,
        ):
            step()

    def close(self) -> None:
        self._producer.close()
        self._reader.close()
        self._member.close()

    # -- steps -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """By the producer that stays, and by one that ends. The reader that stays receives everything."""
        for number in range(RECORDS):
            self._producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        self._producer.send(TOPIC, b"alone", partition=0).result()
        with Producer(**self.settings, compression_type="lz4") as producer:
            producer.send_all(TOPIC, [b"." * 100] * RECORDS)
        self._receive(self._reader, 2 * RECORDS + 1)
        self._receive(self._member, 2 * RECORDS + 1)
        self._member.commit()

    def _transact(self) -> None:
        with Producer(**self.settings, transactional_id="leaks", linger_ms=0) as producer:
            for commits in (True, False):
                producer.begin()
                producer.send(TOPIC, b"in a transaction")
                producer.commit() if commits else producer.abort()
        self._reader.poll(0.5)
        self._member.poll(0.5)

    def _rebalance(self) -> None:
        """A second member joins, and leaves."""
        for protocol in ("classic", "consumer"):
            with self._member_of(f"rebalanced-{protocol}", protocol) as first:
                self._assigned(first)
                with self._member_of(f"rebalanced-{protocol}", protocol) as second:
                    self._assigned(second, first)
                    second.commit()

    def _share(self) -> None:
        with ShareConsumer(**self.settings, group_id="shared") as consumer:
            consumer.subscribe([SMALL_TOPIC])
            consumer.poll(0.3)
            consumer.commit()

    def _fail_to_connect(self) -> None:
        nobody = {"bootstrap_servers": "127.0.0.1:1", "default_api_timeout_ms": 100}
        with contextlib.suppress(NetworkError, TimeoutError), Consumer(**nobody) as consumer:
            consumer.partitions_for_topic(TOPIC)

    def _in_a_loop(self) -> None:
        asyncio.run(self._asynchronous())

    async def _asynchronous(self) -> None:
        before = asyncio.all_tasks()
        async with AsyncProducer(**self.settings, linger_ms=0) as producer:
            await (await producer.send(TOPIC, b"x", partition=0))
        async with AsyncConsumer(**self.settings, group_id="in-a-loop", auto_offset_reset="earliest") as consumer:
            consumer.subscribe([SMALL_TOPIC])
            await consumer.poll(1.0)
        async with AsyncShareConsumer(**self.settings, group_id="shared") as shares:
            shares.subscribe([SMALL_TOPIC])
            await shares.poll(0.1)
        left = asyncio.all_tasks() - before
        assert not left, f"tasks of closed clients: {left}"
        self._reader.poll(0.5)
        self._member.poll(0.5)

    def _abandon(self) -> None:
        """A consumer that is dropped without close() is collected with its threads."""
        consumer = Consumer(**self.settings)
        consumer.assign([TopicPartition(SMALL_TOPIC, 0)])
        consumer.poll(0.05)

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _member_of(self, group: str, protocol: str = "classic", topic: str = SMALL_TOPIC) -> Consumer:
        member = Consumer(**self.settings, group_id=group, group_protocol=protocol, **_BY_HAND)
        member.subscribe([topic])
        return member

    @staticmethod
    def _receive(consumer: Consumer, count: int) -> None:
        found = 0

        def is_there() -> bool:
            nonlocal found
            found += len(consumer.poll(0.2))
            return found >= count

        _until(is_there)

    @staticmethod
    def _assigned(*consumers: Consumer) -> None:
        def are_assigned() -> bool:
            for each in consumers:
                each.poll(0.05)
            return all(each.assignment() for each in consumers)

        _until(are_assigned)


def _until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_true():
        if time.monotonic() > deadline:
            raise AssertionError("records or partitions have not arrived in time")
