"""`headrace groups reset`: moves the offsets of a group that has no members."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from .._machines.admin.reset_target import reset_target
from ..admin import OffsetChange, ResetPlan
from ..errors import HeadraceError, KafkaError, PartialFailureError
from ..types import TopicPartition
from .changes import change_options, check_change_options, may_change
from .commands import command
from .connection_options import Settings, client_settings, cluster_options, format_option, with_cluster
from .formatting import document, printable, table
from .groups_shared import group_option, no_such_group, shown_ranges


@command(
    epilog="""\b
TO is one of:
  earliest, latest
  120                                 this offset
  +100, -100                          so many records later, or earlier
  @2026-11-17T10:00:00Z               the first record since this time; also
  @1763373600000, -1h                 milliseconds since 1970, the last hour

\b
Examples:
  headrace groups reset -g billing --to earliest
  headrace groups reset -g billing -t orders:0,3 --to -1h --dry-run
  headrace groups reset -g billing -t orders --to @2026-11-17T10:00:00Z --yes
"""
)
@group_option(help="The group. It must have no members.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITIONS]",
    help="Only this topic, or these of its partitions. May be repeated.  [default: all that the group has committed]",
)
@click.option("--to", required=True, metavar="TO", help="Where to resume.")
@click.option(
    "--backlog",
    type=click.Choice(["keep", "drop"]),
    help="Earlier records that the group has not processed yet (KIP-333): deliver them, or skip them.",
)
@click.option("--create", is_flag=True, help="Set offsets for a group that does not exist yet. Needs -t.")
@change_options
@format_option()
@cluster_options
def reset(
    settings: Settings,
    timeout: float,
    group: str,
    topics: tuple[str, ...],
    to: str,
    backlog: str | None,
    create: bool,
    yes: bool,
    dry_run: bool,
    form: str,
) -> None:
    """Reset the offsets of a group. Shows the changes first. In a terminal it then asks, elsewhere it changes nothing
    without --yes."""
    check_change_options(yes, dry_run)
    chosen = [each for text in topics for each in parse_topic(text)] or None
    if create and chosen is None:
        raise click.UsageError("--create needs -t")
    reset_target(to, time.time())  # raises if it is invalid
    asking = client_settings(with_cluster(settings), timeout)
    _reset(asking, group, to, chosen, backlog, create, yes, dry_run, form)


def parse_topic(text: str) -> list[str | TopicPartition]:
    """`orders`, `orders:0` or `orders:0,2-4`. Raises BadParameter."""
    topic, colon, partitions = text.partition(":")
    if not colon:
        return [topic]
    found: list[str | TopicPartition] = []
    for part in partitions.split(","):
        bounds = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        first, last = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (1, 0)
        if not first <= last < first + 1_000_000:
            raise click.BadParameter(f"{text!r} is not TOPIC, TOPIC:0 or TOPIC:0,2-4", param_hint="-t / --topic")
        found += [TopicPartition(topic, number) for number in range(first, last + 1)]
    return found


def _reset(
    settings: Settings,
    group: str,
    to: str,
    chosen: list[str | TopicPartition] | None,
    backlog: str | None,
    create: bool,
    yes: bool,
    dry_run: bool,
    form: str,
) -> None:
    from ..sync.admin import Admin  # an event loop would take the first Ctrl-C from the question

    with Admin(settings) as admin:
        try:
            plan = admin.plan_reset(group, to, topics=chosen, backlog=backlog, create=create)
        except KafkaError as error:
            if error.name == "GROUP_ID_NOT_FOUND":
                raise HeadraceError(f"{no_such_group(group)}; --create sets offsets for a new one") from error
            raise
        if form == "table":
            click.echo(shown(plan))
        failed: PartialFailureError | None = None
        is_applied = False
        try:
            if plan.needs_decision:
                raise HeadraceError(f"{_undecided(plan)}. Nothing was changed")
            if may_change(f"Set {_offsets(plan)} of group {group}?", yes, dry_run, form):
                try:
                    admin.apply_reset(plan)
                except PartialFailureError as error:
                    failed = error
                    raise
                is_applied = True
        finally:
            if form == "json":
                click.echo(document(_report(plan, is_applied, failed)))
        if is_applied and form == "table":
            click.echo(printable(f"set {_offsets(plan)} of group {group}"))


def _offsets(plan: ResetPlan) -> str:
    count = len(plan.commits)
    return f"{count} offset{'' if count == 1 else 's'}"


def _undecided(plan: ResetPlan) -> str:
    count = sum(each.open_records for each in plan.changes)
    return (
        f"group {plan.group!r} has not processed {count} records below the new offsets. Choose --backlog keep, which "
        f"delivers them besides everything from the new offsets on, or --backlog drop, which skips them"
    )


def shown(plan: ResetPlan) -> str:
    columns: dict[str, list[object]] = {
        "topic": [each.partition.topic for each in plan.changes],
        "partition": [each.partition.partition for each in plan.changes],
        "current": [each.current for each in plan.changes],
        "new": [each.new for each in plan.changes],
        "change": [_signed(_change(plan, each)) for each in plan.changes],
        "open": [shown_ranges(each.open_ranges) for each in plan.changes],
        "note": [each.note for each in plan.changes],
    }
    kept = {head: cells for head, cells in columns.items() if head not in ("open", "note") or any(cells)}
    return table(list(kept), list(zip(*kept.values(), strict=True)))


def _signed(change: int | None) -> str | None:
    return None if change is None else f"{change:+,}" if change else "0"


def _change(plan: ResetPlan, each: OffsetChange) -> int | None:
    """Nothing for share groups: records after their start offset may be processed already."""
    return None if plan.kind == "share" else each.change


def _report(plan: ResetPlan, is_applied: bool, failed: PartialFailureError | None) -> dict[str, Any]:
    errors = failed.errors if failed else {}
    return {
        "group": plan.group,
        "kind": plan.kind,
        "applied": is_applied,
        "changes": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "current": each.current,
                "new": each.new,
                "change": _change(plan, each),
                "open_ranges": [list(found) for found in each.open_ranges],
                "committed": each.commit.offset if each.commit else None,
                "note": each.note or None,
                "error": str(errors[each.partition]) if each.partition in errors else None,
            }
            for each in plan.changes
        ],
    }
