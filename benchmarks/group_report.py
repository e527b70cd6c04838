"""The report about groups."""

from __future__ import annotations

from collections.abc import Mapping

from . import consumption, crowds, joining, rebalancing, wide_topics
from .groups import Groups
from .markdown import count, markdown_table, number, verdict
from .results import Figures, Outcome, Target, ratio, summarize

_OF_ASSIGNED = 0.95


def sections(found: Groups) -> list[str]:
    return [
        _consumption(found.consumption),
        _first_records(found.first_records),
        _wide_topics(found.wide_topics),
        _rebalances(found.rebalances),
        _crowds(found.crowds),
    ]


def _consumption(styles: Mapping[str, Mapping[str, Outcome]]) -> str:
    head = ("reader", "records/s", "slowest – fastest", "CPU s / M records", "× assigned")
    rows, targets, failures = [], [], []
    for style, outcomes in styles.items():
        assigned = summarize(outcomes[""].measurements)
        for way, outcome in outcomes.items():
            name = f"{consumption.STYLES[style]}, {consumption.WAYS[way]}"
            failures += [f"- {name} failed: {line}" for line in outcome.failures]
            summary = summarize(outcome.measurements)
            share = ratio(summary.rate, assigned.rate) if summary and assigned else None
            if way:
                targets.append(Target(f"{name}, × assigned", share, _OF_ASSIGNED))
            if summary is None:
                rows.append([name, "failed"])
                continue
            extremes = f"{count(summary.slowest)} – {count(summary.fastest)}"
            rows.append([name, count(summary.rate), extremes, f"{summary.cpu_per_million:.2f}", number(share)])
    return "\n\n".join(
        [
            "## In a group and by assignment",
            "This table compares headrace as the only member of a group, with `subscribe()`, default settings and "
            "auto-commit, with headrace and `assign()`, on the topic of the first table. Time starts when the first "
            "poll with records returns, so it excludes joining.",
            markdown_table(head, rows),
            *(["\n".join(failures)] if failures else []),
            "\n".join(["Targets:", "", *(f"- {verdict(target)}" for target in targets)]),
        ]
    )


def _first_records(clients: Mapping[str, Figures]) -> str:
    columns = [(protocol, key) for protocol in joining.PROTOCOLS for key in ("first", "later", "slowest")]
    return "\n\n".join(
        [
            "## From subscribe() to the first record",
            f"Milliseconds from `subscribe()` until the poll with the first record returns, for a new consumer in a "
            f"new group on a topic of {joining.PARTITIONS} partitions. *First* is the first consumer of a process, "
            f"including imports and compilation that happen once, without the start of Python or the JVM. *Later* is "
            f"the median of {joining.SAMPLES - 1} more in the same process, *slowest* the slowest of them. The broker "
            "has `group.initial.rebalance.delay.ms=0`: with Kafka's default, the first member of a classic group "
            "waits three more seconds with every client.",
            markdown_table(
                ("client", *(f"{joining.PROTOCOLS[protocol]}, {key}" for protocol, key in columns)),
                [[client, *_cells(figures, columns)] for client, figures in clients.items()],
            ),
        ]
    )


def _wide_topics(clients: Mapping[str, Figures]) -> str:
    columns = [(protocol, key) for protocol in joining.PROTOCOLS for key in ("first", "later", "slowest")]
    return "\n\n".join(
        [
            f"## The first record of {wide_topics.PARTITIONS:,} partitions",
            "Milliseconds from before the import of the library until the poll with the first record returns: one "
            f"process and one new group for each of {wide_topics.SAMPLES} samples, and a new broker for each client. "
            "*First* of the first protocol includes what the broker creates and compiles once, *later* is the median "
            "of the others.",
            markdown_table(
                ("client", *(f"{joining.PROTOCOLS[protocol]}, {key}" for protocol, key in columns)),
                [[client, *_cells(figures, columns)] for client, figures in clients.items()],
            ),
        ]
    )


def _crowds(clients: Mapping[str, Figures]) -> str:
    keys = {"stable": "stable after, s", "idle": "idle, % of a core", "memory": "memory, MB", "close": "closed in, s"}
    rows = [
        [
            f"{client}, {joining.PROTOCOLS[protocol]}, {size}",
            *_cells(clients[client], [(f"{protocol} {size}", key) for key in keys]),
        ]
        for protocol in joining.PROTOCOLS
        for size in crowds.SIZES
        for client in clients
    ]
    return "\n\n".join(
        [
            "## Many consumers in one process",
            f"A group of 1 to {max(crowds.SIZES)} consumers, each with a thread that polls, on a topic of "
            f"{crowds.PARTITIONS} partitions without records and with default settings: seconds from the first "
            "`subscribe()` until all partitions are owned once and evenly; then the CPU time of the idle process, its "
            "memory, and the seconds until all are closed.",
            markdown_table(("client, protocol, consumers", *keys.values()), rows),
        ]
    )


def _rebalances(clients: Mapping[str, Figures]) -> str:
    protocols = {"classic": rebalancing.STRATEGY, "consumer": "KIP-848"}
    columns = [(size, change) for size in rebalancing.SIZES for change in ("join", "close")]
    rows = [
        [
            f"{rebalancing.NAMES.get(client, client)}, {name}",
            *_cells(figures, [(f"{protocol} {size}", change) for size, change in columns]),
        ]
        for protocol, name in protocols.items()
        for client, figures in clients.items()
    ]
    return "\n\n".join(
        [
            "## Rebalance duration",
            f"Milliseconds from `subscribe()` of one more member, and from its `close()`, until all "
            f"{rebalancing.PARTITIONS} partitions are owned once and evenly, according to the members' listeners: the "
            f"median of {rebalancing.ROUNDS} rounds, by the number of members before the join and after the close. "
            f"Members are threads of one process and send heartbeats every {rebalancing.HEARTBEAT_MS} ms. They learn "
            "about a rebalance from their next heartbeat. Members of headrace in one process notify each other, so "
            "that the others send this heartbeat at once; *members apart* do not, as if each ran in a separate "
            "process. In a classic group, all members must have rejoined before any gets a partition, and partitions "
            "that change owners move in a second rebalance.",
            markdown_table(("client", *(f"{size}, {change}" for size, change in columns)), rows),
        ]
    )


def _cells(figures: Figures, columns: list[tuple[str, str]]) -> list[str]:
    cells = []
    for group, key in columns:
        figure = figures.get(group, {})
        cells.append(figure if isinstance(figure, str) else number(figure.get(key)))
    return cells
