"""Members that died, and whose group hears of it at once. Its coordinator finds out when the session has timed out.

So sessions are as long as a busy machine needs, and nobody waits for their end.
"""

from __future__ import annotations

import asyncio

from headrace.aio.admin import AsyncAdmin
from headrace.machines.classic_requests import leave_request
from headrace.machines.membership import GroupSettings, Send
from headrace.protocol.messages import CONSUMER_GROUP_HEARTBEAT

_LEAVE = -1


def bury(bootstrap_servers: str, group: str, client_id: str) -> None:
    """The group is without the members of that client id when this returns."""
    asyncio.run(_bury(bootstrap_servers, group, client_id))


async def _bury(bootstrap_servers: str, group: str, client_id: str) -> None:
    async with AsyncAdmin(bootstrap_servers=bootstrap_servers) as admin:

        async def attempt() -> None:
            found = await admin.describe_group(group)
            node = await admin._coordinator(group)
            for member in found.members if found is not None else ():
                if member.client_id == client_id:
                    assert found is not None
                    farewell = _farewell(found.listing.kind, group, member.member_id)
                    await admin._client.call(node, farewell.api, farewell.fields)

        await admin._timed(f"the burial of {client_id}", attempt)


def _farewell(kind: str, group: str, member_id: str) -> Send:
    """As the dead one would have said it."""
    settings = GroupSettings(group)
    if kind == "classic":
        return leave_request(settings, member_id, "it died")
    fields = {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": _LEAVE,
        "instance_id": None,
        "rebalance_timeout": -1,
        "topic_partitions": None,
    }
    return Send(CONSUMER_GROUP_HEARTBEAT, fields, settings.request_timeout)
