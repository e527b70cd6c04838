"""Exactly once: `run()` with a producer writes the outputs of handlers in transactions, with the consumer's offsets.

`steps` is a generator, because both kinds of consumers use it: it yields the calls of the producer.

- The transaction of a killed predecessor is aborted at once, not with the first transaction: if it has offsets, the
  group's coordinator hides the committed ones until then, so this member would get no records.
- run() polls between attempts, so that an absent coordinator does not cost it its membership: all calls of one attempt
  have a second together. A call that has timed out is repeated before anything else, until its end is known: a commit
  may have succeeded. Meanwhile (`is_stalled`), run() takes no more records: their outputs would pile up.
- A transaction that fails temporarily (after a rebalance or a broker's failure) is aborted, and its records are part of
  the next one, if their partitions are still assigned then. A zombie's transaction fails: its offsets are committed as
  a member of the group, and the group knows its members.
- An output waits for its topic, or for memory, within the time of the attempt. The next one continues with it: some
  outputs only fit into memory one after the other, as brokers acknowledge them.
- An output that cannot be written at all (too large, denied) ends run().
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from ..._machines.run.outputs import Cut
from ...errors import (
    HeadraceError,
    KafkaError,
    RequestTimeoutError,
    StateError,
    TransactionAbortableError,
    TransactionError,
)
from ...types import GroupMetadata, OffsetAndMetadata, ProducerRecord, TopicPartition

log = logging.getLogger(__name__)

_ATTEMPT = 1.0  # seconds; meanwhile run() does not poll
_WARN_AFTER = 5.0
_WARN_EVERY = 10.0
_LAST_ABORT = 1.0  # seconds, when run() ends
_LAST_ATTEMPTS = 3  # of a transaction that is aborted while run() ends
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


class _Open(NamedTuple):
    """A transaction whose records are sent, and whose offsets may not be."""

    cut: Cut[ProducerRecord]
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group: GroupMetadata
    """As the member that the records belong to."""


@dataclasses.dataclass
class _Sending:
    """A transaction whose outputs are being sent."""

    cut: Cut[ProducerRecord]
    group: GroupMetadata
    sent: int = 0
    """The number of outputs that are sent."""


class TransactionalCommits:
    """`cut` returns the content of the next transaction, `committed` is called after its success. Both, and the
    generators, belong to the thread that polls."""

    def __init__(
        self,
        producer: Any,
        cut: Callable[[], Cut[ProducerRecord]],
        committed: Callable[[Cut[ProducerRecord]], None],
        group: Callable[[], GroupMetadata],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.producer = producer
        self._cut = cut
        self._committed = committed
        self._group = group
        self._clock = clock
        self.is_initialized = False
        self._is_behind = False  # the last attempt has left something to do
        self._is_begun = False
        self._sending: _Sending | None = None
        self._open: _Open | None = None
        self._unresolved: Cut[ProducerRecord] | None = None  # its commit was called, and has not returned
        self._is_aborting = False  # abort() was called, and has not returned
        self._since: float | None = None  # when the first of the attempts that have failed since began
        self._warn_at = 0.0

    @property
    def is_stalled(self) -> bool:
        """Whether something has to be repeated before outputs of more records can be written."""
        return self._is_behind or not self.is_initialized

    @property
    def unresolved_partitions(self) -> set[TopicPartition]:
        """The partitions of a transaction that may have been committed or not."""
        return set() if self._unresolved is None else set(self._unresolved.offsets)

    # -- transactions ----------------------------------------------------------------------------------------------

    def steps(self, timeout: float | None = None, *, is_last: bool = False) -> Calls:
        """Raises the errors that end run(). `is_last`: there is no other attempt, so it raises what has failed."""
        if is_last and not self.is_initialized and not self._is_aborting and not self._cut().offsets:
            return
        until = self._clock() + (_ATTEMPT if timeout is None else timeout)
        self._is_behind = True
        before = self._count()
        failure: HeadraceError | None = None
        try:
            for _ in range(_LAST_ATTEMPTS if is_last else 1):
                failure = yield from self._transact(until)
                if failure is None:
                    self._is_behind = False
                    self._succeeded()
                    return
        except RequestTimeoutError as error:
            failure = error
        assert failure is not None
        if self._count() > before:  # outputs that exceed buffer.memory
            self._since = None
        if is_last:
            yield from self._give_up()
            raise failure
        self._failed(failure)

    def _transact(self, until: float) -> Generator[ProducerCall, Any, HeadraceError | None]:
        """Returns why the transaction was aborted, or None if everything is committed."""
        yield from self._finish_abort(until)
        if not self.is_initialized:
            yield from self._initialize(until)
        if self._is_begun and not (self._sending or self._open or self._unresolved):  # interrupted between two calls
            yield from self._abort_if_begun(until)
        try:
            if self._unresolved is not None:
                yield from self._commit(self._unresolved, until)
            if self._open is None:
                yield from self._send(until)
            if self._open is not None:
                yield from self._send_offsets(self._open, until)
                yield from self._commit(self._open.cut, until)
        except TransactionAbortableError as error:
            if not self._is_begun:
                raise
            yield from self._abort(error, until)
            return error
        except (RequestTimeoutError, GeneratorExit, TransactionError):  # after the last one, nothing is left to abort
            raise
        except BaseException:
            if self._is_begun and self._unresolved is None:  # else the commit is repeated
                with contextlib.suppress(RequestTimeoutError):  # it is repeated later
                    yield from self._abort_if_begun(until)
            raise
        return None

    def _initialize(self, until: float) -> Calls:
        """Also ends what an earlier run() with this producer has left."""
        try:
            yield ProducerCall("_settle", keywords=self._within(until))
        except TransactionAbortableError as error:
            log.warning("run(): the transaction of an earlier run() is aborted: %s", error)
            yield from self._start_abort(until)
        yield ProducerCall("init_transactions", keywords=self._within(until))
        self.is_initialized = True

    def _send(self, until: float) -> Calls:
        sending, self._sending = self._sending, None  # an interrupted one is aborted
        if sending is None:
            group = self._group()
            cut = self._cut()
            if not cut.offsets:
                return
            yield from self._begin(until)
            sending = _Sending(cut, group)
        try:
            while sending.sent < len(sending.cut.outputs):
                output = sending.cut.outputs[sending.sent]
                yield ProducerCall("_send_within", (output,), self._within(until))
                sending.sent += 1
        except RequestTimeoutError:  # it was not sent
            self._sending = sending
            raise
        offsets = {tp: OffsetAndMetadata(offset) for tp, offset in sending.cut.offsets.items()}
        self._open = _Open(sending.cut, offsets, sending.group)

    def _begin(self, until: float) -> Calls:
        self._is_begun = True  # it may be, if the call is interrupted
        try:
            yield ProducerCall("begin", keywords=self._within(until))
        except HeadraceError:
            self._is_begun = False
            raise

    def _count(self) -> int:
        return 0 if self._sending is None else self._sending.sent

    def _send_offsets(self, transaction: _Open, until: float) -> Calls:
        """It can be repeated: the same offsets are added to the same transaction."""
        yield ProducerCall("send_offsets", (transaction.offsets, transaction.group), self._within(until))

    def _commit(self, cut: Cut[ProducerRecord], until: float) -> Calls:
        self._open, self._unresolved = None, cut
        yield ProducerCall("commit", keywords=self._within(until))
        self._unresolved = None
        self._is_begun = False
        self._committed(cut)

    # -- failures --------------------------------------------------------------------------------------------------

    def _abort(self, error: TransactionAbortableError, until: float) -> Calls:
        """Raises the error if the next transaction would fail for the same reason."""
        self._unresolved = None
        cause = error.__cause__
        is_hopeless = isinstance(cause, KafkaError) and cause.code in _HOPELESS
        try:
            yield from self._start_abort(until)
        except RequestTimeoutError:
            if is_hopeless:
                raise error from cause
            raise
        if is_hopeless:
            raise error
        log.warning("run(): a transaction was aborted, and is repeated: %s", error)

    def _start_abort(self, until: float) -> Calls:
        self._sending, self._open, self._is_begun, self._is_aborting = None, None, False, True
        yield from self._finish_abort(until)

    def _abort_if_begun(self, until: float) -> Calls:
        """After an interrupt: begin() may not have got far."""
        try:
            yield from self._start_abort(until)
        except StateError:
            self._is_aborting = False

    def _finish_abort(self, until: float) -> Calls:
        if self._is_aborting:
            yield ProducerCall("abort", keywords=self._within(until))
            self._is_aborting = False

    def _give_up(self) -> Calls:
        """The transaction must not stay open: readers would wait for its timeout."""
        if self._sending is not None or self._open is not None:
            try:
                yield from self._start_abort(self._clock() + _LAST_ABORT)
            except RequestTimeoutError as error:
                log.warning("run(): the abort of a transaction continues in the background: %s", error)

    def _failed(self, error: HeadraceError) -> None:
        now = self._clock()
        if self._since is None:
            self._since, self._warn_at = now, now + _WARN_AFTER
            log.info("run(): %s", error)
        elif now >= self._warn_at:
            self._warn_at = now + _WARN_EVERY
            log.warning("run() could not write its outputs for %.0f s, and retries: %s", now - self._since, error)

    def _succeeded(self) -> None:
        if self._since is not None and self._clock() >= self._since + _WARN_AFTER:
            log.info("run() writes its outputs again, after %.0f s", self._clock() - self._since)
        self._since = None

    def _within(self, until: float) -> dict[str, float]:
        return {"timeout": max(0.0, until - self._clock())}


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
