"""Removal of dead members from their group. Normally the coordinator notices only when the session times out.

This way sessions can be as long as a busy machine needs, and no test waits for their end.
"""

from __future__ import annotations

import asyncio

from headrace._aio.admin.runtime import AdminRuntime
from headrace._machines.group.actions import GroupSettings, Send
from headrace._machines.group.classic_requests import leave
from headrace._protocol.messages import CONSUMER_GROUP_HEARTBEAT
from headrace.config.consumer import ConsumerConfig

_LEAVE = -1


def remove_member(bootstrap_servers: str, group: str, client_id: str) -> None:
    """Remove the members with this client id from the group."""
    asyncio.run(_remove_member(bootstrap_servers, group, client_id))


async def _remove_member(bootstrap_servers: str, group: str, client_id: str) -> None:
    admin = AdminRuntime(ConsumerConfig.parse(bootstrap_servers=bootstrap_servers))

    async def attempt() -> None:
        found = await admin.groups.describe(group, None)
        node = await admin.client.coordinator(group)
        for member in found.members if found is not None else ():
            if member.client_id == client_id:
                assert found is not None
                leave_request = _leave(found.listing.kind, group, member.member_id)
                await admin.client.call(node, leave_request.api, leave_request.fields)

    try:
        await admin.client.retried(f"the removal of {client_id}", None, attempt)
    finally:
        await admin.close()


def _leave(kind: str, group: str, member_id: str) -> Send:
    """The leave request of the dead member."""
    settings = GroupSettings(group)
    if kind == "classic":
        return leave(settings, member_id, "it died")
    fields = {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": _LEAVE,
        "instance_id": None,
        "rebalance_timeout": -1,
        "topic_partitions": None,
    }
    return Send(CONSUMER_GROUP_HEARTBEAT, fields, settings.request_timeout)
