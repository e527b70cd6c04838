"""Which partitions a consumer reads: `subscribe`, `assign`, and what the group asks back or takes away."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from .._arguments import SomePartitions, partitions_in, text_of
from ..errors import ConfigError, StateError
from ..listener import RebalanceListener
from ..types import GroupMetadata, TopicPartition
from .call_guard import CallGuard
from .commit.tracker import CompletionTracker
from .fetch.buffer import FetchBuffer
from .group.rebalance import Rebalancer


class Subscriptions:
    """`group` is None without a group.id. `AsyncConsumer` documents the calls."""

    def __init__(
        self,
        guard: CallGuard,
        buffer: FetchBuffer,
        group: Rebalancer | None,
        completions: CompletionTracker | None,
    ) -> None:
        self._guard = guard
        self._buffer = buffer
        self._group = group
        self._completions = completions

    @property
    def is_subscribed(self) -> bool:
        return self._group is not None and self._group.is_subscribed

    def subscribe(
        self,
        topics: Iterable[str] | None,
        pattern: str | re.Pattern[str] | None,
        listener: RebalanceListener | None,
    ) -> None:
        self._guard.check()
        if self._group is None:
            raise ConfigError("subscribe() needs a group.id; without a group, assign() partitions")
        if not self._group.is_subscribed and self._buffer.assignment:
            raise StateError("partitions are assigned by assign(): call unsubscribe() before subscribe()")
        self._group.subscribe(topics, pattern, listener)

    def subscription(self) -> set[str]:
        self._guard.check()
        return set() if self._group is None else self._group.subscription()

    def assign(self, partitions: SomePartitions) -> None:
        self._guard.check()
        if self.is_subscribed:
            raise StateError("topics are subscribed: call unsubscribe() before assign()")
        self.replace_assignment(partitions_in(partitions))

    def replace_assignment(self, partitions: Collection[TopicPartition]) -> None:
        """Assigns exactly these partitions. The records that were returned of others no longer have to be finished."""
        gone = self._buffer.partitions().difference(partitions)
        self._buffer.assign(partitions)
        self._buffer.pace.forget()
        if self._completions is not None:
            self._completions.forget(gone)

    def assignment(self) -> set[TopicPartition]:
        self._guard.check()
        return self._buffer.partitions()

    def group_metadata(self) -> GroupMetadata:
        self._guard.check()
        if self._group is None:
            raise ConfigError("group_metadata() needs a group.id")
        return self._group.metadata()

    def enforce_rebalance(self, reason: str) -> None:
        self._guard.check()
        if self._group is None or not self._group.is_subscribed:
            raise StateError("only a subscribed consumer has a group to rebalance")
        self._group.rejoin(text_of("reason", reason))

    def to_be_revoked_partitions(self) -> set[TopicPartition]:
        self._guard.check()
        return set() if self._group is None else set(self._group.revocations.next)

    def lost_partitions(self) -> set[TopicPartition]:
        self._guard.check()
        return set() if self._group is None else set(self._group.revocations.lost)

    def delay_revoke(self, partitions: SomePartitions) -> bool:
        self._guard.check()
        chosen = partitions_in(partitions)
        return not chosen if self._group is None else self._group.delay(chosen)
