"""The offsets that a transaction commits, by group, until the groups' coordinators have them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from ...types import GroupMetadata, OffsetAndMetadata, TopicPartition
from .transaction_requests import TransactionRequest

Offsets = dict[TopicPartition, OffsetAndMetadata]


class TransactionOffsets:
    """False if no offsets are pending. With transaction.version 1, a group is added to the transaction first."""

    def __init__(self) -> None:
        self.is_unsure = False
        """Whether a request got no response: it may still arrive."""
        self._pending: dict[str, tuple[GroupMetadata, Offsets]] = {}
        self._groups: set[str] = set()
        self._sent: Offsets = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Later offsets of a partition replace earlier ones, and so does the member's metadata."""
        _, pending = self._pending.get(group.group_id, (group, {}))
        self._pending[group.group_id] = group, {**pending, **offsets}

    def first(self) -> tuple[GroupMetadata, Offsets]:
        """The group whose offsets are sent next."""
        group, self._sent = next(iter(self._pending.values()))
        return group, self._sent

    def has_group(self, group_id: str) -> bool:
        return group_id in self._groups

    def group_added(self, group_id: str) -> None:
        self._groups.add(group_id)

    def committed(self, request: TransactionRequest, partitions: AbstractSet[TopicPartition]) -> None:
        """The response to a request with the offsets of `first`. Offsets that were replaced meanwhile stay pending."""
        assert request.group is not None
        group, pending = self._pending[request.group]
        left = {tp: offset for tp, offset in pending.items() if not (tp in partitions and self._sent.get(tp) == offset)}
        if left:
            self._pending[request.group] = group, left
        else:
            del self._pending[request.group]
