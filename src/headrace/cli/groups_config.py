"""`headrace groups config`: shows and changes the settings of a group that brokers keep."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from .commands import command
from .connection_options import (
    Settings,
    client_settings,
    cluster_options,
    format_option,
    names_and_values,
    with_cluster,
)
from .formatting import document, table
from .groups_shared import group_option

_PREFIXES = {"share": "share.", "streams": "streams.", "consumer": "consumer.", "classic": "consumer."}


@command(
    short_help="Show or change settings of a group.",
    epilog="""\b
Examples:
  headrace groups config -g mails
  headrace groups config -g mails --set share.auto.offset.reset=earliest
  headrace groups config -g mails --set share.record.lock.duration.ms=60000
  headrace groups config -g mails --unset share.record.lock.duration.ms
""",
)
@group_option(help="The group. It need not exist yet.")
@click.option("--set", "chosen", multiple=True, metavar="NAME=VALUE", help="A setting to change. May be repeated.")
@click.option("--unset", "removed", multiple=True, metavar="NAME", help="A setting to reset to the brokers' default.")
@format_option()
@cluster_options
def config(
    settings: Settings, timeout: float, group: str, chosen: tuple[str, ...], removed: tuple[str, ...], form: str
) -> None:
    """Show or change the settings of a group that brokers store: where a share group starts, how long its locks last,
    how often a record is delivered."""
    changes: dict[str, str | None] = {**names_and_values(chosen, "--set")}
    if both := sorted(changes.keys() & set(removed)):
        raise click.UsageError(f"--set and --unset of {both[0]} cannot be combined")
    changes |= dict.fromkeys(removed)
    found = asyncio.run(_config(client_settings(with_cluster(settings), timeout), group, changes))
    if form == "json":
        click.echo(document(found))
    else:
        rows = [(each["name"], each["value"], "the brokers" if each["default"] else "the group") for each in found]
        click.echo(table(("setting", "value", "set by"), rows))


async def _config(settings: Settings, group: str, changes: dict[str, str | None]) -> list[dict[str, Any]]:
    from .._aio.admin import AsyncAdmin

    async with AsyncAdmin(settings) as admin:
        if changes:
            await admin.alter_group_config(group, changes)
        found = await admin.group_config(group)
        described = await admin.describe_group(group)
    prefix = "" if described is None else _PREFIXES.get(described.listing.kind, "")
    return [
        {"name": each.name, "value": each.value, "default": each.is_default}
        for each in found.values()
        if each.name.startswith(prefix) or not each.is_default
    ]
