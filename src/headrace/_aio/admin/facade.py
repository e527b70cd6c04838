"""AsyncAdmin: the admin client for asyncio programs. `Admin` has the same calls, for threads."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ..._arguments import SomePartitions
from ...admin import (
    GroupDescription,
    GroupListing,
    GroupSetting,
    OffsetRange,
    ResetPlan,
    ShareOffset,
    TopicDescription,
)
from ...config.consumer import ConsumerConfig
from ...types import OffsetAndMetadata, TopicPartition, Watermarks
from ..lifecycle import THREAD_END
from .calls import AdminCalls


class AsyncAdmin:
    """Manages topics, groups and their offsets, without being a member of a group.

    Settings are those of a consumer, dotted in a mapping or with underscores as keywords; those about connections,
    security and timeouts count. No call creates a topic by asking for it.

    Any task may use it. Each call is retried until the brokers answer or `timeout` seconds have passed (None:
    default.api.timeout.ms); then it raises RequestTimeoutError. Invalid arguments raise TypeError or ValueError before
    anything is done.

        async with AsyncAdmin(bootstrap_servers="localhost:9092") as admin:
            for listing in await admin.groups():
                print(listing.group, listing.kind, listing.state)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._calls = AdminCalls(ConsumerConfig.parse(config, **settings))
        self._portal = self._calls.lifecycle.portal
        self._calls.lifecycle.watch(self)

    async def cluster_id(self, *, timeout: float | None = None) -> str:
        """The id of the cluster. It never changes, even if the brokers get other addresses."""
        return await self._portal.wait(self._calls.cluster_id(timeout))

    # -- topics --------------------------------------------------------------------------------------------------------

    async def topics(
        self, names: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, TopicDescription]:
        """All topics that this client may see, or those of `names` that exist. Raises AuthorizationError if one of
        `names` is denied."""
        return await self._portal.wait(self._calls.topics(names, timeout))

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication: int = -1,
        settings: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """-1 is the brokers' default. `settings` are the topic's, such as retention.ms. Raises KafkaError, also if the
        topic exists."""
        await self._portal.wait(self._calls.create_topic(name, partitions, replication, settings, timeout))

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Deletes a topic with all of its records. Raises KafkaError, also if it does not exist."""
        await self._portal.wait(self._calls.delete_topic(name, timeout))

    async def bounds(
        self, partitions: SomePartitions, *, timeout: float | None = None
    ) -> dict[TopicPartition, Watermarks]:
        """Beginning and end offsets of those of these partitions that exist. With read_committed, the end offset is the
        last stable offset. Raises AuthorizationError for a topic that is denied."""
        return await self._portal.wait(self._calls.bounds(partitions, timeout))

    # -- groups --------------------------------------------------------------------------------------------------------

    async def groups(self, *, timeout: float | None = None) -> list[GroupListing]:
        """All groups of all kinds. A broker that cannot be reached is retried until the time is up: it may coordinate
        groups that no other broker knows."""
        return await self._portal.wait(self._calls.groups(timeout))

    async def describe_group(self, group: str, *, timeout: float | None = None) -> GroupDescription | None:
        """The state of a group and its members, or None if the group does not exist."""
        return await self._portal.wait(self._calls.describe_group(group, timeout))

    async def delete_group(self, group: str, *, timeout: float | None = None) -> tuple[str, ...]:
        """Deletes a group of any kind with all of its offsets. Returns the names of the deleted groups: the second one
        is the group in which KIP-333 keeps the progress of a backlog, if there is one.

        Raises GroupNotEmptyError with its members if it has any, and KafkaError, also if it does not exist.
        """
        return await self._portal.wait(self._calls.delete_group(group, timeout))

    async def group_config(self, group: str, *, timeout: float | None = None) -> dict[str, GroupSetting]:
        """The settings of a group that brokers store, such as share.auto.offset.reset. The group need not exist yet."""
        return await self._portal.wait(self._calls.group_config(group, timeout))

    async def alter_group_config(
        self, group: str, settings: Mapping[str, str | int | bool | None], *, timeout: float | None = None
    ) -> None:
        """Sets settings of a group. None removes one, so that the brokers' default applies. The others keep their
        values. Raises KafkaError for a name or a value that the brokers do not accept; then nothing was changed."""
        await self._portal.wait(self._calls.alter_group_config(group, settings, timeout))

    # -- offsets -------------------------------------------------------------------------------------------------------

    async def committed(self, group: str, *, timeout: float | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """All committed offsets of the group. With two lanes (KIP-333), they are those of the live lane:
        `open_ranges` returns the rest."""
        return await self._portal.wait(self._calls.committed(group, timeout))

    async def open_ranges(
        self, group: str, *, timeout: float | None = None
    ) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
        """The ranges that the group has not processed yet although it has processed later records (KIP-333, or
        `commit.mode=done`), as pairs of the first offset and the one after the last."""
        return await self._portal.wait(self._calls.open_ranges(group, timeout))

    async def alter_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout: float | None = None,
    ) -> None:
        """Commits offsets for a group without members, and creates the group if it does not exist. Open ranges of these
        partitions are dropped. Use `plan_reset` to keep them.

        Raises GroupNotEmptyError with the members if there are any; PartialFailureError if only some partitions
        succeeded; KafkaError if all were refused for one reason.
        """
        await self._portal.wait(self._calls.alter_offsets(group, offsets, timeout))

    async def delete_offsets(self, group: str, partitions: SomePartitions, *, timeout: float | None = None) -> None:
        """Deletes the committed offsets of these partitions, so that auto.offset.reset applies. Raises as
        `alter_offsets` does; members may exist if they are not subscribed to the topics."""
        await self._portal.wait(self._calls.delete_offsets(group, partitions, timeout))

    async def share_offsets(self, group: str, *, timeout: float | None = None) -> dict[TopicPartition, ShareOffset]:
        """All partitions that the share group has started to read."""
        return await self._portal.wait(self._calls.share_offsets(group, timeout))

    async def alter_share_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> None:
        """Sets the start offsets of a share group without members. What is known about records from there on
        (acknowledgements, delivery counts) is forgotten. Raises as `alter_offsets` does."""
        await self._portal.wait(self._calls.alter_share_offsets(group, offsets, timeout))

    async def delete_share_offsets(self, group: str, topics: Iterable[str], *, timeout: float | None = None) -> None:
        """Deletes what a share group without members knows about these topics, so that share.auto.offset.reset applies.
        Raises as `alter_offsets` does, with topics instead of partitions."""
        await self._portal.wait(self._calls.delete_share_offsets(group, topics, timeout))

    # -- resets --------------------------------------------------------------------------------------------------------

    async def plan_reset(
        self,
        group: str,
        to: str | int | datetime.datetime,
        *,
        topics: Iterable[str | TopicPartition] | None = None,
        backlog: str | None = None,
        create: bool = False,
        timeout: float | None = None,
    ) -> ResetPlan:
        """Computes where a group would resume, and changes nothing: `apply_reset` does. Groups of Kafka Streams are
        refused: `kafka-streams-groups.sh` resets them.

        `to` is "earliest", "latest", an offset, a number of records to move by ("+100", "-100", not for share groups),
        or a time: a datetime, "@2026-11-17T10:00:00Z", "@1763373600000", "-1h". An offset outside of the log becomes
        its first or end offset, and the note of the change says so. `topics` are topics and single partitions; None
        means all partitions that the group has committed.

        `backlog` says what happens to ranges that are still open below the new offsets (see `open_ranges`): "keep"
        delivers them, then everything from the new offsets on; "drop" never delivers them.

        Raises GroupNotEmptyError with the members if there are any, and KafkaError if the group does not exist, unless
        `create` is true.
        """
        return await self._portal.wait(self._calls.plan_reset(group, to, topics, backlog, create, timeout))

    async def apply_reset(self, plan: ResetPlan, *, timeout: float | None = None) -> None:
        """Carries out a plan. Raises StateError, and changes nothing, if the plan leaves open ranges undecided, or if
        the group has committed anything since it was made. Otherwise raises as `alter_offsets` does."""
        await self._portal.wait(self._calls.apply_reset(plan, timeout))

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes the connections. Calls that still wait raise ClosedError."""
        lifecycle = self._calls.lifecycle
        if self._calls.guard.is_forked:
            lifecycle.shut()
            return
        try:
            if lifecycle.portal.is_open:
                await lifecycle.portal.wait(lambda: lifecycle.close(self._calls.end_tasks))
        finally:
            await lifecycle.portal.close_async(THREAD_END, lifecycle.shut())

    async def __aenter__(self) -> Self:
        self._calls.guard.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def calls_of(admin: AsyncAdmin) -> AdminCalls:
    """The internal interface, for `Admin`."""
    return admin._calls
