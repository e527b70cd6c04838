"""`headrace groups delete`: deletes groups that have no members, or their offsets of some topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .._machines.admin.deletion import deletion_warning
from ..errors import HeadraceError
from ..types import OffsetAndMetadata, TopicPartition
from .changes import change_options, check_change_options, may_change
from .commands import command
from .connection_options import Settings, client_settings, cluster_options, format_option, with_cluster
from .formatting import document, printable, say, table
from .groups_shared import no_such_group

if TYPE_CHECKING:
    from ..sync.admin import Admin


@command(
    epilog="""\b
Examples:
  headrace groups delete -g billing
  headrace groups delete -g billing -t old-orders --yes      only the offsets of a topic
"""
)
@click.option(
    "-g", "--group", "names", multiple=True, required=True, metavar="GROUP", help="The group. May be repeated."
)
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="Only the offsets of this topic.")
@change_options
@format_option()
@cluster_options
def delete(
    settings: Settings,
    timeout: float,
    names: tuple[str, ...],
    topics: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    form: str,
) -> None:
    """Delete groups of any kind with their offsets. In a terminal it asks, elsewhere it changes nothing without
    --yes."""
    check_change_options(yes, dry_run)
    asking = client_settings(with_cluster(settings), timeout)
    _delete(asking, tuple(dict.fromkeys(names)), topics, yes, dry_run, form)


def _delete(
    settings: Settings,
    names: tuple[str, ...],
    topics: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    form: str,
) -> None:
    from ..sync.admin import Admin  # an event loop would take the first Ctrl-C from the question

    with Admin(settings) as admin:
        found = [_described(admin, name, topics) for name in names]
        if form == "table":
            rows = [(each["group"], each["kind"], each["state"], len(each["offsets"])) for each in found]
            click.echo(table(("group", "kind", "state", "offsets"), rows))
            for each in found:
                if each["note"]:
                    say(f"{each['group']} {each['note']}")
        subject = f"group {names[0]}" if len(names) == 1 else f"{len(names)} groups"
        of_topics = f"the offsets of {', '.join(topics)} in " if topics else ""
        deleted: list[str] = []
        try:
            if may_change(f"Delete {of_topics}{subject}?", yes, dry_run, form):
                for each in found:
                    deleted += _delete_one(admin, each, topics)
        finally:
            if form == "json":
                click.echo(document({"groups": [_shown(each) for each in found], "deleted": deleted}))
            else:
                for name in deleted:
                    click.echo(printable(f"deleted {of_topics}{name}"))


def _described(admin: Admin, name: str, topics: tuple[str, ...]) -> dict[str, Any]:
    described = admin.describe_group(name)
    if described is None:
        raise no_such_group(name)
    is_share = described.listing.kind == "share"
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    if is_share:
        offsets = {tp: OffsetAndMetadata(it.start) for tp, it in (admin.share_offsets(name)).items()}
    else:
        offsets = admin.committed(name)
    if missing := sorted(set(topics) - {tp.topic for tp in offsets}):
        raise HeadraceError(f"group {name!r} has no offsets of topic {missing[0]!r}")
    offsets = {tp: it for tp, it in offsets.items() if not topics or tp.topic in topics}
    return {
        "group": name,
        "kind": described.listing.kind,
        "state": described.listing.state,
        "offsets": offsets,
        "note": deletion_warning(offsets.values()),
    }


def _delete_one(admin: Admin, each: dict[str, Any], topics: tuple[str, ...]) -> tuple[str, ...]:
    name: str = each["group"]
    if not topics:
        return admin.delete_group(name)
    if each["kind"] == "share":
        admin.delete_share_offsets(name, topics)
    else:
        admin.delete_offsets(name, list(each["offsets"]))
    return (name,)


def _shown(each: dict[str, Any]) -> dict[str, Any]:
    offsets = [
        {"topic": tp.topic, "partition": tp.partition, "offset": it.offset} for tp, it in each["offsets"].items()
    ]
    return {**each, "offsets": offsets, "note": each["note"] or None}
