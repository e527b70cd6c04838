"""Groups of all kinds: listed, described and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kio.schema.errors import ErrorCode

from ..._protocol.admin_messages import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    SHARE_GROUP_DESCRIBE,
)
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.group_data import read_assignment, read_subscription
from ..._protocol.messages import Api, exactly_one
from ...admin import GroupDescription, GroupListing, MemberDescription
from ...errors import GroupNotEmptyError, HeadraceError, KafkaError, ProtocolError
from ...types import TopicPartition
from .client import AdminClient, ChangeOutcome

# A coordinator that finds a member where it expects none.
_NOT_EMPTY = (ErrorCode.non_empty_group, ErrorCode.unknown_member_id)
_NAMED = 5  # the number of members that an error names


class Groups:
    def __init__(self, client: AdminClient) -> None:
        self._client = client

    async def list_all(self, timeout: float | None) -> list[GroupListing]:
        async def ask() -> list[GroupListing]:
            await self._client.network.fetch_metadata(())  # brokers come and go
            answers = await asyncio.gather(*(self._groups_at(node) for node in self._client.cluster.brokers))
            return sorted((found for answer in answers for found in answer), key=lambda found: found.group)

        return await self._client.retried("ListGroups", timeout, ask)

    async def _groups_at(self, node: int) -> list[GroupListing]:
        body = await self._client.call(node, LIST_GROUPS, {})
        if body.error_code != NONE:
            raise kafka_error(body.error_code, "ListGroups")
        return [
            GroupListing(found.group_id, getattr(found, "group_type", "classic").lower(), found.group_state)
            for found in body.groups
        ]

    # -- one group ---------------------------------------------------------------------------------------------------

    async def describe(self, group: str, timeout: float | None) -> GroupDescription | None:
        async def ask() -> GroupDescription | None:
            node = await self._client.coordinator(group)
            listing = next((found for found in await self._groups_at(node) if found.group == group), None)
            if listing is None:
                return None
            if listing.kind == "consumer":
                return await self._describe_new(node, listing, CONSUMER_GROUP_DESCRIBE)
            if listing.kind == "share":
                return await self._describe_new(node, listing, SHARE_GROUP_DESCRIBE)
            return await self._describe_classic(node, listing)

        return await self._client.retried(f"description of group {group}", timeout, ask)

    async def _describe_classic(self, node: int, listing: GroupListing) -> GroupDescription:
        fields = {"groups": (listing.group,), "include_authorized_operations": False}
        found = _only((await self._client.call(node, DESCRIBE_GROUPS, fields)).groups, listing)
        members = [
            MemberDescription(
                each.member_id,
                each.client_id,
                each.client_host,
                each.group_instance_id,
                _assigned(bytes(each.member_assignment)),
                _subscribed(bytes(each.member_metadata)),
            )
            for each in found.members
        ]
        return GroupDescription(listing, found.protocol_data, tuple(members))

    async def _describe_new(self, node: int, listing: GroupListing, api: Api) -> GroupDescription:
        fields = {"group_ids": (listing.group,), "include_authorized_operations": False}
        found = _only((await self._client.call(node, api, fields)).groups, listing)
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
                frozenset(each.subscribed_topic_names),
                getattr(each, "subscribed_topic_regex", None) or None,
            )
            for each in found.members
        ]
        return GroupDescription(listing, found.assignor_name, tuple(members))

    # -- changes -----------------------------------------------------------------------------------------------------

    async def delete(self, group: str, timeout: float | None) -> None:
        """Raises GroupNotEmptyError, and KafkaError, also if the group does not exist."""
        doing = f"DeleteGroups of {group}"
        outcome = ChangeOutcome()

        async def ask() -> None:
            node = await self._client.coordinator(group)
            body = await self._client.call(node, DELETE_GROUPS, {"groups_names": (group,)}, outcome=outcome)
            code = exactly_one(body.results, doing).error_code
            if code == ErrorCode.group_id_not_found and outcome.is_unknown:
                return
            if code != NONE:
                raise kafka_error(code, doing)

        await self.without_members(group, doing, timeout, lambda: self._client.retried(doing, timeout, ask))

    async def without_members(
        self, group: str, doing: str, timeout: float | None, change: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Carries out a change that needs a group without members. Raises GroupNotEmptyError with its members, as far
        as they are still there."""
        try:
            await change()
        except KafkaError as error:
            if error.code not in _NOT_EMPTY:
                raise
            try:
                described = await self.describe(group, timeout)
            except HeadraceError:
                described = None
            raise not_empty(group, doing, () if described is None else described.members) from error


def not_empty(group: str, doing: str, members: tuple[MemberDescription, ...]) -> GroupNotEmptyError:
    if members:
        found = sorted(members, key=lambda each: (each.client_id, each.member_id))
        named = ", ".join(map(str, found[:_NAMED])) + (f" and {len(found) - _NAMED} more" if found[_NAMED:] else "")
        count = "1 member" if len(found) == 1 else f"{len(found)} members"
        detail = f"it has {count}: {named}. Stop them first. A killed or static member leaves after its session timeout"
    else:
        detail = "a member has joined the group meanwhile. Stop all members and try again"
    error = kafka_error(ErrorCode.non_empty_group, doing, detail, GroupNotEmptyError)
    assert isinstance(error, GroupNotEmptyError)
    error.members = members
    return error


def _assigned(blob: bytes) -> frozenset[TopicPartition]:
    """The groups of Kafka Connect and others have assignments in forms of their own, and members may send anything."""
    try:
        return read_assignment(blob)[0]
    except ProtocolError:
        return frozenset()


def _subscribed(blob: bytes) -> frozenset[str]:
    try:
        return read_subscription(blob).topics
    except ProtocolError:
        return frozenset()


def _only(groups: Any, listing: GroupListing) -> Any:
    doing = f"description of group {listing.group}"
    found = exactly_one(groups, doing)
    if found.error_code != NONE:
        raise kafka_error(found.error_code, doing)
    return found
