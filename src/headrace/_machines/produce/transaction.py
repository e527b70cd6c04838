"""Transactions of one producer (KIP-98, KIP-890): the allowed calls, and the next request.

    state            what happens                                    next
    UNINITIALIZED    nothing                                         init: INITIALIZING
    INITIALIZING     InitProducerId is sent, or waits                response: READY
    READY            no transaction                                  begin: IN_TRANSACTION
    IN_TRANSACTION   partitions and offsets are added                commit: COMMITTING; abort: ABORTING
    COMMITTING       the rest is sent, then EndTxn(commit)           response: READY
    ABORTING         responses are awaited, then EndTxn(abort)       response: READY, or INITIALIZING for a new epoch
    ABORTABLE_ERROR  nothing is sent                                 abort: ABORTING (no identity yet: init, too)
    FATAL_ERROR      nothing is sent                                 close

    call         allowed in
    init         UNINITIALIZED, and in ABORTABLE_ERROR if the first InitProducerId failed
    begin        READY
    check_open   IN_TRANSACTION
    add_offsets  IN_TRANSACTION
    commit       IN_TRANSACTION
    abort        IN_TRANSACTION, ABORTABLE_ERROR
    hand_over    IN_TRANSACTION: UNINITIALIZED follows

Any other call raises: in ABORTABLE_ERROR a TransactionAbortableError, in FATAL_ERROR a TransactionFatalError, else a
StateError. `init`, `commit` and `abort` are pending until `end_call`. If the user's call times out before that, only
the same call is allowed: it joins the pending one and gets its result.

- One request is in flight at a time. `take_request` returns the next one. The order: a new epoch, partitions, offsets,
  EndTxn. A retried request is created again, so it may have more partitions; an EndTxn never changes.
- transaction.version is passed to `begin` and holds for that transaction. With 2, the response to EndTxn has the next
  identity. With 1, the identity stays. InitProducerId raises its epoch after an abort that followed an error, because a
  late batch could otherwise get into the next transaction; and before the first transaction with version 2.
- EndTxn waits until all batches have a response or are given up. It is not sent if the coordinator has no transaction:
  a commit would be an error, and with version 1 an abort as well. So with version 1, a request that adds partitions or
  offsets and got no response is repeated before the abort: its response shows whether there is a transaction. If it is
  rejected, InitProducerId replaces EndTxn: it aborts the transaction, if there is one.
- EndTxn is repeated until there is a response. Only the coordinator knows whether the first one has arrived.
- A fenced producer must not harm its successor. DescribeTransactions precedes InitProducerId with an identity, and
  follows a refusal that may only be too early: `transaction_ownership.py`.
- Errors: `transaction_errors.py`. The first error that aborts the transaction is kept.

Nothing here waits, sends or reads a clock. The owner locks.
"""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from ..._protocol.codes import kafka_error
from ...errors import (
    EncodingError,
    HeadraceError,
    KafkaError,
    ProtocolError,
    StateError,
    TransactionError,
    UnsupportedVersionError,
)
from ...types import GroupMetadata, OffsetAndMetadata, TopicPartition
from .idempotence import ProducerIdentity
from .open_transaction import TransactionDescription
from .transaction_errors import (
    ErrorEffect,
    TransactionApi,
    effect_of,
    effect_of_lost_batch,
    effect_without_answer,
    worst_of,
)
from .transaction_failures import abortable_failure, fatal_failure
from .transaction_offsets import TransactionOffsets
from .transaction_ownership import TransactionOwnership
from .transaction_requests import TransactionRequest, TransactionRequests, VersionRange, versions_of
from .transaction_states import NextStep, PendingCall, TransactionState

_State = TransactionState
_BEGIN = "begin()"
_OPEN = (_State.IN_TRANSACTION, _State.COMMITTING)

_ADVICE = {
    _State.UNINITIALIZED: "transactions are not initialized. Call begin() first",
    _State.READY: "there is no transaction. Call begin() first",
    _State.IN_TRANSACTION: "a transaction is open. Call commit() or abort() first",
}


class TransactionManager:
    """The machine above. Batches are sent with `identity`, in the versions `produce_versions`."""

    def __init__(self, transactional_id: str, timeout_ms: int, *, is_two_phase: bool = False) -> None:
        self.state = TransactionState.UNINITIALIZED
        self.identity: ProducerIdentity | None = None
        self.cause: HeadraceError | None = None
        """The error that led to ABORTABLE_ERROR or FATAL_ERROR."""
        self._transactional_id = transactional_id
        self._requests = TransactionRequests(transactional_id, timeout_ms, is_two_phase=is_two_phase)
        self._ownership = TransactionOwnership(transactional_id)
        self._call: PendingCall | None = None
        self._in_flight: TransactionRequest | None = None
        self._is_fenced = False
        self._needs_epoch = False
        self._was_used_by_v1 = False  # the identity of an earlier transaction
        self._version = 1
        self.has_stray_init = False
        """Whether an InitProducerId got no response. If it still arrives, it fences this producer and aborts its
        transaction: the coordinator cannot tell it from one of a newer producer, and compares no epoch if a transaction
        is open."""
        self._clear()

    def _clear(self) -> None:
        """Resets the state of the transaction."""
        self._is_begun = False  # the coordinator may have a transaction; with version 1: it has one
        self._is_end_sent = False
        self._may_be_committed = False  # an EndTxn(commit) got no response
        self._has_failed = False
        self._new: set[TopicPartition] = set()
        self._added: set[TopicPartition] = set()
        self._offsets = TransactionOffsets()
        self._unsure: dict[TransactionApi, TransactionRequest] = {}  # additions that the coordinator may have received
        self._is_doubtful = False  # such an addition was later refused

    # -- the user ----------------------------------------------------------------------------------------------

    def init(self) -> None:
        if self._joins(PendingCall.INIT):
            return
        is_retry = self.state is _State.ABORTABLE_ERROR and self.identity is None
        if self.state is not _State.UNINITIALIZED and not is_retry:
            self._reject("initialize transactions again", "they are initialized. Call begin()")
        self.state = _State.INITIALIZING
        self.cause = None
        self._call = PendingCall.INIT

    @property
    def is_initialized(self) -> bool:
        """Otherwise `init` must be called before `begin`, or raises what prevents both. It may have timed out, and
        ended later."""
        return self._call is None and self.state in (_State.READY, _State.IN_TRANSACTION)

    @property
    def is_ending(self) -> bool:
        """Whether a `commit` or an `abort` is pending."""
        return self._call in (PendingCall.COMMIT, PendingCall.ABORT)

    def begin(self, transaction_version: int) -> None:
        """`transaction_version` is the cluster's finalized feature level, or 0 if it has none."""
        self._check_no_call(_BEGIN)
        if self.state is not _State.READY:
            self._reject("begin a transaction")
        self._version = 2 if transaction_version >= 2 else 1
        self._needs_epoch = self._version == 2 and self._was_used_by_v1
        self.state = _State.IN_TRANSACTION

    def check_open(self) -> None:
        """Raises unless records and offsets can be added to the transaction."""
        self._check_no_call("send() or send_offsets()")
        if self.state is not _State.IN_TRANSACTION:
            self._reject("add to a transaction")

    def add_offsets(self, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Adds offsets to commit with the transaction. `has_pending_offsets` until the group's coordinator has them."""
        self.check_open()
        if offsets:
            self._offsets.add(group, offsets)

    def commit(self) -> None:
        if self._joins(PendingCall.COMMIT):
            return
        if self.state is not _State.IN_TRANSACTION:
            self._reject("commit")
        self.state = _State.COMMITTING
        self._call = PendingCall.COMMIT

    def abort(self) -> None:
        if self._joins(PendingCall.ABORT):
            return
        if self.state not in (_State.IN_TRANSACTION, _State.ABORTABLE_ERROR):
            self._reject("abort")
        self.state = _State.ABORTING
        self._call = PendingCall.ABORT

    def hand_over(self) -> ProducerIdentity | None:
        """Leaves the transaction open: another process ends it, with the returned identity. None if nothing was sent.
        All batches must have a response. The next call is `init`, which aborts the transaction if it is still open."""
        self.check_open()
        if self._version != 2:
            raise StateError("cannot hand over the transaction: the cluster's transaction.version is below 2")
        identity = self.identity if self._is_begun else None
        self._clear()
        self.identity = None
        self.state = _State.UNINITIALIZED
        return identity

    @property
    def is_call_done(self) -> bool:
        """Whether the pending call can return: `end_call`."""
        return self._call is not None and self.state not in (
            _State.INITIALIZING,
            _State.COMMITTING,
            _State.ABORTING,
        )

    def end_call(self) -> None:
        """Ends the pending call, which returns to the user. Raises its error."""
        assert self.is_call_done
        self._call = None
        if self.cause is not None:
            raise self._error()

    @property
    def has_pending_offsets(self) -> bool:
        return self.state in _OPEN and bool(self._offsets)

    @property
    def needs_abort(self) -> bool:
        """Whether close() should abort, since readers would wait for the transaction's timeout."""
        return self._is_begun and self._call is None and self.state in (_State.IN_TRANSACTION, _State.ABORTABLE_ERROR)

    # -- the sender --------------------------------------------------------------------------------------------

    @property
    def produce_versions(self) -> VersionRange:
        return versions_of(self._version, TransactionApi.PRODUCE)

    def add_partition(self, partition: TopicPartition) -> None:
        """A batch of the partition is about to be sent: see `may_send`."""
        if partition in self._added or not self._is_open:
            return
        if self._version == 2:
            self._added.add(partition)
            self._is_begun = True
        else:
            self._new.add(partition)

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether batches of the partition can be sent now. Outside of IN_TRANSACTION and COMMITTING they cannot: the
        sender drops them when the transaction is aborted."""
        return self._is_open and partition in self._added and not self._awaits_identity

    def batch_failed(self, identity: ProducerIdentity | None, error: HeadraceError) -> None:
        """The sender gives up a batch, for an error of the broker, its delivery timeout, or because the transaction is
        aborted. `identity` is None if it was never sent. Call it while the batch still counts as unanswered."""
        if identity is None:
            is_relevant = self.state in _OPEN
        else:
            is_aborted = self.state in (_State.ABORTABLE_ERROR, _State.ABORTING)
            is_relevant = identity == self.identity and (is_aborted or self.state in _OPEN)
        if not is_relevant:
            return
        effect = effect_of_lost_batch(error)
        assert effect is not ErrorEffect.ABORT or not (self._is_end_sent and self.state is _State.COMMITTING)
        self._fail(effect, error)

    @property
    def _is_open(self) -> bool:
        return self.state in _OPEN and not self._is_end_sent

    # -- requests ----------------------------------------------------------------------------------------------

    def take_request(self, unanswered: int) -> TransactionRequest | None:
        """The request to send now, or None. `unanswered` is the number of the transaction's batches, sent or not,
        without a response that are not given up. Call it after every event; the pending call may be done afterwards.
        """
        if self._in_flight is not None:
            return None
        self._in_flight = self._next_request(unanswered)
        return self._in_flight

    def _next_request(self, unanswered: int) -> TransactionRequest | None:
        if self._ownership.is_doubtful:
            return self._requests.describe()
        if self.state in _OPEN and (request := self._next_addition()) is not None:
            return request
        if self.state is _State.ABORTING and not self._is_begun and self._unsure:
            return next(iter(self._unsure.values()))
        if self.state in (_State.COMMITTING, _State.ABORTING) and not unanswered:
            if self._is_begun and not self._awaits_identity:  # before that, nothing was sent
                assert self.identity is not None
                self._is_end_sent = True
                return self._requests.end(self._version, self.identity, commits=self.state is _State.COMMITTING)
            self._complete()
        if self.state is _State.INITIALIZING:
            return self._next_init()
        return None

    @property
    def _awaits_identity(self) -> bool:
        """Nothing of the transaction can be sent with the current identity."""
        return self._needs_epoch or self._ownership.awaits_id

    def _next_init(self) -> TransactionRequest:
        may_init = self._ownership.take_init(self.identity)
        return self._requests.init(self.identity) if may_init else self._requests.describe()

    def _next_addition(self) -> TransactionRequest | None:
        assert self.identity is not None
        if self._needs_epoch:
            return self._next_init()
        if self._ownership.awaits_id:
            return self._requests.describe() if self._is_begun or self._new or self._offsets else None
        if self._new:
            return self._requests.add_partitions(self.identity, self._new)
        if not self._offsets:
            return None
        group, offsets = self._offsets.first()
        if self._version == 1 and not self._offsets.has_group(group.group_id):
            return self._requests.add_offsets(self.identity, group.group_id)
        self._is_begun = True
        return self._requests.commit_offsets(self._version, self.identity, group, offsets)

    # -- answers -----------------------------------------------------------------------------------------------

    def answered(
        self,
        request: TransactionRequest,
        code: int,
        identity: ProducerIdentity | None = None,
        detail: str | None = None,
    ) -> NextStep:
        """The response to InitProducerId, AddOffsetsToTxn or EndTxn. `identity` is that of the response, if it has one;
        `detail` is the broker's message."""
        if request is not self._in_flight:
            return NextStep.CONTINUE
        self._in_flight = None
        if code != ErrorCode.none:
            return self._answered_with_error(request, code, detail)
        self._unsure.pop(request.api, None)
        if request.api is TransactionApi.ADD_OFFSETS:
            self._is_begun = True
            self._offsets.group_added(request.fields["group_id"])
            return NextStep.CONTINUE
        is_end = request.api is TransactionApi.END
        if not is_end or self._version == 2:
            if identity is None or identity.producer_id < 0:
                error = ProtocolError(f"{request.api.value}: the response has no producer id")
                return self._fail(ErrorEffect.FATAL, error)
            if is_end and self.identity is not None:
                self._ownership.ended(self.identity, identity)
            else:
                self._ownership.renewed()
            self.identity = identity
            self._needs_epoch = self._was_used_by_v1 = False
        if is_end:
            self._complete()
        elif self.state is _State.INITIALIZING:
            self.state = _State.READY
        return NextStep.CONTINUE

    def answered_partitions(self, request: TransactionRequest, codes: Mapping[TopicPartition, int]) -> NextStep:
        """The response to AddPartitionsToTxn or TxnOffsetCommit."""
        if request is not self._in_flight:
            return NextStep.CONTINUE
        self._in_flight = None
        if request.api is TransactionApi.COMMIT_OFFSETS:
            self._offsets.committed(request, {tp for tp, code in codes.items() if code == ErrorCode.none})
        code = worst_of(request.api, codes.values())
        if code != ErrorCode.none:
            names = ", ".join(sorted(str(tp) for tp, each in codes.items() if each == code))
            return self._answered_with_error(request, code, names)
        if not request.partitions <= codes.keys():
            return NextStep.RETRY
        self._unsure.pop(request.api, None)
        if request.api is TransactionApi.ADD_PARTITIONS:
            self._is_begun = True
            self._added |= request.partitions
            self._new -= request.partitions
        return NextStep.CONTINUE

    def answered_description(
        self, request: TransactionRequest, code: int, found: TransactionDescription | None
    ) -> NextStep:
        """The response to DescribeTransactions. `found` is None if the coordinator does not know the id."""
        if request is not self._in_flight:
            return NextStep.CONTINUE
        self._in_flight = None
        effect = effect_of(request.api, code)
        if effect is not ErrorEffect.NONE:
            return self._fail(effect, kafka_error(code, f"{request.api.value} of {self._transactional_id!r}"))
        return self._described(found)

    def _described(self, found: TransactionDescription | None) -> NextStep:
        assert self.identity is not None
        is_repeated = self._ownership.is_doubtful
        error = self._ownership.described(found, self.identity)
        if error is not None:
            return self._fail(ErrorEffect.FENCED, error)
        if self._ownership.awaits_id:
            return NextStep.RETRY_SOON
        return NextStep.RETRY if is_repeated else NextStep.CONTINUE

    def _answered_with_error(self, request: TransactionRequest, code: int, detail: str | None) -> NextStep:
        error = kafka_error(code, f"{request.api.value} of {self._transactional_id!r}", detail)
        effect = effect_of(request.api, code)
        if code == ErrorCode.request_timed_out:
            self._lost(request)
        elif effect is ErrorEffect.ABORT and self._unsure.pop(request.api, None) is not None:
            self._is_doubtful = True
        if self._may_be_too_early(request) and self._ownership.refused(error):
            return NextStep.CONTINUE
        is_first = request.api in (TransactionApi.ADD_PARTITIONS, TransactionApi.ADD_OFFSETS) and not self._is_begun
        if code == ErrorCode.concurrent_transactions and is_first:
            return NextStep.RETRY_SOON
        return self._fail(effect, error)

    def _may_be_too_early(self, request: TransactionRequest) -> bool:
        is_abort = request.api is TransactionApi.END and self.state is _State.ABORTING
        return is_abort and self._version == 2 and not self._may_be_committed

    def failed(self, request: TransactionRequest, error: HeadraceError) -> NextStep:
        """The request got no response, was not sent, or its coordinator was not found (with the KafkaError of
        FindCoordinator)."""
        if request is not self._in_flight:
            return NextStep.CONTINUE
        self._in_flight = None
        if not isinstance(error, (KafkaError, EncodingError, UnsupportedVersionError)):
            self._lost(request)
        if request.api is TransactionApi.DESCRIBE and isinstance(error, UnsupportedVersionError):
            return self._described(None)
        return self._fail(effect_without_answer(request.api, error), error)

    def _lost(self, request: TransactionRequest) -> None:
        """The coordinator may have processed it."""
        if request.api in (TransactionApi.ADD_PARTITIONS, TransactionApi.ADD_OFFSETS):
            self._unsure[request.api] = request
        elif request.api is TransactionApi.COMMIT_OFFSETS:
            self._offsets.is_unsure = True
        elif request.api is TransactionApi.END:
            self._may_be_committed |= request.fields["committed"]
        elif request.api is TransactionApi.INIT_PRODUCER_ID:
            self.has_stray_init = True

    # -- the end, and errors -----------------------------------------------------------------------------------

    def _complete(self) -> None:
        """The transaction has ended, or there was none."""
        if self._version == 1:
            has_strays = self._is_begun and (self._has_failed or self._offsets.is_unsure)
            self._needs_epoch |= self.state is _State.ABORTING and (has_strays or self._is_doubtful)
            self._was_used_by_v1 |= self._is_begun
        self._clear()
        self.cause = None
        if self.identity is None:
            self.state = _State.UNINITIALIZED
        else:
            self.state = _State.INITIALIZING if self._needs_epoch else _State.READY

    def _fail(self, effect: ErrorEffect, error: HeadraceError) -> NextStep:
        if effect is ErrorEffect.RETRY:
            return NextStep.RETRY
        if effect is ErrorEffect.FIND:
            return NextStep.FIND_COORDINATOR
        if effect is ErrorEffect.ABORT and not (self._is_end_sent and self.state is _State.ABORTING):
            self._has_failed = True
            if self.state in (_State.INITIALIZING, *_OPEN):
                self.state = _State.ABORTABLE_ERROR
                self._is_end_sent = False
                self.cause = error
        elif self.state is not _State.FATAL_ERROR:
            self._is_fenced = effect is ErrorEffect.FENCED
            self.state = _State.FATAL_ERROR
            self.cause = error
            self._in_flight = None
        return NextStep.CONTINUE

    def _error(self) -> TransactionError:
        """A new error each time, because an exception collects tracebacks."""
        name, cause = self._transactional_id, self.cause
        if self.state is _State.ABORTABLE_ERROR:
            return abortable_failure(name, cause, can_abort=self.identity is not None)
        return fatal_failure(name, cause, is_fenced=self._is_fenced, may_be_committed=self._may_be_committed)

    def _joins(self, call: PendingCall) -> bool:
        """Whether the same call is pending."""
        if self._call is call:
            return True
        self._check_no_call(call.value)
        return False

    def _check_no_call(self, doing: str) -> None:
        if self.state is _State.FATAL_ERROR:
            raise self._error()
        if self._call is not None:
            name = self._call.value
            raise StateError(f"cannot call {doing}: {name} has not returned yet. Call {name} again until it returns")

    def _reject(self, doing: str, advice: str | None = None) -> None:
        if self.state in (_State.ABORTABLE_ERROR, _State.FATAL_ERROR):
            raise self._error()
        raise StateError(f"cannot {doing}: {advice or _ADVICE[self.state]}")
