"""AsyncAdmin, for the command line: topics, and groups that the caller is not a member of.

Each call is retried until a broker answers or `default.api.timeout.ms` have passed. No call creates a topic by asking
for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from kio.schema.errors import ErrorCode

from .._machines.cluster import Cluster, node_at
from .._net.calls import Reply
from .._protocol.admin_messages import (
    CONSUMER_GROUP_DESCRIBE,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_GROUPS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    LIST_GROUPS,
    SHARE_GROUP_DESCRIBE,
)
from .._protocol.codes import NONE, kafka_error
from .._protocol.group_data import read_assignment
from .._protocol.messages import FIND_COORDINATOR, OFFSET_FETCH, Api, exactly_one
from .._security.exchanges import quoted
from ..config.consumer import ConsumerConfig
from ..errors import HeadraceError, KafkaError, NetworkError, RequestTimeoutError
from ..types import OffsetAndMetadata, PartitionInfo, TopicPartition, Watermarks
from .commit.offset_requests import LAST_BY_NAME, committed_in
from .network.client import Client
from .positions.list_offsets import EARLIEST, LATEST, ListOffsets

T = TypeVar("T")

_NOT_THERE = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)


@dataclasses.dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class GroupListing:
    """`kind`: classic, consumer (KIP-848), share or streams."""

    group: str
    kind: str
    state: str


@dataclasses.dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: frozenset[TopicPartition]


@dataclasses.dataclass(frozen=True, slots=True)
class GroupDescription:
    listing: GroupListing
    assignor: str
    members: tuple[MemberDescription, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ShareOffset:
    """The start offset of a share group in a partition, and its lag; None where the brokers do not report it."""

    start: int
    lag: int | None


class AsyncAdmin:
    """For one event loop. `async with` closes its connections."""

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        parsed = ConsumerConfig.parse(config, **settings)
        self._config = dataclasses.replace(parsed, allow_auto_create_topics=False)
        self._cluster = Cluster()
        self._client = Client(self._config, self._cluster, threading.Lock(), _nothing, _unwatched)
        self._offsets = ListOffsets(self._client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def cluster_id(self) -> str:
        """It never changes, wherever the brokers of the cluster are."""
        await self.topics(())
        return self._cluster.cluster_id or ""

    # -- topics ------------------------------------------------------------------------------------------------------

    async def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """All topics that this client may see, or those of `names` that exist. Raises AuthorizationError if one of
        `names` is denied."""
        asked = None if names is None else sorted(set(names))

        async def ask() -> dict[str, TopicDescription]:
            found = await self._existing(asked)
            return {
                name: TopicDescription(name, topic.is_internal, tuple(self._cluster.partition_infos(name)))
                for name, topic in sorted(found.items())
            }

        return await self._timed("Metadata", ask)

    async def create_topic(
        self, name: str, partitions: int = -1, replication: int = -1, settings: Mapping[str, str] | None = None
    ) -> None:
        """-1 is the brokers' default. Raises KafkaError, also if the topic exists."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication,
            "assignments": (),
            "configs": [{"name": key, "value": value} for key, value in (settings or {}).items()],
        }
        fields = {"topics": [topic], "timeout": self._config.request_timeout_ms, "validate_only": False}
        await self._change(CREATE_TOPICS, fields, f"CreateTopics of {name}")

    async def delete_topic(self, name: str) -> None:
        """Raises KafkaError, also if the topic does not exist."""
        fields = {"topics": [{"name": name, "topic_id": None}], "timeout": self._config.request_timeout_ms}
        await self._change(DELETE_TOPICS, fields, f"DeleteTopics of {name}")

    async def _change(self, api: Api, fields: Mapping[str, Any], doing: str) -> None:
        async def ask() -> None:
            reply = await self._call_any(api, fields)
            for result in getattr(reply.body, "responses", None) or reply.body.topics:
                if result.error_code != NONE:
                    error = kafka_error(result.error_code, doing, quoted(result.error_message or ""))
                    error.retriable &= result.error_code != ErrorCode.unknown_topic_or_partition  # deleted, so it stays
                    raise error

        await self._timed(doing, ask)

    async def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Beginning and end offsets of those of these partitions that exist. With read_committed, the end offset is the
        last stable offset. Raises AuthorizationError for a topic that is denied."""
        asked = sorted(set(partitions))

        async def ask() -> dict[TopicPartition, Watermarks]:
            there = await self._existing(sorted({tp.topic for tp in asked}))
            known = [tp for tp in asked if tp.topic in there and self._cluster.partition(tp) is not None]
            low = await self._offsets.by_time(dict.fromkeys(known, EARLIEST))
            high = await self._offsets.by_time(dict.fromkeys(known, LATEST))
            found = {}
            for tp in known:
                first, last = low[tp], high[tp]
                if isinstance(first, HeadraceError):
                    raise first
                if isinstance(last, HeadraceError):
                    raise last
                found[tp] = Watermarks(first.offset, last.offset)
            return found

        return await self._timed("ListOffsets", ask) if asked else {}

    async def _existing(self, names: Iterable[str] | None) -> dict[str, Any]:
        """Asks a broker. Raises the error of a topic that cannot be described, unless the topic does not exist."""
        answer = await self._client.fetch_metadata(names)
        found = {}
        for topic in answer.topics:
            if topic.error_code == NONE:
                found[topic.name] = topic
            elif topic.error_code not in _NOT_THERE:
                raise kafka_error(topic.error_code, f"Metadata of {topic.name}")
        return found

    # -- groups ------------------------------------------------------------------------------------------------------

    async def groups(self) -> list[GroupListing]:
        """All groups of all coordinators. A broker that cannot be reached is retried until the time is up: it may
        coordinate groups that no other broker knows."""

        async def ask() -> list[GroupListing]:
            await self._client.fetch_metadata(())  # brokers come and go
            answers = await asyncio.gather(*(self._groups_at(node) for node in self._cluster.brokers))
            return sorted((found for answer in answers for found in answer), key=lambda found: found.group)

        return await self._timed("ListGroups", ask)

    async def describe_group(self, group: str) -> GroupDescription | None:
        """None if the group does not exist."""

        async def ask() -> GroupDescription | None:
            node = await self._coordinator(group)
            listing = next((found for found in await self._groups_at(node) if found.group == group), None)
            if listing is None:
                return None
            describe = {"consumer": self._describe_consumer, "share": self._describe_share}.get(listing.kind)
            if describe is not None:
                return await describe(node, listing)
            return await self._describe_classic(node, listing)

        return await self._timed(f"description of group {group}", ask)

    async def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """All committed offsets of the group."""
        asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}

        async def ask() -> dict[TopicPartition, OffsetAndMetadata]:
            node = await self._coordinator(group)
            fields = {"groups": [asked], "require_stable": False}
            reply = await self._client.call(node, OFFSET_FETCH, fields, highest=LAST_BY_NAME)
            answer = exactly_one(reply.body.groups, f"OffsetFetch of group {group}")
            if answer.error_code != NONE:
                raise kafka_error(answer.error_code, f"OffsetFetch of group {group}")
            found = {}
            for topic in answer.topics:
                for item in topic.partitions:
                    if item.error_code != NONE:
                        raise kafka_error(item.error_code, f"OffsetFetch of {topic.name} in group {group}")
                    if (committed := committed_in(item)) is not None:
                        found[TopicPartition(topic.name, item.partition_index)] = committed
            return found

        return await self._timed(f"OffsetFetch of group {group}", ask)

    async def share_offsets(self, group: str) -> dict[TopicPartition, ShareOffset]:
        """All partitions that the share group has started to read."""

        async def ask() -> dict[TopicPartition, ShareOffset]:
            node = await self._coordinator(group)
            fields = {"groups": [{"group_id": group, "topics": None}]}
            reply = await self._client.call(node, DESCRIBE_SHARE_GROUP_OFFSETS, fields)
            answer = exactly_one(reply.body.groups, f"offsets of share group {group}")
            if answer.error_code != NONE:
                raise kafka_error(
                    answer.error_code, f"offsets of share group {group}", quoted(answer.error_message or "")
                )
            found = {}
            for topic in answer.topics:
                for item in topic.partitions:
                    if item.error_code == NONE and item.start_offset >= 0:
                        lag = getattr(item, "lag", -1)
                        tp = TopicPartition(topic.topic_name, item.partition_index)
                        found[tp] = ShareOffset(item.start_offset, None if lag < 0 else lag)
            return found

        return await self._timed(f"offsets of share group {group}", ask)

    async def _groups_at(self, node: int) -> list[GroupListing]:
        body = (await self._client.call(node, LIST_GROUPS, {})).body
        if body.error_code != NONE:
            raise kafka_error(body.error_code, "ListGroups")
        return [
            GroupListing(found.group_id, getattr(found, "group_type", "classic").lower(), found.group_state)
            for found in body.groups
        ]

    async def _describe_classic(self, node: int, listing: GroupListing) -> GroupDescription:
        fields = {"groups": (listing.group,), "include_authorized_operations": False}
        found = _only((await self._client.call(node, DESCRIBE_GROUPS, fields)).body.groups, listing)
        members = [
            MemberDescription(
                each.member_id,
                each.client_id,
                each.client_host,
                each.group_instance_id,
                read_assignment(bytes(each.member_assignment))[0],
            )
            for each in found.members
        ]
        return GroupDescription(listing, found.protocol_data, tuple(members))

    async def _describe_consumer(self, node: int, listing: GroupListing) -> GroupDescription:
        return await self._describe_new(node, listing, CONSUMER_GROUP_DESCRIBE)

    async def _describe_share(self, node: int, listing: GroupListing) -> GroupDescription:
        return await self._describe_new(node, listing, SHARE_GROUP_DESCRIBE)

    async def _describe_new(self, node: int, listing: GroupListing, api: Api) -> GroupDescription:
        fields = {"group_ids": (listing.group,), "include_authorized_operations": False}
        found = _only((await self._client.call(node, api, fields)).body.groups, listing)
        members = [
            MemberDescription(
                each.member_id,
                each.client_id,
                each.client_host,
                getattr(each, "instance_id", None),
                frozenset(
                    TopicPartition(topic.topic_name, number)
                    for topic in each.assignment.topic_partitions
                    for number in topic.partitions
                ),
            )
            for each in found.members
        ]
        return GroupDescription(listing, found.assignor_name, tuple(members))

    # -- sending ------------------------------------------------------------------------------------------------

    async def _call_any(self, api: Api, fields: Mapping[str, Any]) -> Reply:
        """The answer of the first broker that gives one. Raises the error of the last one."""
        nodes = list(self._cluster.brokers)
        if not nodes:
            await self._client.fetch_metadata(())
            nodes = list(self._cluster.brokers)
        last: HeadraceError = NetworkError("no broker is known")
        for node in nodes:
            try:
                return await self._client.call(node, api, fields)
            except (NetworkError, RequestTimeoutError) as error:
                last = error
        await self._client.fetch_metadata(())  # for the next attempt: it asks the bootstrap servers, too
        raise last

    async def _coordinator(self, group: str) -> int:
        reply = await self._call_any(FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": (group,)})
        found = exactly_one(reply.body.coordinators, f"FindCoordinator of group {group}")
        if found.error_code != NONE:
            raise kafka_error(found.error_code, f"FindCoordinator of group {group}", quoted(found.error_message or ""))
        self._cluster.brokers.setdefault(found.node_id, node_at(found.node_id, found.host, found.port))
        return int(found.node_id)

    async def _timed(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        deadline = asyncio.get_running_loop().time() + self._config.default_api_timeout_ms / 1000
        result: T = await self._client.retries.run(what, deadline, attempt)
        return result


def _only(groups: Any, listing: GroupListing) -> Any:
    (found,) = groups
    if found.error_code != NONE:
        error: KafkaError = kafka_error(found.error_code, f"description of group {listing.group}")
        raise error
    return found


def _nothing() -> None:
    """Nothing here waits for metadata."""


def _unwatched(task: asyncio.Task[None]) -> asyncio.Task[None]:
    return task
