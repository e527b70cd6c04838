"""Admin: the admin client for programs without asyncio. It has the same calls as AsyncAdmin."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from .._aio.admin.facade import AsyncAdmin, calls_of
from .._aio.lifecycle import THREAD_END
from .._arguments import SomePartitions
from ..admin import (
    GroupDescription,
    GroupListing,
    GroupSetting,
    OffsetRange,
    ResetPlan,
    ShareOffset,
    TopicDescription,
)
from ..types import OffsetAndMetadata, TopicPartition, Watermarks
from .threaded import documented_as


class Admin:
    """Manages topics, groups and their offsets, without being a member of a group.

    Settings are those of a consumer, dotted in a mapping or with underscores as keywords; those about connections,
    security and timeouts count. No call creates a topic by asking for it.

    Any thread may use it. Each call is retried until the brokers answer or `timeout` seconds have passed (None:
    default.api.timeout.ms); then it raises RequestTimeoutError. Invalid arguments raise TypeError or ValueError before
    anything is done.

        with Admin(bootstrap_servers="localhost:9092") as admin:
            for listing in admin.groups():
                print(listing.group, listing.kind, listing.state)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._aio = AsyncAdmin(config, **settings)
        self._calls = calls_of(self._aio)
        self._portal = self._calls.lifecycle.portal
        self._calls.lifecycle.owner_name = type(self).__name__

    def cluster_id(self, *, timeout: float | None = None) -> str:
        return self._portal.run(self._calls.cluster_id(timeout))

    def topics(
        self, names: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, TopicDescription]:
        return self._portal.run(self._calls.topics(names, timeout))

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication: int = -1,
        settings: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        self._portal.run(self._calls.create_topic(name, partitions, replication, settings, timeout))

    def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        self._portal.run(self._calls.delete_topic(name, timeout))

    def bounds(self, partitions: SomePartitions, *, timeout: float | None = None) -> dict[TopicPartition, Watermarks]:
        return self._portal.run(self._calls.bounds(partitions, timeout))

    def groups(self, *, timeout: float | None = None) -> list[GroupListing]:
        return self._portal.run(self._calls.groups(timeout))

    def describe_group(self, group: str, *, timeout: float | None = None) -> GroupDescription | None:
        return self._portal.run(self._calls.describe_group(group, timeout))

    def delete_group(self, group: str, *, timeout: float | None = None) -> tuple[str, ...]:
        return self._portal.run(self._calls.delete_group(group, timeout))

    def group_config(self, group: str, *, timeout: float | None = None) -> dict[str, GroupSetting]:
        return self._portal.run(self._calls.group_config(group, timeout))

    def alter_group_config(
        self, group: str, settings: Mapping[str, str | int | bool | None], *, timeout: float | None = None
    ) -> None:
        self._portal.run(self._calls.alter_group_config(group, settings, timeout))

    def committed(self, group: str, *, timeout: float | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        return self._portal.run(self._calls.committed(group, timeout))

    def open_ranges(self, group: str, *, timeout: float | None = None) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
        return self._portal.run(self._calls.open_ranges(group, timeout))

    def alter_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout: float | None = None,
    ) -> None:
        self._portal.run(self._calls.alter_offsets(group, offsets, timeout))

    def delete_offsets(self, group: str, partitions: SomePartitions, *, timeout: float | None = None) -> None:
        self._portal.run(self._calls.delete_offsets(group, partitions, timeout))

    def share_offsets(self, group: str, *, timeout: float | None = None) -> dict[TopicPartition, ShareOffset]:
        return self._portal.run(self._calls.share_offsets(group, timeout))

    def alter_share_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> None:
        self._portal.run(self._calls.alter_share_offsets(group, offsets, timeout))

    def delete_share_offsets(self, group: str, topics: Iterable[str], *, timeout: float | None = None) -> None:
        self._portal.run(self._calls.delete_share_offsets(group, topics, timeout))

    def plan_reset(
        self,
        group: str,
        to: str | int | datetime.datetime,
        *,
        topics: Iterable[str | TopicPartition] | None = None,
        backlog: str | None = None,
        create: bool = False,
        timeout: float | None = None,
    ) -> ResetPlan:
        return self._portal.run(self._calls.plan_reset(group, to, topics, backlog, create, timeout))

    def apply_reset(self, plan: ResetPlan, *, timeout: float | None = None) -> None:
        self._portal.run(self._calls.apply_reset(plan, timeout))

    def close(self) -> None:
        lifecycle = self._calls.lifecycle
        if self._calls.guard.is_forked:
            lifecycle.shut()
            return
        try:
            if lifecycle.portal.is_open:
                lifecycle.portal.run(lambda: lifecycle.close(self._calls.end_tasks))
        finally:
            lifecycle.portal.close(THREAD_END, lifecycle.shut())

    def __enter__(self) -> Self:
        self._calls.guard.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


documented_as(AsyncAdmin, Admin)
