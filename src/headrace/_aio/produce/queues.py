"""The batches that wait for each partition, and the partitions that wait for each broker.

Everything here belongs to the producer's event loop, except for the queries that other threads may call.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..._machines.produce.idempotence import PartitionBatches, SentBatch
from ..._net.connection import Connection
from ..._record_batch import ProducerBatch
from ...config.producer import ProducerConfig
from ...errors import HeadraceError
from ...types import TopicPartition
from ..network.client import Client

if TYPE_CHECKING:
    from .direct import LentPartition


@dataclasses.dataclass(eq=False, slots=True)
class PartitionQueue:
    tp: TopicPartition
    batches: PartitionBatches[ProducerBatch]
    not_before: float = 0.0
    failures: int = 0
    last_error: HeadraceError | None = None
    lent: LentPartition | None = None  # its records are sent directly meanwhile, and nothing may be appended


Taken = list[tuple[PartitionQueue, SentBatch[ProducerBatch]]]
"""The batches of one request."""


@dataclasses.dataclass(eq=False, slots=True)
class BrokerQueue:
    """The partitions that wait for one broker. Those in `ready` may have a batch to send."""

    node: int
    ready: dict[TopicPartition, PartitionQueue] = dataclasses.field(default_factory=dict)
    # Batches that did not fit into the last request and come first in the next one.
    carried: Taken = dataclasses.field(default_factory=list)
    connection: Connection | None = None
    connecting: asyncio.Task[None] | None = None
    in_flight: int = 0
    blocked_since: float | None = None  # since when it has batches to send but accepts none
    # Single records in a row that were delivered while nothing else was on its way, and how many of them it takes until
    # the connection is lent.
    alone: int = 0
    alone_before_loan: int = 1


class Queues:
    def __init__(self, client: Client[ProducerConfig], max_in_flight: int) -> None:
        self.brokers: dict[int, BrokerQueue] = {}
        self._client = client
        self._max_in_flight = max_in_flight
        self._topics: dict[str, dict[int, PartitionQueue]] = {}
        self._leaderless: dict[TopicPartition, PartitionQueue] = {}

    def __iter__(self) -> Iterator[PartitionQueue]:
        return (queue for partitions in list(self._topics.values()) for queue in list(partitions.values()))

    def append(self, batch: ProducerBatch) -> None:
        queue = self.of(batch)
        queue.batches.append(batch)
        self.make_ready(queue)

    def of(self, batch: ProducerBatch) -> PartitionQueue:
        partitions = self._topics.setdefault(batch.topic, {})
        queue = partitions.get(batch.partition)
        if queue is None:
            batches: PartitionBatches[ProducerBatch] = PartitionBatches(self._max_in_flight)
            queue = PartitionQueue(TopicPartition(batch.topic, batch.partition), batches)
            partitions[batch.partition] = queue
        return queue

    def make_ready(self, queue: PartitionQueue) -> None:
        """The partition may have a batch to send to its leader."""
        with self._client.lock:
            leader = self._client.cluster.leader(queue.tp)
        if leader is None:
            self._leaderless[queue.tp] = queue
            self._client.refresh_soon()
            return
        broker = self.brokers.get(leader.node)
        if broker is None:
            broker = self.brokers[leader.node] = BrokerQueue(leader.node)
        broker.ready[queue.tp] = queue

    def put_back_carried(self, broker: BrokerQueue) -> None:
        """The connection is lost: these batches go to the current leaders of their partitions."""
        carried, broker.carried = broker.carried, []
        for queue, sent in carried:
            queue.batches.put_back(sent)
            self.make_ready(queue)

    def follow_leaders(self) -> None:
        """The metadata has changed."""
        waiting = {**self._leaderless}
        self._leaderless.clear()
        for broker in self.brokers.values():
            waiting.update(broker.ready)
            broker.ready.clear()
        for queue in waiting.values():
            self.make_ready(queue)

    def drop_all(self) -> list[ProducerBatch]:
        """Removes and returns all batches, which have failed."""
        self._leaderless.clear()
        for broker in self.brokers.values():
            broker.ready.clear()
            broker.carried.clear()
        return [batch for queue in self for batch in queue.batches.drop_all()]

    # -- from any thread: the numbers may be a moment old ----------------------------------------------------------

    def lengths(self, topic: str) -> Mapping[int, int]:
        """The number of batches that are not done, for each partition of a topic."""
        return {number: len(queue.batches) for number, queue in list(self._topics.get(topic, {}).items())}

    def unavailable(self, topic: str, since: float) -> set[int]:
        """The partitions of a topic whose leader has accepted no waiting batch since then."""
        return {
            tp.partition
            for broker in list(self.brokers.values())
            if broker.blocked_since is not None and broker.blocked_since <= since
            for tp in list(broker.ready)
            if tp.topic == topic
        }

    def pending(self, topic: str, partition: int) -> int:
        """The number of batches of a partition that were never sent."""
        queue = self._topics.get(topic, {}).get(partition)
        return 0 if queue is None else queue.batches.pending
