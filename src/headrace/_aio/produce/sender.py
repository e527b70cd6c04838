"""Sends batches to the leaders of their partitions, and tells the batches what became of them.

    accumulator -> the queue of a partition -> a request to its leader -> the answer: done, sent again, split, failed

- A request has at most one batch of each partition, and up to max.in.flight.requests.per.connection requests are on
  their way to each broker. `PartitionBatches` decides what may be sent next, so that order survives retries.
- Nothing here waits: `pump` does what can be done now. It is called when there are new batches, when a broker has
  answered or is connected, when the metadata has changed, and by a timer for linger.ms, backoffs and expired batches.

Everything runs on the producer's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from kio.schema.errors import ErrorCode

from ..._machines.cluster import Leader, node_at
from ..._machines.produce.idempotence import BatchOutcome, PartitionBatches, ProducerIdentity, SentBatch
from ..._net.connection import Connection, Reply
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import PRODUCE
from ..._record_batch import ProducerBatch
from ...config.producer import ProducerConfig
from ...errors import AuthorizationError, HeadraceError, ProtocolError, RequestTimeoutError
from ...records import decode
from ...types import TopicPartition
from ..network.client import Client
from .accumulator import Accumulator
from .producer_id import ProducerIdSource

log = logging.getLogger(__name__)

# The leader is another one, or the topic is: metadata helps.
_STALE_METADATA = {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.replica_not_available,
    ErrorCode.network_exception,
    ErrorCode.kafka_storage_error,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.unknown_topic_id,
}
P = ParamSpec("P")
S = TypeVar("S", bound="Sender")


def _guarded(step: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """For what the loop calls: if it raises, the producer fails instead of hanging."""

    @functools.wraps(step)
    def run(self: S, /, *args: P.args, **keywords: P.kwargs) -> None:
        try:
            step(self, *args, **keywords)
        except Exception as error:
            log.exception("the sender crashed")
            self._on_crash(error)

    return run


_SOON = 0.001  # seconds until a connection with unsent bytes is looked at again
_MOST_UNSENT = 2**20  # bytes that wait in a socket's buffer, with acks=0


@dataclasses.dataclass(eq=False, slots=True)
class PartitionQueue:
    tp: TopicPartition
    batches: PartitionBatches[ProducerBatch]
    not_before: float = 0.0
    failures: int = 0
    last_error: HeadraceError | None = None


@dataclasses.dataclass(eq=False, slots=True)
class BrokerQueue:
    """What waits for one broker. `ready` are the partitions that may have a batch to send."""

    node: int
    ready: dict[TopicPartition, PartitionQueue] = dataclasses.field(default_factory=dict)
    # Batches that did not fit into the last request, and are the first of the next one.
    carried: list[tuple[PartitionQueue, SentBatch[ProducerBatch]]] = dataclasses.field(default_factory=list)
    connection: Connection | None = None
    connecting: asyncio.Task[None] | None = None
    in_flight: int = 0


class Sender:
    """`on_crash` is called with what `pump` and its like raise, which is a bug of ours."""

    def __init__(
        self,
        config: ProducerConfig,
        client: Client,
        accumulator: Accumulator,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.requests = 0
        self.retries = 0
        self.records_delivered = 0
        self.bytes_sent = 0
        self._config = config
        self._client = client
        self._accumulator = accumulator
        self._on_crash = on_crash
        self._partitions: dict[TopicPartition, PartitionQueue] = {}
        self._brokers: dict[int, BrokerQueue] = {}
        self._leaderless: dict[TopicPartition, PartitionQueue] = {}
        self._identities = ProducerIdSource(config, client, self._identity_changed, self.fail_all)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._level = _level_of(config)
        self._is_woken = False
        self._is_closed = False

    # -- waking ----------------------------------------------------------------------------------------------------

    def wake_from_any_thread(self) -> None:
        if self._is_woken:
            return
        self._is_woken = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to send any more
            self.loop.call_soon_threadsafe(self._woken)

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

    def queue_lengths(self, topic: str) -> Mapping[int, int]:
        """From any thread: the numbers may be a moment old."""
        return {tp.partition: len(queue.batches) for tp, queue in list(self._partitions.items()) if tp.topic == topic}

    def pending(self, topic: str, partition: int) -> int:
        """How many batches of a partition wait to be sent for the first time. From any thread, as above."""
        queue = self._partitions.get(TopicPartition(topic, partition))
        return 0 if queue is None else queue.batches.pending

    # -- what to send ----------------------------------------------------------------------------------------------

    @_guarded
    def pump(self) -> None:
        if self._is_closed:
            return
        now = self.loop.time()
        closed, due = self._accumulator.take_closed(now)
        for batch in closed:
            queue = self._queue(TopicPartition(batch.topic, batch.partition))
            queue.batches.append(batch)
            self._make_ready(queue)
        if due is not None:
            self._pump_at(due)
        self._client.want_topics(self._accumulator.topics(now))
        self._expire(now)
        for broker in list(self._brokers.values()):
            self._send_to(broker)

    def _queue(self, tp: TopicPartition) -> PartitionQueue:
        queue = self._partitions.get(tp)
        if queue is None:
            batches: PartitionBatches[ProducerBatch] = PartitionBatches(
                self._config.max_in_flight_requests_per_connection
            )
            queue = self._partitions[tp] = PartitionQueue(tp, batches)
        return queue

    def _make_ready(self, queue: PartitionQueue) -> None:
        with self._accumulator.lock:
            leader = self._client.cluster.leader(queue.tp)
        if leader is None:
            self._leaderless[queue.tp] = queue
            self._client.refresh_soon()
            return
        broker = self._brokers.get(leader.node)
        if broker is None:
            broker = self._brokers[leader.node] = BrokerQueue(leader.node)
        broker.ready[queue.tp] = queue

    @_guarded
    def metadata_changed(self) -> None:
        """On the loop, without the lock."""
        waiting = {**self._leaderless}
        self._leaderless.clear()
        for broker in self._brokers.values():
            waiting.update(broker.ready)
            broker.ready.clear()
        for queue in waiting.values():
            self._make_ready(queue)
        self.pump()

    @_guarded
    def _identity_changed(self) -> None:
        for queue in self._partitions.values():
            if queue.batches.needs_epoch and self._identities.current is not None:
                queue.batches.begin_epoch(self._identities.current)
                self._make_ready(queue)
        self.pump()

    # -- sending ---------------------------------------------------------------------------------------------------

    @_guarded
    def _send_to(self, broker: BrokerQueue) -> None:
        if self._is_closed or (not broker.ready and not broker.carried):
            return
        identity = self._identities.current
        if identity is None:
            self._identities.request()
            return
        connection = broker.connection
        if connection is None or not connection.is_open:
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

    def _take(
        self, broker: BrokerQueue, identity: ProducerIdentity
    ) -> list[tuple[PartitionQueue, SentBatch[ProducerBatch]]]:
        """The batches of the next request: one of each partition, and not more than max.request.size."""
        taken, broker.carried = broker.carried, []
        size = sum(_size(sent.batch) for _, sent in taken)
        now = self.loop.time()
        for queue in list(broker.ready.values()):
            if queue.not_before > now:
                self._pump_at(queue.not_before)
                continue
            del broker.ready[queue.tp]
            sent = queue.batches.take_next(identity)
            if sent is None:
                continue
            broker.ready[queue.tp] = queue  # behind the others: there may be more of it for the next request
            self._encode(sent)
            size += _size(sent.batch)
            if taken and size > self._config.max_request_size:
                broker.carried.append((queue, sent))
                break
            taken.append((queue, sent))
        return taken

    def _encode(self, sent: SentBatch[ProducerBatch]) -> None:
        config = self._config
        encoded = sent.batch.finish(config.compression_type, self._level)
        if sent.identity.producer_id >= 0:
            encoded.stamp(sent.identity.producer_id, sent.identity.epoch, sent.sequence)

    def _send(
        self, broker: BrokerQueue, connection: Connection, taken: list[tuple[PartitionQueue, SentBatch[ProducerBatch]]]
    ) -> None:
        topics: dict[str, list[dict[str, Any]]] = {}
        for queue, sent in taken:
            topics.setdefault(queue.tp.topic, []).append({"index": queue.tp.partition, "records": sent.batch.encoded})
            self.bytes_sent += _size(sent.batch)
        with self._accumulator.lock:
            ids = {topic: self._client.cluster.topic_id(topic) for topic in topics}
        fields = {
            "transactional_id": None,
            "acks": self._config.acks,
            "timeout": self._config.request_timeout_ms,
            "topic_data": [
                {"name": topic, "topic_id": ids[topic], "partition_data": partitions}
                for topic, partitions in topics.items()
            ],
        }
        highest = None if all(ids.values()) else _LAST_BY_NAME
        self.requests += 1
        try:
            if self._config.acks == 0:
                connection.send(PRODUCE, fields, highest=highest)
                for queue, sent in taken:
                    self._told(queue, sent, _NoAnswer)
                return
            answer = connection.start(PRODUCE, fields, highest=highest)
        except HeadraceError as error:
            self._unanswered(taken, error)
            return
        broker.in_flight += 1
        answer.add_done_callback(functools.partial(self._answered, broker, taken, {v: k for k, v in ids.items()}))

    # -- connecting ------------------------------------------------------------------------------------------------

    def _connect(self, broker: BrokerQueue) -> None:
        if broker.connecting is None:
            broker.connecting = self.loop.create_task(self._open(broker), name=f"connect to broker {broker.node}")

    async def _open(self, broker: BrokerQueue) -> None:
        try:
            broker.connection = await self._client.connection(broker.node)
        except HeadraceError as error:
            for queue in broker.ready.values():
                queue.last_error = error
            self._client.refresh_soon()
            self._pump_at(self.loop.time() + self._client.retries.pause(1))
        finally:
            broker.connecting = None
        self.loop.call_soon(self._send_to, broker)

    # -- answers ---------------------------------------------------------------------------------------------------

    @_guarded
    def _answered(
        self,
        broker: BrokerQueue,
        taken: list[tuple[PartitionQueue, SentBatch[ProducerBatch]]],
        names: Mapping[Any, str],
        answer: asyncio.Future[Reply],
    ) -> None:
        broker.in_flight -= 1
        error: HeadraceError | None = None
        if answer.cancelled() or self._is_closed:
            return
        failure = answer.exception()
        if failure is not None:
            error = failure if isinstance(failure, HeadraceError) else HeadraceError(repr(failure))
            self._unanswered(taken, error)
        else:
            body = answer.result().body
            found = {
                (getattr(topic, "name", None) or names.get(topic.topic_id), each.index): each
                for topic in body.responses
                for each in topic.partition_responses
            }
            missing = [pair for pair in taken if pair[0].tp not in found]
            for queue, sent in taken:
                if queue.tp in found:
                    self._told(queue, sent, found[queue.tp], getattr(body, "node_endpoints", ()))
            if missing:
                self._unanswered(missing, ProtocolError("the answer to Produce lacks a partition"))
        self._accumulator.release_waiters()
        self.pump()

    def _unanswered(self, taken: list[tuple[PartitionQueue, SentBatch[ProducerBatch]]], error: HeadraceError) -> None:
        for queue, sent in taken:
            queue.batches.unanswered(sent)
            self._retry_later(queue, sent, error)
        self._client.refresh_soon()

    def _told(self, queue: PartitionQueue, sent: SentBatch[ProducerBatch], answer: Any, endpoints: Any = ()) -> None:
        """What a broker says about one batch."""
        batch, code = sent.batch, answer.error_code
        outcome = queue.batches.answered(sent, code)
        if outcome is BatchOutcome.DONE:
            queue.failures = 0
            self._complete(batch, answer.base_offset, answer.log_append_time)
        elif outcome is BatchOutcome.SPLIT:
            self._split(queue, sent)
        else:
            error = _error_of(queue.tp, answer)
            if outcome is BatchOutcome.FAILED:
                self._fail(batch, error)
            else:
                self._retry_later(queue, sent, error)
                if code in _STALE_METADATA:
                    self._follow_leader(queue, answer, endpoints)
        if queue.batches.needs_epoch:
            self._begin_epoch(queue)
        if len(queue.batches):
            self._make_ready(queue)

    def _complete(self, batch: ProducerBatch, base_offset: int, log_append_time: int) -> None:
        if batch.is_done:  # it has expired, and its user was told so
            return
        self.records_delivered += len(batch)
        self._accumulator.done(batch, batch.size)
        for flag in batch.complete(base_offset, log_append_time):
            flag.set()

    def _fail(self, batch: ProducerBatch, error: HeadraceError) -> None:
        if not batch.is_done:
            log.warning("%d records were not delivered: %s", len(batch), error)
            self._accumulator.fail(batch, error)

    def _retry_later(self, queue: PartitionQueue, sent: SentBatch[ProducerBatch], error: HeadraceError) -> None:
        queue.last_error = error
        queue.failures += 1
        self.retries += 1
        if sent.attempts > self._config.retries and not sent.batch.is_done:
            queue.batches.expire(sent.batch)
            self._fail(sent.batch, error)
        queue.not_before = self.loop.time() + self._client.retries.pause(queue.failures)
        log.debug("%s: sent again after %s", queue.tp, error)
        if len(queue.batches):
            self._make_ready(queue)

    def _follow_leader(self, queue: PartitionQueue, answer: Any, endpoints: Any) -> None:
        """KIP-951: the answer names the new leader. Otherwise the metadata does."""
        hint = getattr(answer, "current_leader", None)
        if hint is not None and hint.leader_id >= 0:
            nodes = [node_at(each.node_id, each.host, each.port, each.rack) for each in endpoints]
            with self._accumulator.lock:
                is_newer = self._client.cluster.hint(queue.tp, Leader(hint.leader_id, hint.leader_epoch), nodes)
            if is_newer:
                queue.not_before = 0.0
        self._client.refresh_soon()

    def _begin_epoch(self, queue: PartitionQueue) -> None:
        """The broker misses a batch of this partition: the rest gets new sequence numbers."""
        if not self._identities.is_idempotent:
            return
        identity = self._identities.bump(queue.batches.identity)
        if identity is not None:
            queue.batches.begin_epoch(identity)

    def _split(self, queue: PartitionQueue, sent: SentBatch[ProducerBatch]) -> None:
        """The broker refuses a batch as too large: its halves may fit."""
        batch = sent.batch
        assert batch.encoded is not None
        records = decode(batch.encoded, topic=queue.tp.topic, partition=queue.tp.partition, position=0)
        limit = max(self._config.batch_size, 1) if batch.size > 2 * self._config.batch_size else batch.size // 2
        parts: list[ProducerBatch] = []
        for record in records:
            fields = (record.value, record.key, list(record.headers), record.timestamp)
            if not parts or parts[-1].append(*fields) is None:
                parts.append(
                    ProducerBatch(batch.topic, batch.partition, limit, batch.created, self._accumulator.waiting)
                )
                parts[-1].append(*fields)
        log.info("%s: a batch of %d records is too large, and sent in %d parts", queue.tp, len(batch), len(parts))
        queue.batches.split(sent, parts)
        self._accumulator.split(batch, parts)
        for flag in batch.split(parts):
            flag.set()

    # -- expiry ----------------------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        """Batches older than delivery.timeout.ms have failed. The accumulator has the oldest first."""
        limit = self._config.delivery_timeout_ms / 1000
        while (batch := self._accumulator.oldest()) is not None:
            if batch.created + limit > now:
                self._pump_at(batch.created + limit)
                return
            queue = self._queue(TopicPartition(batch.topic, batch.partition))
            queue.batches.expire(batch)
            cause = f": {queue.last_error}" if queue.last_error is not None else ": no broker has answered"
            self._fail(
                batch,
                RequestTimeoutError(
                    f"{queue.tp}: not delivered within delivery.timeout.ms={self._config.delivery_timeout_ms}{cause}"
                ),
            )
            if queue.batches.needs_epoch:
                self._begin_epoch(queue)

    # -- the end ---------------------------------------------------------------------------------------------------

    def fail_all(self, error: HeadraceError) -> None:
        """No broker accepts anything from this producer. Records that are sent later try again."""
        for queue in self._partitions.values():
            self._leaderless.pop(queue.tp, None)
            for batch in queue.batches.drop_all():
                self._fail(batch, error)
        for broker in self._brokers.values():
            broker.ready.clear()
            broker.carried.clear()
        self._accumulator.release_waiters()

    def close(self) -> None:
        self._is_closed = True
        self._identities.close()
        if self._timer is not None:
            self._timer.cancel()
        for broker in self._brokers.values():
            if broker.connecting is not None:
                broker.connecting.cancel()


def _size(batch: ProducerBatch) -> int:
    return batch.size if batch.encoded is None else len(batch.encoded)


def _level_of(config: ProducerConfig) -> int | None:
    """The level of the codec. None: its default."""
    if config.compression_type == "gzip":
        return None if config.compression_gzip_level < 0 else config.compression_gzip_level
    return config.compression_zstd_level if config.compression_type == "zstd" else None


class _NoAnswer:
    """In place of the answer that a broker does not send with acks=0."""

    error_code = NONE
    base_offset = log_append_time = -1


def _error_of(tp: TopicPartition, answer: Any) -> HeadraceError:
    details = [each.batch_index_error_message or "" for each in answer.record_errors[:3]]
    indexes = ", ".join(str(each.batch_index) for each in answer.record_errors[:10])
    text = "; ".join(dict.fromkeys(filter(None, [answer.error_message, *details])))
    if indexes:
        text = f"{text} (records {indexes} of the batch)" if text else f"records {indexes} of the batch"
    if answer.error_code == ErrorCode.topic_authorization_failed:
        text = "add an ACL that allows this client the operation Write"
    elif answer.error_code == ErrorCode.message_too_large:
        text = "the record exceeds the topic's max.message.bytes"
    error = kafka_error(answer.error_code, f"cannot write to {tp}", text)
    if isinstance(error, AuthorizationError):
        error.topics = frozenset({tp.topic})
    return error


_LAST_BY_NAME = 12  # the last version of Produce that has names of topics, and not ids
