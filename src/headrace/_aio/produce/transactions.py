"""Transactions: sends the requests of `TransactionManager`, and lets the user's calls wait for their end.

The machine belongs to the producer's event loop. The user's calls are coroutines there. One task sends one request at a
time; `wake` makes it check again, after a call, a response to a batch, and every other event that may matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..._machines.produce.idempotence import ProducerIdentity
from ..._machines.produce.open_transaction import OpenTransaction
from ..._machines.produce.transaction import TransactionManager
from ..._machines.produce.transaction_errors import TransactionApi
from ..._machines.produce.transaction_requests import TransactionRequest
from ..._machines.produce.transaction_states import SHORT_BACKOFF, NextStep, TransactionState
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from ...config.producer import ProducerConfig
from ...errors import HeadraceError, RequestTimeoutError, StateError
from ...types import GroupMetadata, OffsetAndMetadata, TopicPartition
from ..group.coordinator import Coordinator, CoordinatorKind
from ..network.client import Client
from .accumulator import Accumulator
from .transaction_descriptions import description_of

log = logging.getLogger(__name__)

_APIS = {
    TransactionApi.INIT_PRODUCER_ID: INIT_PRODUCER_ID,
    TransactionApi.ADD_PARTITIONS: ADD_PARTITIONS_TO_TXN,
    TransactionApi.ADD_OFFSETS: ADD_OFFSETS_TO_TXN,
    TransactionApi.COMMIT_OFFSETS: TXN_OFFSET_COMMIT,
    TransactionApi.END: END_TXN,
    TransactionApi.DESCRIBE: DESCRIBE_TRANSACTIONS,
}
_FEATURE = "transaction.version"


@dataclasses.dataclass(slots=True)
class _CallResult:
    """The user's pending call, or the next one."""

    is_over: bool = False
    error: HeadraceError | None = None


class Transactions:
    """`on_change` is called when more batches may be sent, `on_abort` when unsent batches must be dropped, with the
    reason."""

    def __init__(
        self,
        config: ProducerConfig,
        client: Client[ProducerConfig],
        accumulator: Accumulator,
        *,
        watch: Callable[[asyncio.Task[None]], asyncio.Task[None]],
        on_change: Callable[[], None],
        on_abort: Callable[[HeadraceError], None],
    ) -> None:
        assert config.transactional_id is not None
        self.machine = TransactionManager(
            config.transactional_id,
            config.transaction_timeout_ms,
            is_two_phase=config.transaction_two_phase_commit_enable,
        )
        self.transactional_id = config.transactional_id
        self._client = client
        self._accumulator = accumulator
        self._coordinator = Coordinator(client, config.transactional_id, CoordinatorKind.TRANSACTION)
        self._groups: dict[str, Coordinator] = {}
        self._on_change = on_change
        self._on_abort = on_abort
        self._signal = asyncio.Event()
        self._changed = asyncio.Condition()
        self._failures = 0
        self._last_error: HeadraceError | None = None  # of the request that is repeated
        self._call = _CallResult()
        self._task = watch(asyncio.get_running_loop().create_task(self._run(), name="transactions"))
        accumulator.refuse(self._refusal)

    # -- the user's calls ------------------------------------------------------------------------------------------

    async def init_transactions(self, timeout: float) -> None:
        await self._init(_deadline(timeout), "init_transactions()")

    async def _init(self, deadline: float, name: str) -> None:
        if not self.machine.is_initialized:
            self.machine.init()
            await self._wait_for_call(deadline, name)

    async def begin(self, timeout: float) -> None:
        """Begins a transaction. The first call also initializes the producer's transactions."""
        deadline = _deadline(timeout)
        machine = self.machine
        await self._init(deadline, "begin()")
        features = await self._client.retries.run("begin()", deadline, self._coordinator.features)
        machine.begin(features.get(_FEATURE, 0))
        self._accumulator.accept()

    async def commit(self, timeout: float) -> None:
        self.machine.commit()
        self._accumulator.refuse(self._refusal)  # which also closes the open batches, so that they are sent
        await self._wait_for_call(_deadline(timeout), "commit()")

    async def abort(self, timeout: float) -> None:
        self.machine.abort()
        self._accumulator.refuse(self._refusal)
        self._on_abort(StateError("the transaction of this record was aborted"))
        await self._wait_for_call(_deadline(timeout), "abort()")

    async def settle(self, timeout: float) -> None:
        """Waits for the end of a commit() or abort() that has timed out. TransactionAbortableError: abort() comes
        next."""
        if self.machine.is_ending:
            await self._wait_for_call(_deadline(timeout), "the transaction before")

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata, timeout: float
    ) -> None:
        machine = self.machine
        machine.add_offsets(group, offsets)
        await self._wait_until(lambda: not machine.has_pending_offsets, _deadline(timeout), "send_offsets()")
        machine.check_open()

    async def hand_over(self) -> OpenTransaction | None:
        """Leaves the transaction open, so that another process can end it. None if nothing was sent. All records must
        be delivered.
        """
        if self._accumulator.count_incomplete():
            raise StateError("cannot hand over the transaction before its records are delivered. Call flush()")
        identity = self.machine.hand_over()
        self._accumulator.refuse(self._refusal)
        return None if identity is None else OpenTransaction(self.transactional_id, *identity)

    def _refusal(self) -> HeadraceError:
        """The error for records that are sent now."""
        try:
            self.machine.check_open()
        except HeadraceError as error:
            return error
        return StateError("the transaction is being ended")

    async def _wait_for_call(self, deadline: float, name: str) -> None:
        """Several threads or tasks may wait for the same call: each of them gets its result."""
        call = self._call
        await self._wait_until(lambda: call.is_over or self.machine.is_call_done, deadline, name)
        if not call.is_over:
            self._call, call.is_over = _CallResult(), True
            try:
                self.machine.end_call()
            except HeadraceError as error:
                call.error = error
        if call.error is not None:
            raise call.error.with_traceback(None)

    async def _wait_until(self, is_true: Callable[[], bool], deadline: float, name: str) -> None:
        self.wake()
        try:
            async with asyncio.timeout_at(deadline), self._changed:
                await self._changed.wait_for(is_true)
        except TimeoutError:
            cause = self._client.connections.obstacle() or self._last_error
            raise RequestTimeoutError(
                f"{name} has not ended in time: call it again. It may still succeed"
                + (f". Last error: {cause}" if cause else "")
            ) from cause

    # -- the sender, as `ProducerIdSource` ---------------------------------------------------------------------------

    is_idempotent = True

    @property
    def current(self) -> ProducerIdentity | None:
        return self.machine.identity

    def request(self) -> None:
        """Does nothing: `begin` requests an identity, and no records are accepted before it."""

    def bump(self, used: ProducerIdentity | None) -> ProducerIdentity | None:
        """A partition with a missing batch must wait for the next identity, after the abort."""
        return None if self.machine.identity == used else self.machine.identity

    @property
    def is_aborting(self) -> bool:
        return self.machine.state in (TransactionState.ABORTING, TransactionState.FATAL_ERROR)

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether batches of the partition can be sent now. If not, they may later."""
        machine = self.machine
        if not machine.may_send(partition):
            machine.add_partition(partition)
            if not machine.may_send(partition):
                self.wake()
                return False
        return True

    def batch_failed(self, identity: ProducerIdentity | None, error: HeadraceError) -> None:
        """A batch of the transaction has failed."""
        self.machine.batch_failed(identity, error)
        self._after_error()
        self.wake()

    def wake(self) -> None:
        self._signal.set()

    # -- requests --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        machine = self.machine
        while True:
            identity = machine.identity
            request = machine.take_request(self._accumulator.count_incomplete())
            async with self._changed:
                self._changed.notify_all()
            if machine.identity != identity:
                self._on_change()
            if request is None:
                await self._signal.wait()
                self._signal.clear()
                continue
            step = await self._perform(request)
            self._after_error()
            if step is NextStep.CONTINUE:
                self._failures, self._last_error = 0, None
                self._on_change()
                continue
            if step is NextStep.RETRY_SOON:
                await asyncio.sleep(SHORT_BACKOFF)
                continue
            if step is NextStep.FIND_COORDINATOR:
                self._coordinator_of(request).forget()
            self._failures += 1
            await asyncio.sleep(self._client.retries.pause(self._failures))

    def _after_error(self) -> None:
        machine = self.machine
        if machine.state in (TransactionState.ABORTABLE_ERROR, TransactionState.FATAL_ERROR):
            self._accumulator.refuse(self._refusal)
            if machine.state is TransactionState.FATAL_ERROR:
                self._on_abort(self._refusal())

    def _coordinator_of(self, request: TransactionRequest) -> Coordinator:
        if request.group is None:
            return self._coordinator
        found = self._groups.get(request.group)
        if found is None:
            found = self._groups[request.group] = Coordinator(self._client, request.group)
        return found

    async def _perform(self, request: TransactionRequest) -> NextStep:
        machine = self.machine
        try:
            api = dataclasses.replace(_APIS[request.api], **request.versions._asdict())
            body = await self._coordinator_of(request).call(api, request.fields)
            if request.api is TransactionApi.DESCRIBE:
                return machine.answered_description(request, *description_of(body, request.api.value))
        except HeadraceError as error:
            log.debug("%s failed: %s", request.api.value, error)
            self._last_error = error
            return machine.failed(request, error)
        if request.api is TransactionApi.ADD_PARTITIONS:
            return machine.answered_partitions(request, _codes(body.results_by_topic_v3_and_below))
        if request.api is TransactionApi.COMMIT_OFFSETS:
            return machine.answered_partitions(
                request,
                {
                    TopicPartition(topic.name, each.partition_index): each.error_code
                    for topic in body.topics
                    for each in topic.partitions
                },
            )
        if body.error_code != NONE:
            self._last_error = kafka_error(body.error_code, f"{request.api.value} of {self.transactional_id!r}")
        producer_id = getattr(body, "producer_id", None)
        identity = None if producer_id is None else ProducerIdentity(producer_id, body.producer_epoch)
        return machine.answered(request, body.error_code, identity)

    # -- the end ---------------------------------------------------------------------------------------------------

    async def abort_open(self, timeout: float) -> None:
        """Aborts an open transaction, since readers would wait for its timeout."""
        if self.machine.needs_abort:
            with contextlib.suppress(HeadraceError):
                await self.abort(timeout)

    def close(self) -> None:
        self._task.cancel()


def _codes(topics: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, each.partition_index): each.partition_error_code
        for topic in topics
        for each in topic.results_by_partition
    }


def _deadline(timeout: float) -> float:
    return asyncio.get_running_loop().time() + timeout
