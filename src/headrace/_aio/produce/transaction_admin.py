"""Finds, describes and ends transactions that other processes have left open.

Every request goes to the coordinator of its transactional id, and is retried according to `transaction_errors.py` until
it succeeds or times out. EndTxn can be repeated: see `_machines/produce/open_transaction.py`. An InitProducerId without
a response is sent again and then fences the identity of the lost response, which no one uses.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from ..._machines.produce.idempotence import ProducerIdentity
from ..._machines.produce.open_transaction import NOT_OPEN, OpenTransaction, TransactionDescription
from ..._machines.produce.transaction_errors import (
    ErrorEffect,
    TransactionApi,
    effect_of,
    effect_without_answer,
    worst_of,
)
from ..._machines.produce.transaction_requests import TransactionRequest, TransactionRequests
from ..._protocol.admin_messages import CONSUMER_GROUP_DESCRIBE, DESCRIBE_ACLS, DESCRIBE_GROUPS
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import (
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
    exactly_one,
)
from ...config.producer import ProducerConfig
from ...errors import HeadraceError, KafkaError, NetworkError, RequestTimeoutError
from ...types import GroupMetadata, OffsetAndMetadata, TopicPartition
from ..group.coordinator import Coordinator, CoordinatorKind
from ..network.client import Client
from .transaction_descriptions import description_of

T = TypeVar("T")

_VERSION = 2  # transaction.version
_LAST_BY_NAME = 9  # of OffsetFetch; from version 10 on topics are named by id
_IN_FLIGHT = 16
# The response to a description of a group that does not exist, or not with this protocol, which may be disabled.
_NO_GROUP = {NONE, ErrorCode.group_id_not_found, ErrorCode.unsupported_version}
# A filter that matches few ACLs: only the error code of the response counts. The numbers are those of a group, literal
# names, and any operation and permission.
_NO_ACLS = {
    "resource_type_filter": 3,
    "resource_name_filter": "",
    "pattern_type_filter": 3,
    "principal_filter": "User:",
    "host_filter": "",
    "operation": 1,
    "permission_type": 1,
}
_APIS = {
    TransactionApi.INIT_PRODUCER_ID: INIT_PRODUCER_ID,
    TransactionApi.COMMIT_OFFSETS: TXN_OFFSET_COMMIT,
    TransactionApi.END: END_TXN,
}


class TransactionAdmin:
    """Belongs to the loop of its client. `timeout` is the timeout of each call in seconds."""

    def __init__(self, client: Client[ProducerConfig], timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._coordinators: dict[tuple[str, CoordinatorKind], Coordinator] = {}

    async def transaction_version(self, transactional_id: str) -> int:
        """The finalized feature level of the cluster; 0 if it has none."""
        coordinator = self._coordinator(transactional_id)
        features = await self._client.retries.run(
            "request of transaction.version", self._deadline(), coordinator.features
        )
        return int(features.get("transaction.version", 0))

    # -- one transactional id ----------------------------------------------------------------------------------------

    async def init(self, transactional_id: str, timeout_ms: int, *, is_two_phase: bool = False) -> ProducerIdentity:
        """Fences all users of the id, and aborts its open transaction. `is_two_phase`: without a timeout (KIP-939)."""
        request = TransactionRequests(transactional_id, timeout_ms, is_two_phase=is_two_phase).init(None)
        body = await self._send(request, transactional_id)
        return ProducerIdentity(body.producer_id, body.producer_epoch)

    async def commit_offsets(
        self, transaction: OpenTransaction, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Adds offsets of a group without members to the transaction, which it opens."""
        requests = TransactionRequests(transaction.transactional_id, 0)
        identity = ProducerIdentity(transaction.producer_id, transaction.epoch)
        request = requests.commit_offsets(_VERSION, identity, GroupMetadata(group), offsets)
        await self._send(request, transaction.transactional_id)

    async def end(self, transaction: OpenTransaction, *, commits: bool) -> ProducerIdentity:
        """Commits or aborts a transaction. Returns the identity for the next one of this id. Raises KafkaError, with
        one of `NOT_OPEN` if there is no such transaction, or it has ended with the other result."""
        requests = TransactionRequests(transaction.transactional_id, 0)
        identity = ProducerIdentity(transaction.producer_id, transaction.epoch)
        body = await self._send(requests.end(_VERSION, identity, commits=commits), transaction.transactional_id)
        return ProducerIdentity(body.producer_id, body.producer_epoch)

    async def _send(self, request: TransactionRequest, transactional_id: str) -> Any:
        """The successful response."""
        coordinator = (
            self._coordinator(transactional_id)
            if request.group is None
            else self._coordinator(request.group, CoordinatorKind.GROUP)
        )
        doing = f"{request.api.value} of {transactional_id!r}"
        api = dataclasses.replace(_APIS[request.api], **request.versions._asdict())

        async def attempt() -> tuple[ErrorEffect, Any]:
            try:
                body = await coordinator.call(api, request.fields)
            except HeadraceError as error:
                return effect_without_answer(request.api, error), error
            code = _code_of(request.api, body)
            if code == NONE:
                return ErrorEffect.NONE, body
            return effect_of(request.api, code), kafka_error(code, doing)

        return await self._until_answered(doing, coordinator, attempt)

    async def _until_answered(
        self, doing: str, coordinator: Coordinator, attempt: Callable[[], Coroutine[Any, Any, tuple[ErrorEffect, T]]]
    ) -> T:
        deadline = self._deadline()
        failures = 0
        while True:
            effect, found = await attempt()
            if effect is ErrorEffect.NONE:
                return found
            assert isinstance(found, HeadraceError)
            if effect not in (ErrorEffect.RETRY, ErrorEffect.FIND):
                raise found
            if effect is ErrorEffect.FIND:
                coordinator.forget()
            failures += 1
            is_concurrent = isinstance(found, KafkaError) and found.code == ErrorCode.concurrent_transactions
            pause = 0.02 if is_concurrent and failures < 20 else self._client.retries.pause(failures)
            if asyncio.get_running_loop().time() + pause >= deadline:
                raise RequestTimeoutError(f"{doing}: not done in time. Last error: {found}") from found
            await asyncio.sleep(pause)

    # -- many transactional ids --------------------------------------------------------------------------------------

    async def end_all(
        self, transactions: Iterable[OpenTransaction], *, commits: bool
    ) -> dict[OpenTransaction, KafkaError | None]:
        """Ends all of them. The error is None, or one of `NOT_OPEN` if a transaction is not open. Raises any other
        error after all of them were tried.
        """

        async def end(transaction: OpenTransaction) -> KafkaError | None:
            try:
                await self.end(transaction, commits=commits)
            except KafkaError as error:
                if error.code not in NOT_OPEN:
                    raise
                return error
            return None

        return await self._for_each(list(transactions), end)

    async def describe(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """The descriptions of those ids that exist."""
        found = await self._for_each(list(transactional_ids), self._describe)
        return {name: description for name, description in found.items() if description is not None}

    async def _describe(self, transactional_id: str) -> TransactionDescription | None:
        coordinator = self._coordinator(transactional_id)
        doing = f"DescribeTransactions of {transactional_id!r}"

        async def attempt() -> tuple[ErrorEffect, Any]:
            try:
                body = await coordinator.call(DESCRIBE_TRANSACTIONS, {"transactional_ids": (transactional_id,)})
            except HeadraceError as error:
                return effect_without_answer(TransactionApi.DESCRIBE, error), error
            code, found = description_of(body, doing)
            effect = effect_of(TransactionApi.DESCRIBE, code)
            return effect, found if effect is ErrorEffect.NONE else kafka_error(code, doing)

        return await self._until_answered(doing, coordinator, attempt)

    async def list_open(self, pattern: str) -> list[str]:
        """The transactional ids with an open transaction that match a regular expression, from all brokers."""

        async def attempt() -> list[str]:
            await self._client.fetch_metadata(())
            with self._client.lock:
                nodes = list(self._client.cluster.brokers)
            if not nodes:
                raise NetworkError("no broker is known")
            found = await self._for_each(nodes, lambda node: self._list_open_at(node, pattern))
            return sorted({name for names in found.values() for name in names})

        listed: list[str] = await self._client.retries.run("ListTransactions", self._deadline(), attempt)
        return listed

    async def _list_open_at(self, node: int, pattern: str) -> list[str]:
        fields = {
            "state_filters": ("Ongoing",),
            "producer_id_filters": (),
            "duration_filter": -1,
            "transactional_id_pattern": pattern,  # version 2
        }
        reply = await self._client.call(node, LIST_TRANSACTIONS, fields)
        if reply.body.error_code != NONE:
            raise kafka_error(reply.body.error_code, f"ListTransactions at broker {node}")
        names = [state.transactional_id for state in reply.body.transaction_states]
        return [name for name in names if re.fullmatch(pattern, name)]

    async def _for_each(self, keys: list[Any], ask: Callable[[Any], Coroutine[Any, Any, T]]) -> dict[Any, T]:
        limit = asyncio.Semaphore(_IN_FLIGHT)

        async def one(key: Any) -> tuple[T]:  # an error can also be a result
            async with limit:
                return (await ask(key),)

        results = await asyncio.gather(*(one(key) for key in keys), return_exceptions=True)
        found: dict[Any, T] = {}
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, BaseException):
                raise result
            (found[key],) = result
        return found

    # -- committed offsets -------------------------------------------------------------------------------------------

    async def committed(
        self, group: str, partition: TopicPartition | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Committed offsets of the group. Waits for transactions that are about to change them.

        Without a partition: of all topics that the client may read. Brokers leave out the others. With one: raises
        AuthorizationError if the client may not read it.
        """
        coordinator = self._coordinator(group, CoordinatorKind.GROUP)
        doing = f"OffsetFetch of group {group}"
        topics = None if partition is None else [{"name": partition.topic, "partition_indexes": [partition.partition]}]
        asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
            fields = {"groups": [asked], "require_stable": True}
            answer = exactly_one((await coordinator.call(OFFSET_FETCH, fields, highest=_LAST_BY_NAME)).groups, doing)
            found = {}
            items = [
                (TopicPartition(each.name, item.partition_index), item)
                for each in answer.topics
                for item in each.partitions
            ]
            for code, where in [
                (answer.error_code, doing),
                *((item.error_code, f"{doing}, topic {tp.topic}") for tp, item in items),
            ]:
                if code != NONE:
                    coordinator.note(code)
                    raise kafka_error(code, where)
            for tp, item in items:
                if item.committed_offset >= 0:
                    found[tp] = OffsetAndMetadata(item.committed_offset, item.metadata or "", None)
            return found

        offsets: dict[TopicPartition, OffsetAndMetadata] = await self._client.retries.run(
            doing, self._deadline(), attempt
        )
        return offsets

    async def group_exists(self, group: str) -> bool:
        """Whether the group exists, with or without members. It does as long as it has an offset, which this client may
        not be allowed to see. Raises AuthorizationError if the client may not describe the group."""
        coordinator = self._coordinator(group, CoordinatorKind.GROUP)
        doing = f"description of group {group}"

        async def attempt() -> bool:
            rights = {"include_authorized_operations": False}
            classic = exactly_one(
                (await coordinator.call(DESCRIBE_GROUPS, {"groups": (group,), **rights})).groups, doing
            )
            if classic.error_code == NONE and classic.group_state != "Dead":
                return True
            consumer = exactly_one(
                (await coordinator.call(CONSUMER_GROUP_DESCRIBE, {"group_ids": (group,), **rights})).groups, doing
            )
            for code in (classic.error_code, consumer.error_code):
                if code not in _NO_GROUP:
                    coordinator.note(code)
                    raise kafka_error(code, doing)
            return bool(consumer.error_code == NONE)

        exists: bool = await self._client.retries.run(doing, self._deadline(), attempt)
        return exists

    async def checks_rights(self, group: str) -> bool:
        """Whether brokers check the rights of clients. Without an authorizer they do not, and hide nothing."""
        coordinator = self._coordinator(group, CoordinatorKind.GROUP)
        doing = "DescribeAcls"

        async def attempt() -> bool:
            body = await coordinator.call(DESCRIBE_ACLS, _NO_ACLS)
            if body.error_code == ErrorCode.security_disabled:
                return False
            if body.error_code not in (NONE, ErrorCode.cluster_authorization_failed):
                coordinator.note(body.error_code)
                raise kafka_error(body.error_code, doing)
            return True

        checks: bool = await self._client.retries.run(doing, self._deadline(), attempt)
        return checks

    def _coordinator(self, key: str, kind: CoordinatorKind = CoordinatorKind.TRANSACTION) -> Coordinator:
        found = self._coordinators.get((key, kind))
        if found is None:
            found = self._coordinators[key, kind] = Coordinator(self._client, key, kind)
        return found

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout


def _code_of(api: TransactionApi, body: Any) -> int:
    if api is not TransactionApi.COMMIT_OFFSETS:
        return int(body.error_code)
    return worst_of(api, [each.error_code for topic in body.topics for each in topic.partitions])
