"""A producer's accumulator and sender without a network: the test plays the brokers.

`ModelCluster` appends batches like brokers (sequence numbers, epochs, the last five batches of a producer). The test
decides when to respond, loses requests and responses, and moves leaders.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from headrace._aio.produce.accumulator import Accumulator
from headrace._aio.produce.sender import Sender
from headrace._machines.cluster import Cluster, Leader, Partition, Topic
from headrace._net.calls import AnswerCallback, Reply
from headrace._protocol.messages import INIT_PRODUCER_ID, PRODUCE
from headrace._record_batch import Delivery
from headrace.config.producer import ProducerConfig
from headrace.errors import NetworkError
from headrace.records import decode
from headrace.types import Node

_PAUSE = 0.001
_REMEMBERED = 5


class ModelPartition:
    """The log of one partition, and its leader's producer state."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.largest_batch = 2**31
        self._epochs: dict[int, int] = {}
        self._last: dict[int, deque[tuple[int, int, int]]] = {}  # first and last sequence, offset

    def append(self, topic: str, partition: int, data: bytes) -> tuple[int, int]:
        """Append a batch; return the error code and the base offset."""
        producer, epoch, first, count = struct.unpack_from(">qhii", data, 43)
        if len(data) > self.largest_batch:
            return ErrorCode.message_too_large, -1
        if producer >= 0:
            known = self._last.setdefault(producer, deque(maxlen=_REMEMBERED))
            current = self._epochs.get(producer, -1)
            if epoch < current:
                return ErrorCode.invalid_producer_epoch, -1
            last = first + count - 1
            if epoch == current:
                for each in known:
                    if each[:2] == (first, last):
                        return ErrorCode.none, each[2]
            expected = known[-1][1] + 1 if epoch == current and known else 0
            if (epoch > current >= 0 or known) and first != expected:
                return ErrorCode.out_of_order_sequence_number, -1
            if epoch > current:
                known.clear()
            self._epochs[producer] = epoch
            known.append((first, last, len(self.values)))
        base = len(self.values)
        batch = decode(data, topic=topic, partition=partition, position=0)
        self.values += [record.value or b"" for record in batch]
        self.timestamps += [record.timestamp for record in batch]
        return ErrorCode.none, base


@dataclasses.dataclass
class ModelRequest:
    """A received Produce request with copies of its batches."""

    node: int
    batches: list[tuple[str, int, bytes]]
    answer: AnswerCallback

    def lose(self) -> None:
        """Lose the connection: there will be no response."""
        if not self.answer.done():
            self.answer.set_exception(NetworkError("lost"))


class ModelConnection:
    def __init__(self, cluster: ModelCluster, node: int) -> None:
        self.is_open = True
        self.throttled_for = 0.0
        self.unsent_bytes = 0
        self.descriptor_to_lend = None
        self._cluster = cluster
        self._node = node

    def take_back(self) -> None:
        """It is never lent."""

    def start_with(self, api: Any, fields: Mapping[str, Any], on_answer: Callable[[Any], None], **options: Any) -> None:
        assert api is PRODUCE
        batches = [
            (topic["name"], each["index"], bytes(each["records"]))
            for topic in fields["topic_data"]
            for each in topic["partition_data"]
        ]
        self._cluster.requests.append(ModelRequest(self._node, batches, AnswerCallback(on_answer)))
        self._cluster.arrived.set()


class ModelCluster:
    """Replaces the client: brokers 1 to `brokers`, and topics whose partitions they lead in turn."""

    def __init__(self, config: ProducerConfig, topics: Mapping[str, int], brokers: int = 1) -> None:
        self.accumulator = Accumulator(config)
        self.lock: threading.Lock = self.accumulator.lock
        self.cluster: Cluster = self.accumulator.cluster
        self.retries = SimpleNamespace(pause=lambda failures: _PAUSE)
        self.logs = {(name, number): ModelPartition() for name, count in topics.items() for number in range(count)}
        self.leaders = {place: 1 + at % brokers for at, place in enumerate(self.logs)}
        self.requests: deque[ModelRequest] = deque()
        self.arrived = asyncio.Event()
        self.down: set[int] = set()
        self.connects = 0
        self.refreshes = 0
        self.crashes: list[BaseException] = []
        self.sender = Sender(config, self, self.accumulator, lambda task: task, self.crashes.append)  # type: ignore[arg-type]
        self.accumulator.wake = self.sender.wake_from_any_thread
        self.accumulator.queue_lengths = self.sender.queues.lengths
        self.accumulator.pending = self.sender.queues.pending
        self._brokers = {node: Node(node, "broker", node) for node in range(1, brokers + 1)}
        self._connections: dict[int, ModelConnection] = {}
        self.accumulator._wanted |= topics.keys()
        self.publish()

    # -- what the sender calls -------------------------------------------------------------------------------------

    async def connection(self, node: int) -> ModelConnection:
        self.connects += 1
        if node in self.down or node not in self.cluster.brokers:
            raise NetworkError(f"broker {node} is down")
        connection = self._connections.get(node)
        if connection is None or not connection.is_open:
            connection = self._connections[node] = ModelConnection(self, node)
        return connection

    async def call(self, node: int, api: Any, fields: Any, **options: Any) -> Any:
        assert api is INIT_PRODUCER_ID
        body = SimpleNamespace(error_code=ErrorCode.none, producer_id=7, producer_epoch=0)
        return SimpleNamespace(body=body)

    def refresh_soon(self) -> None:
        self.refreshes += 1

    def want_topics(self, topics: Any) -> None: ...

    # -- what the test does ----------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Update the metadata with the current leaders."""
        names = dict.fromkeys(name for name, _ in self.logs)
        with self.lock:
            self.cluster.brokers = {node: each for node, each in self._brokers.items() if node not in self.down}
            for name in names:
                partitions = {
                    number: Partition(Leader(leader, 0), (leader,), (leader,), ())
                    for (topic, number), leader in self.leaders.items()
                    if topic == name
                }
                self.cluster.topics[name] = Topic(name, None, False, partitions)
            self.accumulator.metadata_changed()
        self.sender.metadata_changed()

    def cut(self, node: int) -> None:
        """Lose the connection to a broker with all requests on it."""
        connection = self._connections.get(node)
        if connection is not None:
            connection.is_open = False
        lost = [request for request in self.requests if request.node == node]
        for request in lost:
            self.requests.remove(request)
            request.lose()

    def send(self, value: bytes, topic: str = "t", **place: Any) -> Delivery:
        found = self.accumulator.append(
            topic, value, place.get("key"), None, place.get("timestamp", 1), place.get("partition", 0), 0
        )
        assert isinstance(found, Delivery)
        return found

    async def next_request(self) -> ModelRequest:
        while not self.requests:
            self.arrived.clear()
            async with asyncio.timeout(10):
                await self.arrived.wait()
        return self.requests.popleft()

    async def no_request(self) -> None:
        """Fail if the sender sends a request within 50 ms."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                raise AssertionError((await self.next_request()).batches)

    def handle(self, request: ModelRequest, code: int | None = None) -> None:
        """Append the batches (unless `code` is an error), and respond."""
        answered = self.append(request, code)
        if not request.answer.done():
            request.answer.set_result(Reply(answered, PRODUCE.highest))

    def append(self, request: ModelRequest, code: int | None = None) -> Any:
        """Append the batches and return the response without sending it. As in Kafka, two batches of one partition get
        one result, that of the last batch."""
        found = {}
        for topic, partition, data in request.batches:
            place = topic, partition
            if code is None and self.leaders[place] != request.node:
                found[place] = (int(ErrorCode.not_leader_or_follower), -1)
            else:
                found[place] = self.logs[place].append(topic, partition, data) if code is None else (code, -1)
        return SimpleNamespace(
            responses=[
                SimpleNamespace(name=topic, partition_responses=[_partition_answer(partition, *outcome)])
                for (topic, partition), outcome in found.items()
            ]
        )

    async def serve(self) -> None:
        """Handle every request until cancelled."""
        while True:
            self.handle(await self.next_request())


def _partition_answer(partition: int, code: int, offset: int) -> Any:
    return SimpleNamespace(
        index=partition,
        error_code=code,
        base_offset=offset,
        log_append_time=-1,
        record_errors=(),
        error_message=None,
    )


def in_memory(topics: Mapping[str, int] | None = None, brokers: int = 1, **settings: Any) -> ModelCluster:
    settings = {"linger_ms": 0} | settings
    return ModelCluster(ProducerConfig.parse(bootstrap_servers="b:1", **settings), topics or {"t": 1}, brokers)
