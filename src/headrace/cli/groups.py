"""`headrace groups`: lists groups and their members."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from ..errors import HeadraceError
from .connection_options import Settings, client_settings, cluster_options, format_option, with_cluster
from .formatting import document, numbers, printable, table


@click.command(
    epilog="""\b
Examples:
  headrace groups                    all groups
  headrace groups -g billing         its members and their partitions
  headrace groups --format json
"""
)
@click.option("-g", "--group", metavar="GROUP", help="Only this group, with its members.")
@format_option()
@cluster_options
def groups(settings: Settings, timeout: float, group: str | None, form: str) -> None:
    """List groups of all kinds, or the members of one. `headrace lag` shows how far behind they are."""
    asking = client_settings(with_cluster(settings), timeout)
    if group is None:
        found = asyncio.run(_list(asking))
        shown = table(("group", "kind", "state"), [tuple(each.values()) for each in found]) if found else "no groups"
        click.echo(document(found) if form == "json" else shown)
        return
    described = asyncio.run(_describe(asking, group))
    click.echo(document(described) if form == "json" else _shown(described))


async def _list(settings: Settings) -> list[dict[str, Any]]:
    from .._aio.admin import AsyncAdmin

    async with AsyncAdmin(settings) as admin:
        return [{"group": it.group, "kind": it.kind, "state": it.state} for it in await admin.groups()]


async def _describe(settings: Settings, group: str) -> dict[str, Any]:
    from .._aio.admin import AsyncAdmin

    async with AsyncAdmin(settings) as admin:
        found = await admin.describe_group(group)
    if found is None:
        raise no_such_group(group)
    members = []
    for member in sorted(found.members, key=lambda member: (member.client_id, member.member_id)):
        topics: dict[str, list[int]] = {}
        for tp in sorted(member.partitions):
            topics.setdefault(tp.topic, []).append(tp.partition)
        members.append(
            {
                "member": member.member_id,
                "client": member.client_id,
                "host": member.host.lstrip("/"),
                "instance": member.instance_id,
                "partitions": topics,
            }
        )
    listing = found.listing
    return {
        "group": listing.group,
        "kind": listing.kind,
        "state": listing.state,
        "assignor": found.assignor or None,
        "members": members,
    }


def no_such_group(name: str) -> HeadraceError:
    return HeadraceError(f"there is no group {name!r}: `headrace groups` lists those that exist")


def _shown(group: dict[str, Any]) -> str:
    head = printable(f"{group['group']}: {group['kind']}, {group['state']}, {group['assignor'] or 'no assignor'}")
    if not group["members"]:
        return f"{head}\nno members"
    rows = [
        (
            each["client"],
            each["host"],
            each["instance"],
            sum(map(len, each["partitions"].values())),
            " ".join(f"{topic}:{numbers(found)}" for topic, found in each["partitions"].items()),
            each["member"],
        )
        for each in group["members"]
    ]
    return head + "\n" + table(("client", "host", "instance", "partitions", "which", "member"), rows)
