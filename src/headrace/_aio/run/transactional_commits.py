"""Exactly once: `run()` with a producer writes the outputs of handlers in transactions, with the consumer's offsets.

`steps` is a generator, because both kinds of consumers use it: it yields the calls of the producer.

- The transaction of a killed predecessor is aborted at once, not with the first transaction: if it has offsets, the
  group's coordinator hides the committed ones until then, so this member would get no records.
- A commit that has timed out may have succeeded: it is repeated before anything else, until its end is known.
- A transaction that fails temporarily (after a rebalance or a broker's failure) is aborted, and its records are part of
  the next one, if their partitions are still assigned then. A zombie's transaction fails: its offsets are committed as
  a member of the group, and the group knows its members.
- An output that cannot be written at all (too large, denied) ends run().
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from ..._machines.run.outputs import Cut
from ...errors import KafkaError, RequestTimeoutError, TransactionAbortableError, TransactionError
from ...types import GroupMetadata, OffsetAndMetadata, ProducerRecord, TopicPartition

log = logging.getLogger(__name__)

_INIT_WITHIN = 1.0  # seconds; meanwhile run() does not poll
# Errors of outputs that are not retriable.
_HOPELESS = {
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.invalid_record,
    ErrorCode.invalid_timestamp,
    ErrorCode.policy_violation,
    ErrorCode.unsupported_compression_type,
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.cluster_authorization_failed,
}


class ProducerCall(NamedTuple):
    """A method of the producer, with its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}


Calls = Generator[ProducerCall, Any, None]


class TransactionalCommits:
    """`cut` returns the content of the next transaction, `committed` is called after its success. Both, and `steps`,
    belong to the thread that polls."""

    def __init__(
        self,
        producer: Any,
        cut: Callable[[], Cut[ProducerRecord]],
        committed: Callable[[Cut[ProducerRecord]], None],
        group: Callable[[], GroupMetadata],
    ) -> None:
        self.producer = producer
        self._cut = cut
        self._committed = committed
        self._group = group
        self.is_initialized = False
        self._unresolved: Cut[ProducerRecord] | None = None  # its commit was called, and has not returned

    @property
    def unresolved_partitions(self) -> set[TopicPartition]:
        """The partitions of a transaction that may have been committed or not."""
        return set() if self._unresolved is None else set(self._unresolved.offsets)

    def initialize(self) -> Calls:
        """Must be repeated until `is_initialized`."""
        try:
            yield ProducerCall("init_transactions", keywords={"timeout": _INIT_WITHIN})
        except RequestTimeoutError as error:
            log.info("run(): %s", error)
        else:
            self.is_initialized = True

    def steps(self) -> Calls:
        """Raises the errors that end run()."""
        if self._unresolved is not None:
            yield from self._end(self._unresolved)
            if self._unresolved is not None:
                return
        group = self._group()  # as the member that the records belong to
        cut = self._cut()
        if not cut.offsets:
            return
        try:
            yield ProducerCall("begin")
        except RequestTimeoutError as error:
            log.warning("run(): no transaction yet: %s", error)
            return
        try:
            for record in cut.outputs:
                yield ProducerCall("send", (record.topic, record.value, record.key), _keywords(record))
            offsets: Mapping[TopicPartition, OffsetAndMetadata] = {
                tp: OffsetAndMetadata(offset) for tp, offset in cut.offsets.items()
            }
            yield ProducerCall("send_offsets", (offsets, group))
        except (RequestTimeoutError, TransactionAbortableError) as error:
            yield from self._abort(error)
            return
        except GeneratorExit:
            raise
        except BaseException as error:
            if not isinstance(error, TransactionError):  # otherwise there is no transaction to abort
                yield from self._call_abort()
            raise
        self._unresolved = cut
        yield from self._end(cut)

    def _end(self, cut: Cut[ProducerRecord]) -> Calls:
        try:
            yield ProducerCall("commit")
        except RequestTimeoutError as error:
            log.warning("run(): the commit of a transaction is repeated: %s", error)
            return
        except TransactionAbortableError as error:
            self._unresolved = None
            yield from self._abort(error)
            return
        self._unresolved = None
        self._committed(cut)

    def _abort(self, error: RequestTimeoutError | TransactionAbortableError) -> Calls:
        """Raises the error if the next transaction would fail for the same reason."""
        yield from self._call_abort()
        cause = error.__cause__ if isinstance(error, TransactionAbortableError) else None
        if isinstance(cause, KafkaError) and cause.code in _HOPELESS:
            raise error
        log.warning("run(): a transaction was aborted, and is repeated: %s", error)

    def _call_abort(self) -> Calls:
        try:
            yield ProducerCall("abort")
        except RequestTimeoutError:
            yield ProducerCall("abort")


def _keywords(record: ProducerRecord) -> dict[str, Any]:
    found = {"headers": record.headers, "timestamp": record.timestamp, "partition": record.partition}
    return {name: value for name, value in found.items() if value is not None}


def outputs_of(result: Any) -> list[ProducerRecord]:
    """The outputs that a handler has returned: None, a record, or several."""
    if result is None:
        return []
    found = [result] if isinstance(result, ProducerRecord) else result
    if isinstance(found, (list, tuple)) and all(isinstance(each, ProducerRecord) for each in found):
        return list(found)
    raise TypeError(
        f"with a producer, the handler returns a ProducerRecord, a list of them, or None, not a {type(result).__name__}"
    )
