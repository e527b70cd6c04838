"""Handles the broker's response to a batch: done, retried, split, failed. Also expires old batches.

`PartitionBatches` decides, and this module carries it out. Everything belongs to the producer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kio.schema.errors import ErrorCode

from ..._machines.cluster import Leader, node_at
from ..._machines.counted_warnings import CountedWarnings
from ..._machines.produce.idempotence import BatchOutcome, ProducerIdentity, SentBatch
from ..._protocol.codes import NONE, kafka_error
from ..._record_batch import ProducerBatch
from ...config.producer import ProducerConfig
from ...errors import AuthorizationError, HeadraceError, RequestTimeoutError
from ...records import decode
from ...types import TopicPartition
from ..network.client import Client
from .accumulator import Accumulator
from .producer_id import ProducerIdSource
from .queues import PartitionQueue, Queues, Taken
from .transactions import Transactions

log = logging.getLogger(__name__)

# The leader has changed, or the topic was recreated: refresh the metadata.
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


class NoAnswer:
    """Replaces the response that a broker does not send with acks=0."""

    error_code = NONE
    base_offset = log_append_time = -1


class ProduceAnswers:
    def __init__(
        self,
        config: ProducerConfig,
        client: Client[ProducerConfig],
        accumulator: Accumulator,
        queues: Queues,
        identities: ProducerIdSource | Transactions,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._failures = CountedWarnings()
        self._warning: asyncio.TimerHandle | None = None
        self._config = config
        self._client = client
        self._accumulator = accumulator
        self._queues = queues
        self._identities = identities
        self._transactions = identities if isinstance(identities, Transactions) else None

    def unanswered(self, taken: Taken, error: HeadraceError) -> None:
        """There will be no response: the batches may have been appended, or not."""
        for queue, sent in taken:
            queue.batches.unanswered(sent)
            self._retry_later(queue, sent, error)
            self.begin_epoch(queue)
        self._client.refresh_soon()

    def answered(self, queue: PartitionQueue, sent: SentBatch[ProducerBatch], answer: Any, endpoints: Any = ()) -> bool:
        """Handles the response for one batch. Returns whether it is done."""
        batch, code = sent.batch, answer.error_code
        outcome = queue.batches.answered(sent, code)
        if outcome is BatchOutcome.DONE:
            queue.failures, queue.last_error = 0, None
            self._complete(batch, answer.base_offset, answer.log_append_time)
        elif outcome is BatchOutcome.SPLIT:
            self._split(queue, sent)
        else:
            error = _error_of(queue.tp, answer)
            if outcome is BatchOutcome.FAILED:
                self.fail(batch, error, sent.identity)
            else:
                self._retry_later(queue, sent, error)
                if code in _STALE_METADATA:
                    self._follow_leader(queue, answer, endpoints)
        self.begin_epoch(queue)
        if len(queue.batches):
            self._queues.make_ready(queue)
        return outcome is BatchOutcome.DONE

    def _complete(self, batch: ProducerBatch, base_offset: int, log_append_time: int) -> None:
        if batch.is_done:  # it has expired, and its error was reported
            return
        self._accumulator.counts.records_delivered += len(batch)
        self._accumulator.done(batch, batch.size)
        for flag in batch.complete(base_offset, log_append_time):
            flag.set()

    def fail(self, batch: ProducerBatch, error: HeadraceError, identity: ProducerIdentity | None = None) -> None:
        """`identity` is that of the batch if it was sent."""
        if batch.is_done:
            return
        if self._transactions is not None:
            self._transactions.batch_failed(identity, error)
        else:
            self._warn(len(batch), error)
        self._accumulator.fail(batch, error)

    def _warn(self, count: int, error: HeadraceError) -> None:
        """Warns at once, and then once a minute: an outage fails thousands of batches, for as long as it lasts."""
        self._failures.add(count, error)
        self._log_failures()

    def _log_failures(self, *, is_last: bool = False) -> None:
        """Also what has failed since the last warning, if nothing more fails after it."""
        now = self.loop.time()
        if (found := self._failures.due(now, is_last=is_last)) is not None:
            log.warning("%d records were not delivered. Last error: %s", *found)
        if self._warning is not None:
            self._warning.cancel()
            self._warning = None
        if self._failures.next_due is not None:
            self._warning = self.loop.call_at(self._failures.next_due, self._log_failures)

    def close(self) -> None:
        self._log_failures(is_last=True)

    def drop_unsent(self, queue: PartitionQueue, error: HeadraceError) -> None:
        """The transaction is aborted: batches that are not in flight are dropped."""
        for batch, identity in queue.batches.drop_unsent():
            self.fail(batch, error, identity)

    def _retry_later(self, queue: PartitionQueue, sent: SentBatch[ProducerBatch], error: HeadraceError) -> None:
        queue.last_error = error
        queue.failures += 1
        self._accumulator.counts.retries += 1
        transactions = self._transactions
        # In a transaction, a new epoch cannot replace a missing batch: the transaction is aborted.
        is_lost = transactions is not None and (queue.batches.is_broken or transactions.is_aborting)
        if (is_lost or sent.attempts > self._config.retries) and not sent.batch.is_done:
            queue.batches.expire(sent.batch)
            self.fail(sent.batch, error, sent.identity)
        queue.not_before = self.loop.time() + self._client.retries.pause(queue.failures)
        log.debug("%s: sent again after %s", queue.tp, error)
        if len(queue.batches):
            self._queues.make_ready(queue)

    def _follow_leader(self, queue: PartitionQueue, answer: Any, endpoints: Any) -> None:
        """KIP-951: the response may name the new leader. Otherwise the metadata does."""
        hint = getattr(answer, "current_leader", None)
        if hint is not None and hint.leader_id >= 0:
            nodes = [node_at(each.node_id, each.host, each.port, each.rack) for each in endpoints]
            with self._accumulator.lock:
                is_newer = self._client.cluster.hint(queue.tp, Leader(hint.leader_id, hint.leader_epoch), nodes)
            if is_newer:
                queue.not_before = 0.0
        self._client.refresh_soon()

    def begin_epoch(self, queue: PartitionQueue) -> None:
        """If the broker misses a batch of this partition, the remaining ones get new sequence numbers."""
        if queue.batches.needs_epoch and self._identities.is_idempotent:
            identity = self._identities.bump(queue.batches.identity)
            if identity is not None:
                queue.batches.begin_epoch(identity)
                self._queues.make_ready(queue)

    def _split(self, queue: PartitionQueue, sent: SentBatch[ProducerBatch]) -> None:
        """The broker rejects a batch as too large: its parts may fit."""
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
        log.info("%s: a batch of %d records is too large: it is sent in %d parts", queue.tp, len(batch), len(parts))
        queue.batches.split(sent, parts)
        self._accumulator.split(batch, parts)
        for flag in batch.split(parts):
            flag.set()

    def expire(self, now: float) -> float | None:
        """Fails batches older than delivery.timeout.ms. Returns the time at which the next one expires."""
        limit = self._config.delivery_timeout_ms / 1000
        while (batch := self._accumulator.oldest()) is not None:
            if batch.created + limit > now:
                return batch.created + limit
            queue = self._queues.of(batch)
            identity = queue.batches.expire(batch)
            cause = queue.last_error or self._accumulator.silence()
            self.fail(
                batch,
                RequestTimeoutError(
                    f"{queue.tp}: not delivered within delivery.timeout.ms={self._config.delivery_timeout_ms}: {cause}"
                ),
                identity,
            )
            self.begin_epoch(queue)
            self._accumulator.release_waiters()
        return None


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
