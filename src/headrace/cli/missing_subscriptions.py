"""What the members of groups wait for in vain, for `headrace lag`, `groups` and `doctor`. It needs nothing but the core
of headrace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from .._aio.admin import AsyncAdmin, GroupDescription
from .._machines.missing_topics import may_match, similar_names
from ..errors import HeadraceError

_MOST_GROUPS = 100


async def missing_subscriptions(admin: AsyncAdmin, described: GroupDescription) -> list[str]:
    """The subscribed topics that do not exist, and the patterns that match nothing, as sentences."""
    names = frozenset[str]().union(*(member.topics for member in described.members))
    busy = {member.pattern for member in described.members if member.partitions}
    idle = {member.pattern for member in described.members if member.pattern is not None} - busy
    try:
        missing = names - (await admin.topics(names)).keys() if names else names
        everything = await admin.topics() if missing or idle else {}
    except HeadraceError:  # a right is missing: what may not be described may exist
        return []
    similar = similar_names(missing, [name for name, it in everything.items() if not it.internal])
    found = [
        f"Topic {name} is subscribed and does not exist"
        + (f" (did you mean {similar[name]}?)" if similar[name] else "")
        for name in sorted(missing)
    ]
    wrong = [pattern for pattern in idle if pattern is not None and not may_match(pattern, everything)]
    return found + [f"The pattern {pattern!r} is subscribed and matches no topic" for pattern in sorted(wrong)]


def all_missing_subscriptions(settings: Mapping[str, Any], timeout: float) -> dict[str, list[str]]:
    """By group. As far as they can be found within `timeout` seconds: of a cluster that does not answer, none."""

    async def look() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        try:
            async with asyncio.timeout(timeout), AsyncAdmin(settings) as admin:
                busy = [each for each in await admin.groups() if each.state not in ("Empty", "Dead")]
                for listing in busy[:_MOST_GROUPS]:
                    described = await admin.describe_group(listing.group)
                    if described is not None and (missing := await missing_subscriptions(admin, described)):
                        found[listing.group] = missing
        except (HeadraceError, TimeoutError):
            pass
        return found

    return asyncio.run(look())
