"""`headrace topics`: lists, describes, creates and deletes topics."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from ..errors import HeadraceError, KafkaError
from .changes import change_options, check_change_options, may_change
from .commands import command
from .connection_options import (
    Settings,
    client_settings,
    cluster_options,
    format_option,
    names_and_values,
    with_cluster,
)
from .formatting import document, printable, table
from .option_types import WholeNumber


@command(
    epilog="""\b
Examples:
  headrace topics                              all topics
  headrace topics -t orders                    its partitions
  headrace topics --create -t orders -p 6      a topic with six partitions
  headrace topics --create -t orders -c retention.ms=3600000
  headrace topics --delete -t orders           asks first; elsewhere than in a terminal, it needs --yes
"""
)
@click.option(
    "-t",
    "--topic",
    "names",
    multiple=True,
    metavar="TOPIC",
    help="Only this topic, with its partitions. May be repeated.",
)
@click.option("--create", is_flag=True, help="Create the topics named by -t.")
@click.option("--delete", is_flag=True, help="Delete the topics named by -t.")
@click.option(
    "-p",
    "--partitions",
    type=WholeNumber(1),
    help="With --create: number of partitions.  [default: the brokers']",
)
@click.option(
    "-r",
    "--replication",
    type=WholeNumber(1),
    help="With --create: number of replicas.  [default: the brokers']",
)
@click.option(
    "-c", "--topic-config", multiple=True, metavar="NAME=VALUE", help="With --create: a setting of the topic."
)
@click.option("--internal", is_flag=True, help="List Kafka's own topics too.")
@change_options
@format_option()
@cluster_options
def topics(
    settings: Settings,
    timeout: float,
    names: tuple[str, ...],
    create: bool,
    delete: bool,
    partitions: int | None,
    replication: int | None,
    topic_config: tuple[str, ...],
    internal: bool,
    yes: bool,
    dry_run: bool,
    form: str,
) -> None:
    """List, describe, create and delete topics. Before it deletes, it asks in a terminal; elsewhere it changes nothing
    without --yes."""
    if create and delete:
        raise click.UsageError("--create and --delete cannot be combined")
    check_change_options(yes, dry_run)
    if (yes or dry_run) and not delete:
        raise click.UsageError("--yes and --dry-run need --delete")
    if (create or delete) and not names:
        raise click.UsageError("name the topic with -t")
    if not create and (partitions or replication or topic_config):
        raise click.UsageError("-p, -r and -c need --create")
    asking = client_settings(with_cluster(settings), timeout)
    if create:
        chosen = names_and_values(topic_config, "-c")
        asyncio.run(_create(asking, names, partitions or -1, replication or -1, chosen, form))
    elif delete:
        _delete(asking, tuple(dict.fromkeys(names)), yes, dry_run, form)
    else:
        found = asyncio.run(_describe(asking, names, internal))
        click.echo(document(found) if form == "json" else _shown(found, bool(names)))


async def _create(
    settings: Settings,
    names: tuple[str, ...],
    partitions: int,
    replication: int,
    chosen: dict[str, str],
    form: str,
) -> None:
    from .._aio.admin import AsyncAdmin

    async with AsyncAdmin(settings) as admin:
        for name in names:
            await admin.create_topic(name, partitions, replication, chosen)
            click.echo(json.dumps({"created": name}) if form == "json" else printable(f"created {name}"))


def _delete(settings: Settings, names: tuple[str, ...], yes: bool, dry_run: bool, form: str) -> None:
    from ..sync.admin import Admin  # an event loop would take the first Ctrl-C from the question

    found = asyncio.run(_describe(settings, names, internal=True))
    if form == "table":
        click.echo(_shown(found, in_detail=False))
    subject = f"topic {names[0]}" if len(names) == 1 else f"{len(names)} topics"
    if not may_change(f"Delete {subject} with all records?", yes, dry_run, form):
        return
    with Admin(settings) as admin:
        for name in names:
            try:
                admin.delete_topic(name)
            except KafkaError as error:
                if error.name == "UNKNOWN_TOPIC_OR_PARTITION":
                    raise no_such_topic(name) from error
                raise
            click.echo(json.dumps({"deleted": name}) if form == "json" else printable(f"deleted {name}"))


def no_such_topic(name: str) -> HeadraceError:
    return HeadraceError(f"there is no topic {name!r}: `headrace topics` lists those that exist")


async def _describe(settings: Settings, names: tuple[str, ...], internal: bool) -> list[dict[str, Any]]:
    """The topics with their partitions: leader, replicas, and first and end offset."""
    from .._aio.admin import AsyncAdmin
    from ..types import TopicPartition

    async with AsyncAdmin(settings) as admin:
        found = await admin.topics(names or None)
        if missing := sorted(set(names) - set(found)):
            raise no_such_topic(missing[0])
        chosen = [topic for topic in found.values() if names or internal or not topic.internal]
        tps = [
            TopicPartition(each.topic, each.partition) for topic in chosen for each in topic.partitions if each.leader
        ]
        bounds = await admin.bounds(tps)
    described = []
    for topic in chosen:
        partitions = []
        for each in topic.partitions:
            log = bounds.get(TopicPartition(each.topic, each.partition))
            partitions.append(
                {
                    "partition": each.partition,
                    "leader": each.leader.id if each.leader else None,
                    "replicas": list(each.replicas),
                    "in_sync": list(each.in_sync_replicas),
                    "first": log.low if log else None,
                    "end": log.high if log else None,
                }
            )
        described.append({"topic": topic.name, "internal": topic.internal, "partitions": partitions})
    return described


def _shown(found: list[dict[str, Any]], in_detail: bool) -> str:
    if in_detail:
        heads = ("topic", "partition", "leader", "replicas", "in sync", "first", "end", "records")
        return table(
            heads,
            [
                (
                    topic["topic"],
                    each["partition"],
                    "none" if each["leader"] is None else each["leader"],
                    ",".join(map(str, each["replicas"])),
                    ",".join(map(str, each["in_sync"])),
                    each["first"],
                    each["end"],
                    None if each["end"] is None else each["end"] - each["first"],
                )
                for topic in found
                for each in topic["partitions"]
            ],
        )
    if not found:
        return "no topics"
    rows = []
    for topic in found:
        partitions = topic["partitions"]
        short = sum(set(each["in_sync"]) < set(each["replicas"]) or each["leader"] is None for each in partitions)
        records = sum(each["end"] - each["first"] for each in partitions if each["end"] is not None)
        rows.append(
            (topic["topic"], len(partitions), max(len(each["replicas"]) for each in partitions), records, short)
        )
    return table(("topic", "partitions", "replicas", "records", "under-replicated"), rows)
