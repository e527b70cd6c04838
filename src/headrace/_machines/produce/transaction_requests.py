"""The requests of a transaction: their fields, their versions, and their coordinators.

    transaction.version  Produce  AddPartitionsToTxn  AddOffsetsToTxn  TxnOffsetCommit  EndTxn  InitProducerId
    1 (or unknown)       9-11     3                   3-4              3-4              3-4     4-5
    2                    12-13    not sent            not sent         5                5       4-5

DescribeTransactions has one version.

With version 2 Produce and TxnOffsetCommit add their partition to the transaction, and EndTxn ends the epoch. The two
rows must not be mixed within a transaction: after Produce 12 and EndTxn 4 the epoch stays the same, so a late Produce
opens a transaction that is never ended.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...types import GroupMetadata, OffsetAndMetadata, TopicPartition
from .idempotence import ProducerIdentity
from .transaction_errors import TransactionApi


class VersionRange(NamedTuple):
    lowest: int
    highest: int


_VERSIONS = {
    1: {
        TransactionApi.PRODUCE: VersionRange(9, 11),
        TransactionApi.INIT_PRODUCER_ID: VersionRange(4, 5),
        TransactionApi.ADD_PARTITIONS: VersionRange(3, 3),
        TransactionApi.ADD_OFFSETS: VersionRange(3, 4),
        TransactionApi.COMMIT_OFFSETS: VersionRange(3, 4),
        TransactionApi.END: VersionRange(3, 4),
        TransactionApi.DESCRIBE: VersionRange(0, 0),
    },
    2: {
        TransactionApi.PRODUCE: VersionRange(12, 13),
        TransactionApi.INIT_PRODUCER_ID: VersionRange(4, 5),
        TransactionApi.COMMIT_OFFSETS: VersionRange(5, 5),
        TransactionApi.END: VersionRange(5, 5),
        TransactionApi.DESCRIBE: VersionRange(0, 0),
    },
}


_TWO_PHASE = VersionRange(6, 6)  # of InitProducerId; so far brokers offer it only with unstable.api.versions.enable


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TransactionRequest:
    """A request to the coordinator of the transaction, or of `group` if it is not None. It is sent with the highest
    version of `versions` that the broker has; if it has none, the request fails with an UnsupportedVersionError."""

    api: TransactionApi
    versions: VersionRange
    fields: Mapping[str, Any]
    group: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()


class TransactionRequests:
    """Creates the requests of one transactional id."""

    def __init__(self, transactional_id: str, timeout_ms: int, *, is_two_phase: bool = False) -> None:
        """`is_two_phase`: the transactions have no timeout (KIP-939)."""
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._is_two_phase = is_two_phase

    def init(self, identity: ProducerIdentity | None) -> TransactionRequest:
        """With the current identity, the response has the next epoch, unless another producer has fenced this one."""
        producer_id, epoch = identity or (-1, -1)
        fields = {
            "transactional_id": self._transactional_id,
            "transaction_timeout": self._timeout_ms,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }
        api = TransactionApi.INIT_PRODUCER_ID
        if self._is_two_phase:
            two_phase = {"enable2_pc": True, "keep_prepared_txn": False}
            return TransactionRequest(api, _TWO_PHASE, {**fields, **two_phase})
        return TransactionRequest(api, versions_of(2, api), fields)

    def add_partitions(self, identity: ProducerIdentity, partitions: Iterable[TopicPartition]) -> TransactionRequest:
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(partitions):
            topics[topic].append(partition)
        fields = {
            "v3_and_below_transactional_id": self._transactional_id,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": [{"name": name, "partitions": numbers} for name, numbers in topics.items()],
        }
        api = TransactionApi.ADD_PARTITIONS
        return TransactionRequest(api, versions_of(1, api), fields, partitions=frozenset(partitions))

    def add_offsets(self, identity: ProducerIdentity, group_id: str) -> TransactionRequest:
        """It goes to the coordinator of the transaction: `group` is None."""
        api = TransactionApi.ADD_OFFSETS
        return TransactionRequest(api, versions_of(1, api), {**self._fields(identity), "group_id": group_id})

    def commit_offsets(
        self,
        version: int,
        identity: ProducerIdentity,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> TransactionRequest:
        topics: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for (topic, partition), (offset, metadata, leader_epoch) in sorted(offsets.items(), key=lambda item: item[0]):
            entry = {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1 if leader_epoch is None else leader_epoch,
                "committed_metadata": metadata,
            }
            topics[topic].append(entry)
        fields = {
            **self._fields(identity),
            "group_id": group.group_id,
            "generation_id": group.generation_id,
            "member_id": group.member_id,
            "group_instance_id": group.group_instance_id,
            "topics": [{"name": name, "partitions": entries} for name, entries in topics.items()],
        }
        api = TransactionApi.COMMIT_OFFSETS
        return TransactionRequest(api, versions_of(version, api), fields, group.group_id, frozenset(offsets))

    def end(self, version: int, identity: ProducerIdentity, *, commits: bool) -> TransactionRequest:
        api = TransactionApi.END
        return TransactionRequest(api, versions_of(version, api), {**self._fields(identity), "committed": commits})

    def describe(self) -> TransactionRequest:
        api = TransactionApi.DESCRIBE
        return TransactionRequest(api, versions_of(2, api), {"transactional_ids": (self._transactional_id,)})

    def _fields(self, identity: ProducerIdentity) -> dict[str, Any]:
        return {
            "transactional_id": self._transactional_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
        }


def versions_of(transaction_version: int, api: TransactionApi) -> VersionRange:
    """`transaction_version` is 1 or 2."""
    return _VERSIONS[transaction_version][api]
