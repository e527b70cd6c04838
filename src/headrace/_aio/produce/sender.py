"""Sends batches to the leaders of their partitions, and handles the responses.

    accumulator -> the queue of a partition -> a request to its leader -> the response: done, retried, split, failed

- A request has at most one batch of each partition, and up to max.in.flight.requests.per.connection requests are in
  flight to each broker. `PartitionBatches` decides what may be sent next, so that retries keep the order.
- Nothing here waits: `pump` does what can be done now. It is called for new batches, responses, new connections and new
  metadata, and by a timer for linger.ms, backoffs and expired batches.

Everything runs on the producer's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from ..._machines.produce.idempotence import ProducerIdentity, SentBatch
from ..._net.calls import Reply
from ..._net.connection import Connection
from ..._protocol.messages import PRODUCE
from ..._record_batch import ProducerBatch
from ...config.producer import ProducerConfig
from ...errors import HeadraceError, ProtocolError
from ..network.client import Client
from .accumulator import Accumulator
from .answers import NoAnswer, ProduceAnswers
from .direct import LAST_BY_NAME, DirectSending
from .guarded import guarded
from .producer_id import ProducerIdSource
from .queues import BrokerQueue, Queues, Taken
from .transactions import Transactions

_SOON = 0.001  # seconds until a connection with unsent bytes is checked again
_TOPICS_AGE = 10.0  # seconds between two searches for topics that are no longer written
_MOST_UNSENT = 2**20  # bytes in a socket's buffer, with acks=0


class Sender:
    """`watch` gets the tasks that must not end by themselves. `on_crash` gets exceptions of `pump` and other callbacks,
    which are bugs."""

    def __init__(
        self,
        config: ProducerConfig,
        client: Client[ProducerConfig],
        accumulator: Accumulator,
        watch: Callable[[asyncio.Task[None]], asyncio.Task[None]],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.queues = Queues(client, config.max_in_flight_requests_per_connection)
        self._config = config
        self._client = client
        self._accumulator = accumulator
        self.on_crash = on_crash
        self.transactions: Transactions | None = None
        self._identities: ProducerIdSource | Transactions
        if config.transactional_id is None:
            self._identities = ProducerIdSource(config, client, self._identity_changed, self.fail_all)
        else:
            self._identities = self.transactions = Transactions(
                config,
                client,
                accumulator,
                watch=watch,
                on_change=self._identity_changed,
                on_abort=self._abort_unsent,
            )
        self.answers = ProduceAnswers(config, client, accumulator, self.queues, self._identities)
        self.direct = DirectSending(
            config, client, accumulator, self.queues, self._identities, self._answered, on_crash
        )
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._topics_checked = -math.inf
        self._is_woken = False
        self._is_closed = False

    # -- waking ----------------------------------------------------------------------------------------------------

    def wake_from_any_thread(self) -> None:
        if self._is_woken:
            return
        try:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is sent any more
                self.loop.call_soon_threadsafe(self._woken)
        except BaseException:  # Ctrl-C: the sender may not have been woken
            self._is_woken = False
            raise

    def _woken(self) -> None:
        self._is_woken = False
        self.pump()

    def _pump_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self.loop.call_at(when, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.pump()

    # -- what to send ----------------------------------------------------------------------------------------------

    @guarded
    def pump(self) -> None:
        if self._is_closed:
            return
        now = self.loop.time()
        self._take_closed(now)
        is_awaited = self._accumulator.has_new_topics
        if is_awaited or now > self._topics_checked + _TOPICS_AGE:
            self._topics_checked = now
            self._client.want_topics(self._accumulator.topics(now))
            if is_awaited:  # perhaps for new partitions of a known topic
                self._client.refresh_soon()
        if (when := self.answers.expire(now)) is not None:
            self._pump_at(when)
        if (when := self._accumulator.release_at) is not None:
            if when <= now:
                self._accumulator.release_waiters()
            else:
                self._pump_at(when)
        self._send_to_all()

    def _send_to_all(self) -> None:
        for broker in list(self.queues.brokers.values()):
            if broker.ready or broker.carried:
                self._send_to(broker)

    def _take_closed(self, now: float) -> None:
        closed, due = self._accumulator.take_closed(now)
        for batch in closed:
            self.direct.settle(self.queues.of(batch))
            self.queues.append(batch)
        if due is not None:
            self._pump_at(due)

    @guarded
    def metadata_changed(self) -> None:
        """On the loop, without the lock."""
        self.direct.settle_all()
        self.queues.follow_leaders()
        self.pump()

    @guarded
    def _identity_changed(self) -> None:
        self.direct.settle_all()
        for queue in self.queues:
            self.answers.begin_epoch(queue)
        self.pump()

    # -- sending ---------------------------------------------------------------------------------------------------

    @guarded
    def _send_to(self, broker: BrokerQueue) -> None:
        counts = self._accumulator.counts
        sent = counts.requests
        self._fill(broker)
        if not broker.ready or counts.requests != sent:
            broker.blocked_since = None
        elif broker.blocked_since is None:
            broker.blocked_since = self.loop.time()

    def _fill(self, broker: BrokerQueue) -> None:
        """Sends as many requests to the broker as it may have in flight."""
        if self._is_closed or (not broker.ready and not broker.carried):
            return
        identity = self._identities.current
        if identity is None:
            self._identities.request()
            return
        connection = broker.connection
        if connection is not None:
            connection.take_back()  # now: threads may have found that the broker has closed it
        if connection is None or not connection.is_open:
            if broker.carried:
                self.queues.put_back_carried(broker)
                self.loop.call_soon(self.pump)
                return
            self._connect(broker)
            return
        while broker.in_flight < self._config.max_in_flight_requests_per_connection:
            if (pause := connection.throttled_for) > 0:
                self._pump_at(self.loop.time() + pause)
                return
            if self._config.acks == 0 and connection.unsent_bytes > _MOST_UNSENT:
                self._pump_at(self.loop.time() + _SOON)
                return
            taken = self._take(broker, identity)
            if not taken:
                return
            self._send(broker, connection, taken)

    def _take(self, broker: BrokerQueue, identity: ProducerIdentity) -> Taken:
        """The batches of the next request: at most one of each partition, and at most max.request.size bytes."""
        taken = [pair for pair in broker.carried if not pair[1].batch.is_done]  # without expired batches
        broker.carried = []
        size = sum(_size(sent.batch) for _, sent in taken)
        now = self.loop.time()
        carried = {queue.tp for queue, _ in taken}
        for queue in list(broker.ready.values()):
            if not len(queue.batches):  # dropped with its transaction: the next transaction may not have this partition
                del broker.ready[queue.tp]
                continue
            if queue.tp in carried:  # its next batch goes into another request
                continue
            if queue.not_before > now:
                self._pump_at(queue.not_before)
                continue
            if self.transactions is not None and not self.transactions.may_send(queue.tp):
                continue
            del broker.ready[queue.tp]
            sent = queue.batches.take_next(identity)
            if sent is None:
                continue
            broker.ready[queue.tp] = queue  # after the others: it may have more batches for the next request
            self._encode(sent)
            size += _size(sent.batch)
            if taken and size > self._config.max_request_size:
                broker.carried.append((queue, sent))
                break
            taken.append((queue, sent))
        return taken

    def _encode(self, sent: SentBatch[ProducerBatch]) -> None:
        config = self._config
        encoded = sent.batch.finish(config.compression_type, config.compression_level)
        if sent.identity.producer_id >= 0:
            is_transactional = self.transactions is not None
            encoded.stamp(
                sent.identity.producer_id, sent.identity.epoch, sent.sequence, is_transactional=is_transactional
            )

    def _send(self, broker: BrokerQueue, connection: Connection, taken: Taken) -> None:
        topics: dict[str, list[dict[str, Any]]] = {}
        for queue, sent in taken:
            topics.setdefault(queue.tp.topic, []).append({"index": queue.tp.partition, "records": sent.batch.encoded})
            self._accumulator.counts.bytes_sent += _size(sent.batch)
        with self._accumulator.lock:
            ids = {topic: self._client.cluster.topic_id(topic) for topic in topics}
        fields = {
            "transactional_id": self._config.transactional_id,
            "acks": self._config.acks,
            "timeout": self._config.request_timeout_ms,
            "topic_data": [
                {"name": topic, "topic_id": ids[topic], "partition_data": partitions}
                for topic, partitions in topics.items()
            ],
        }
        api = PRODUCE
        if self.transactions is not None:
            api = dataclasses.replace(PRODUCE, **self.transactions.machine.produce_versions._asdict())
        highest = None if all(ids.values()) else LAST_BY_NAME
        self._accumulator.counts.requests += 1
        try:
            if self._config.acks == 0:
                connection.send(api, fields, highest=highest)
                for queue, sent in taken:
                    self.answers.answered(queue, sent, NoAnswer)
                return
            names = {topic_id: topic for topic, topic_id in ids.items()}
            connection.start_with(api, fields, functools.partial(self._answered, broker, taken, names), highest=highest)
        except HeadraceError as error:
            self.answers.unanswered(taken, error)
            return
        broker.in_flight += 1

    # -- connecting ------------------------------------------------------------------------------------------------

    def _connect(self, broker: BrokerQueue) -> None:
        if broker.connecting is None:
            broker.connecting = self.loop.create_task(self._open(broker), name=f"connect to broker {broker.node}")

    async def _open(self, broker: BrokerQueue) -> None:
        try:
            broker.connection = await self._client.connection(broker.node)
        except HeadraceError as error:
            if error is self._client.connections.refusal:  # all brokers reject this client, and retries do not help
                self.fail_all(error)
                return
            for queue in broker.ready.values():
                queue.last_error = error
            self._client.refresh_soon()
            self._pump_at(self.loop.time() + self._client.retries.pause(1))
            return
        finally:
            broker.connecting = None
        self.loop.call_soon(self._send_to, broker)

    # -- answers ---------------------------------------------------------------------------------------------------

    @guarded
    def _answered(
        self, broker: BrokerQueue, taken: Taken, names: Mapping[Any, str], answer: Reply | HeadraceError
    ) -> None:
        broker.in_flight -= 1
        if self._is_closed:
            return
        if isinstance(answer, HeadraceError):
            self.answers.unanswered(taken, answer)
            are_done = False
        else:
            are_done = self._tell_batches(taken, names, answer.body)
        self._accumulator.release_waiters()
        if self.transactions is not None:
            self.transactions.wake()
        if are_done:  # the rest of `pump` has nothing to do
            self._send_to_all()
            self.direct.delivered(broker, taken)
        else:
            self.pump()

    def _tell_batches(self, taken: Taken, names: Mapping[Any, str], body: Any) -> bool:
        """Handles the response for each batch. Returns whether all are done."""
        found = {
            (getattr(topic, "name", None) or names.get(topic.topic_id), each.index): each
            for topic in body.responses
            for each in topic.partition_responses
        }
        missing = [pair for pair in taken if pair[0].tp not in found]
        are_done = not missing
        for queue, sent in taken:
            if queue.tp in found:
                endpoints = getattr(body, "node_endpoints", ())
                are_done &= self.answers.answered(queue, sent, found[queue.tp], endpoints)
        if missing:
            self.answers.unanswered(missing, ProtocolError("the response to Produce lacks a partition"))
        return are_done

    # -- the end ---------------------------------------------------------------------------------------------------

    @guarded
    def _abort_unsent(self, error: HeadraceError) -> None:
        """The transaction is aborted, or transactions are no longer possible: drops all unsent batches."""
        self._take_closed(self.loop.time())
        for broker in self.queues.brokers.values():
            carried, broker.carried = broker.carried, []
            for queue, sent in carried:
                queue.batches.unanswered(sent)
        for queue in self.queues:
            self.answers.drop_unsent(queue, error)
        self._accumulator.release_waiters()

    def fail_all(self, error: HeadraceError) -> None:
        """No broker accepts requests of this producer: all batches fail. Later records try again."""
        self.direct.settle_all()
        for batch in self.queues.drop_all():
            self.answers.fail(batch, error)
        for queue in self.queues:
            self.answers.begin_epoch(queue)
        self._accumulator.release_waiters()

    def close(self) -> None:
        self._is_closed = True
        self.direct.close()
        self.answers.close()
        self._identities.close()
        if self._timer is not None:
            self._timer.cancel()
        for broker in self.queues.brokers.values():
            if broker.connecting is not None:
                broker.connecting.cancel()


def _size(batch: ProducerBatch) -> int:
    return batch.size if batch.encoded is None else len(batch.encoded)
