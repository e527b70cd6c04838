"""Records that the caller's thread sends itself (`rust/headrace-py/src/direct.rs`), for programs that send one record,
wait for its delivery, and send the next one.

With linger.ms=0, such a program waits for two changes of threads with each record: to the producer's thread and back.
After a record that was alone, the loop lends the connection and the partition, and the next `send()` writes its request
to the socket. `result()` reads the response.

    the loop's -> lent    `delivered`, when a single record is delivered and nothing else is on its way to that broker
    lent -> the loop's    the connection: for a request of the loop's own (`Connection.take_back`), and when a response
                          is late or unusual. The partition: when a batch of it is opened or the metadata changes

What is lent has one owner at a time, and nothing here decides about errors: a record that is on its way when its
connection is taken back becomes a batch that the sender has sent, with the same sequence number.

Everything runs on the producer's event loop, except for `batches`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..._net.calls import Reply
from ..._net.connection import Connection
from ..._net.lending import Returned, ReturnedCall
from ..._protocol.messages import PRODUCE
from ..._record_batch import DirectConnection, DirectPartition, DirectSender, ProducerBatch
from ...config.producer import ProducerConfig
from ...errors import HeadraceError
from ..network.client import Client
from .accumulator import Accumulator
from .guarded import guarded
from .producer_id import ProducerIdSource
from .queues import BrokerQueue, PartitionQueue, Queues, Taken
from .transactions import Transactions

log = logging.getLogger(__name__)

Answered = Callable[[BrokerQueue, Taken, Mapping[Any, str], Reply | HeadraceError], None]

LAST_BY_NAME = 12  # the last version of Produce that has names of topics, and not ids
# Seconds between two looks at a connection that is lent and used. They matter only for records that nobody waits for,
# and each takes the GIL from the threads that send.
_WATCH = 0.02
_LATE = 0.005  # seconds, after which a thread leaves its response to the loop
# Threads that take turns are faster with the loop, since each would end the loan of the other. A loan that ends by that
# doubles the number of single records it takes until the next one, up to this; one that was of use resets it.
_MOST_ALONE = 64
_OF_USE = 50  # records that were sent directly
_TOUCH = 1.0  # seconds between two notes that a topic is in use


class LentConnection:
    """A `Borrower` of the connection to one broker."""

    def __init__(
        self, sending: DirectSending, sender: DirectSender, broker: BrokerQueue, connection: Connection
    ) -> None:
        descriptor = connection.descriptor_to_lend
        assert descriptor is not None
        self.broker = broker
        self.connection = connection
        self.socket = DirectConnection(sender, descriptor)
        self._sending = sending
        self._sender = sender
        self._sent_before = 0

    @property
    def is_in_flight(self) -> bool:
        return self.socket.batch is not None

    def lend(self, last_id: int) -> None:
        self._sent_before = self._sender.requests
        self.broker.alone = 0
        self.socket.lend(last_id)

    def take_back(self, now: float) -> Returned:
        self.socket.stop()
        if (batch := self.socket.batch) is not None:
            self._sending.take_over(batch)  # first: a flush finds it either here or there
        last_id, in_flight, received, is_broken = self.socket.take_back(now)
        self.set_flags()
        call = None
        if in_flight is not None:
            batch, correlation_id, version, sequence, age, unsent = in_flight
            on_answer = self._sending.adopt(self.broker, batch, sequence)
            call = ReturnedCall(correlation_id, PRODUCE, version, on_answer, age, unsent)
            if age < _LATE and not received and not is_broken:  # others do not wait for their turn
                self.broker.alone_before_loan = min(2 * self.broker.alone_before_loan, _MOST_ALONE)
        if self._sender.requests - self._sent_before > _OF_USE:
            self.broker.alone_before_loan = 1
        return Returned(last_id, call, received, is_broken)

    def set_flags(self) -> None:
        for flag in self.socket.take_waiters():
            flag.set()

    def close(self) -> None:
        self.socket.close()


@dataclasses.dataclass(eq=False, slots=True)
class LentPartition:
    """`names` has the topic by its id, as in the requests of the sender."""

    partition: DirectPartition
    connection: LentConnection
    names: Mapping[Any, str]


class DirectSending:
    """`answered` is called with the answers to records that were on their way when their connection was taken back."""

    def __init__(
        self,
        config: ProducerConfig,
        client: Client[ProducerConfig],
        accumulator: Accumulator,
        queues: Queues,
        identities: ProducerIdSource | Transactions,
        answered: Answered,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._client = client
        self._accumulator = accumulator
        self._queues = queues
        self._identities = identities
        self.on_crash = on_crash
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        # Without an answer there is nothing to wait for. In a transaction, the end of it is what takes time.
        has_use = config.linger_ms == 0 and config.acks != 0 and config.transactional_id is None
        self._is_off = not has_use or accumulator.watch is not None  # those who watch do not see these batches
        self.sender: DirectSender | None = None
        self._lent: dict[int, LentConnection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._touched = 0.0

    # -- lending -------------------------------------------------------------------------------------------------------

    def delivered(self, broker: BrokerQueue, taken: Taken) -> None:
        """If it was a single record, and all that the broker had to do, the next record is sent directly."""
        if self._is_off:
            return
        is_alone = len(taken) == 1 and len(taken[0][1].batch) == 1 and not broker.in_flight
        broker.alone = broker.alone + 1 if is_alone else 0
        if is_alone and broker.alone >= broker.alone_before_loan:
            self._loop.call_soon(self._offer, broker, taken[0][0])  # when the connection has processed the answer

    @guarded
    def _offer(self, broker: BrokerQueue, queue: PartitionQueue) -> None:
        connection, identity = broker.connection, self._identities.current
        if (
            self._is_off
            or broker.in_flight
            or broker.ready
            or broker.carried
            or identity is None
            or queue.lent is not None
        ):
            return
        if connection is None or connection.descriptor_to_lend is None:
            return
        with self._accumulator.lock:
            leader, topic_id = self._client.cluster.leader(queue.tp), self._client.cluster.topic_id(queue.tp.topic)
        if leader is None or leader.node != broker.node:
            return
        try:
            lent = self._connection(broker, connection)
        except OSError as error:  # no more file descriptors: the loop keeps the connection
            log.debug("cannot lend the connection to broker %d: %s", broker.node, error)
            return
        if (sequence := queue.batches.lend(identity)) is None:
            return
        version = connection.versions.pick(PRODUCE, None if topic_id else LAST_BY_NAME)
        partition = DirectPartition(
            self._sender(),
            lent.socket,
            queue.tp.topic,
            queue.tp.partition,
            version=version,
            topic_id=topic_id.bytes if topic_id and version > LAST_BY_NAME else None,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            next_sequence=sequence,
        )
        queue.lent = LentPartition(partition, lent, {topic_id: queue.tp.topic})
        if self._accumulator.lend(queue.tp, partition):
            connection.lend(lent)
            self._watch()
        else:
            self.settle(queue)

    def _sender(self) -> DirectSender:
        if self.sender is None:
            config = self._config
            sender = DirectSender(
                config.client_id,
                config.acks,
                config.request_timeout_ms,
                config.compression_type,
                config.compression_level,
                config.batch_size,
                self._accumulator.memory,
                self._accumulator.waiting,
            )
            self._loop.add_reader(sender.fileno(), self._woken)
            self.sender = sender
            self._accumulator.counts.begin_direct(sender)
        return self.sender

    def _connection(self, broker: BrokerQueue, connection: Connection) -> LentConnection:
        lent = self._lent.get(broker.node)
        if lent is None or lent.connection is not connection:
            lent = self._lent[broker.node] = LentConnection(self, self._sender(), broker, connection)
        return lent

    def batches(self) -> list[ProducerBatch]:
        """Those on their way. From any thread."""
        return [batch for lent in list(self._lent.values()) if (batch := lent.socket.batch) is not None]

    # -- watching ------------------------------------------------------------------------------------------------------

    @guarded
    def _woken(self) -> None:
        if self.sender is not None:
            self.sender.clear()
        self._look()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_WATCH, self._tick)

    @guarded
    def _tick(self) -> None:
        self._timer = None
        self._look()

    def _look(self) -> None:
        now = self._loop.time()
        for lent in list(self._lent.values()):
            lent.set_flags()
            state = lent.socket.check()
            if state == "take back":
                lent.connection.take_back()
            elif state == "watch":
                lent.connection.last_used = now
                self._watch()
                if now > self._touched + _TOUCH:
                    self._touched = now
                    self._accumulator.touch(queue.tp.topic for queue in self._queues if queue.lent is not None)

    # -- taking back ---------------------------------------------------------------------------------------------------

    def settle(self, queue: PartitionQueue) -> None:
        """The partition's batches are sent by the loop again."""
        if queue.lent is None:
            return
        queue.lent.partition.end()
        if queue.lent.partition.is_in_flight:
            queue.lent.connection.connection.take_back()
        if queue.lent is not None:
            self._settle(queue, queue.lent.partition.next_sequence)

    def settle_all(self) -> None:
        for queue in self._queues:
            self.settle(queue)

    def _settle(self, queue: PartitionQueue, sequence: int) -> None:
        assert queue.lent is not None
        queue.batches.take_back(sequence, is_known=queue.lent.partition.has_delivered)
        queue.lent = None

    def take_over(self, batch: ProducerBatch) -> None:
        self._accumulator.take_over(batch)

    def adopt(
        self, broker: BrokerQueue, batch: ProducerBatch, sequence: int
    ) -> Callable[[Reply | HeadraceError], None]:
        """The batch is on its way, and its connection is the loop's again. Returns what takes its answer."""
        queue = self._queues.of(batch)
        assert queue.lent is not None
        names = queue.lent.names
        self._settle(queue, sequence)
        sent = queue.batches.adopt(batch)
        broker.in_flight += 1
        return functools.partial(self._answered, broker, [(queue, sent)], names)

    def close(self) -> None:
        self._is_off = True
        if self._timer is not None:
            self._timer.cancel()
        if self.sender is not None:
            self._loop.remove_reader(self.sender.fileno())
        for lent in self._lent.values():
            lent.connection.take_back()
        # Those below have sockets, which are closed now and not when a garbage collection finds them.
        self.settle_all()
        self._lent.clear()
        self._accumulator.counts.end_direct()
        self.sender = None
