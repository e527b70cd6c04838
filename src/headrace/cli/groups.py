"""`headrace groups`: lists and describes groups. Its subcommands change them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from ..errors import HeadraceError
from ..types import TopicPartition
from .commands import group
from .connection_options import Settings, client_settings, cluster_options, format_option, with_cluster
from .formatting import document, numbers, printable, records, say, table
from .groups_config import config
from .groups_delete import delete
from .groups_reset import reset
from .groups_shared import no_such_group as no_such_group
from .groups_shared import shown_ranges


@group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  headrace groups                               all groups
  headrace groups -g billing                    its members, their partitions, and open ranges
  headrace groups --format json
  headrace groups reset -g billing --to earliest
  headrace groups delete -g billing
  headrace groups config -g mails --set share.auto.offset.reset=earliest
""",
)
@click.option("-g", "--group", metavar="GROUP", help="Only this group, with its members.")
@format_option()
@cluster_options
@click.pass_context
def groups(context: click.Context, settings: Settings, timeout: float, group: str | None, form: str) -> None:
    """List groups of all kinds, describe one, or change it. `headrace lag` shows how far behind they are."""
    if context.invoked_subcommand is not None:
        _pass_on(context)
        return
    asking = client_settings(with_cluster(settings), timeout)
    if group is None:
        found = asyncio.run(_list(asking))
        shown = table(("group", "kind", "state"), [tuple(each.values()) for each in found]) if found else "no groups"
        click.echo(document(found) if form == "json" else shown)
        return
    described = asyncio.run(_describe(asking, group))
    click.echo(document(described) if form == "json" else _shown(described))


for command in (reset, delete, config):
    groups.add_command(command)


def _pass_on(context: click.Context) -> None:
    """Options before the name of a subcommand are its defaults."""
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    context.default_map = dict.fromkeys(groups.commands, given)


async def _list(settings: Settings) -> list[dict[str, Any]]:
    from .._aio.admin import AsyncAdmin

    async with AsyncAdmin(settings) as admin:
        return [{"group": it.group, "kind": it.kind, "state": it.state} for it in await admin.groups()]


async def _describe(settings: Settings, group: str) -> dict[str, Any]:
    from .._aio.admin import AsyncAdmin
    from .missing_subscriptions import missing_subscriptions

    async with AsyncAdmin(settings) as admin:
        found = await admin.describe_group(group)
        if found is None:
            raise no_such_group(group)
        missing = await missing_subscriptions(admin, found)
        ranges: dict[TopicPartition, tuple[tuple[int, int], ...]] | None = {}
        if found.listing.kind != "share":
            try:
                ranges = await admin.open_ranges(group)
            except HeadraceError as error:  # the members are shown nevertheless
                say(f"headrace: the open ranges are unknown: {error}")
                ranges = None
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
                "subscribed": sorted(member.topics),
                "pattern": member.pattern,
            }
        )
    listing = found.listing
    return {
        "group": listing.group,
        "kind": listing.kind,
        "state": listing.state,
        "assignor": found.assignor or None,
        "members": members,
        "missing": missing,
        "open_ranges": None
        if ranges is None
        else [
            {"topic": tp.topic, "partition": tp.partition, "ranges": [list(each) for each in found_here]}
            for tp, found_here in ranges.items()
        ],
    }


def _shown(group: dict[str, Any]) -> str:
    head = printable(f"{group['group']}: {group['kind']}, {group['state']}, {group['assignor'] or 'no assignor'}")
    members = "no members"
    if group["members"]:
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
        members = table(("client", "host", "instance", "partitions", "which", "member"), rows)
    return "\n".join([head, members, *map(printable, group["missing"]), *_open(group["open_ranges"] or [])])


def _open(partitions: Sequence[dict[str, Any]]) -> list[str]:
    counts = [sum(end - start for start, end in each["ranges"]) for each in partitions]
    if not counts:
        return []
    rows = [
        (each["topic"], each["partition"], count, shown_ranges(each["ranges"]))
        for each, count in zip(partitions, counts, strict=True)
    ]
    head = f"{records(sum(counts))} skipped so far, and still to be processed:"
    return [head, table(("topic", "partition", "open", "ranges"), rows)]
