"""The report about writing."""

from __future__ import annotations

from collections.abc import Mapping

from . import write_contenders as who
from .datasets import PARTITIONS
from .latency import RECORD_BYTES
from .markdown import NONE, count, markdown_table, number, verdict
from .results import Figure, ratio
from .write_latency import CLIENTS
from .write_results import WriteTable, Writings, latency_targets, limited_by, targets
from .writing import LATENCY_RECORDS, LATENCY_ROUNDS

_HEAD = (
    *("writer", "records/s", "slowest – fastest", "MB/s", "CPU s / M records", "broker's CPU s / M records"),
    *("growth MB", "× confluent", "× Java", "% of limit", "limited by"),
)


def sections(found: Writings) -> list[str]:
    return [_method(found), *(_table(table) for table in found.tables), _latencies(found), _writers(found)]


def _method(found: Writings) -> str:
    batch, buffer = f"{who.TUNED.batch_bytes // 1024} KiB", f"{who.TUNED.buffer_bytes // 2**20} MiB"
    return f"""\
## Writing

Records per second of producers that send the same JSON lines, without keys, to {PARTITIONS} partitions; medians of
{found.rounds} rounds, in which the writers took turns, each in a new process and with a new topic.

- **Settings**: `acks=all`, idempotence and `linger.ms=5`, and otherwise each client's defaults. There are two tables
  for each size and codec: one with each client's default sizes of batches and buffers, and one with batches of {batch}
  and buffers of {buffer} for all clients that have these settings. librdkafka's default batches have 1 MB, those
  of the other clients 16 KiB. The level of zstd is each client's default.
- **Time** runs from just before the first record until all of them are acknowledged. One more record is sent and
  acknowledged before, so that connections, metadata and the producer id are not in it, nor are starting the process
  and loading the lines. After each run, the records in the topic are counted.
- **CPU** is user and system time of all threads of the client in that time; the broker's is beside it.
- **Growth** is how far the peak of the process's memory is above its size before the first record, in millions of
  bytes: the highest of all runs.
- **× confluent** compares with the fastest row of confluent-kafka.
- **The limit** is the fastest row of that name with batches of the client's size: batches that were encoded beforehand,
  and sent without a client.
- **Limited by**: *the broker*, for rows of at least 80% of the limit; *processors*, if client and broker together keep
  at least 90% of them busy, with the one that needs more; *one thread of the client*, if the client keeps 90% of one
  processor busy; otherwise *waiting*, for responses or for processors that other programs use."""


def _table(table: WriteTable) -> str:
    rows = [_row(table, writer) for writer in who.WRITERS if writer.name in table.outcomes]
    failures = [
        f"- {name} failed {len(outcome.failures)} of {len(outcome.failures) + len(outcome.runs)} times: "
        f"{outcome.failures[-1]}"
        for name, outcome in table.outcomes.items()
        if outcome.failures
    ]
    return "\n\n".join(
        [
            f"### Writing {table.dataset.title}, {table.profile.name}",
            markdown_table(_HEAD, rows),
            *(["\n".join(failures)] if failures else []),
            "\n".join(["Targets:", "", *(f"- {verdict(target)}" for target in targets(table))]),
        ]
    )


def _row(table: WriteTable, writer: who.Writer) -> list[str]:
    outcome = table.outcome(writer)
    summary = outcome.summary
    if summary is None:
        return [writer.name, "skipped" if writer.missing else "failed"]
    share = ratio(summary.rate, table.limit_of(writer))
    return [
        writer.name,
        count(summary.rate),
        f"{count(summary.slowest)} – {count(summary.fastest)}",
        f"{summary.rate * table.dataset.value_bytes / 1e6:,.0f}",
        f"{summary.cpu_per_million:.2f}" + (" (whole process)" if summary.cpu_of_whole_process else ""),
        number(outcome.broker_cpu_per_million),
        number(outcome.grown_mb),
        number(ratio(summary.rate, table.fastest(who.CONFLUENTS))),
        number(ratio(summary.rate, table.rate(who.JAVA))),
        NONE if share is None else f"{share:.0%}",
        limited_by(table, writer),
    ]


def _latencies(found: Writings) -> str:
    rows = [_latency(client, figure) for client, figure in found.latencies.items()]
    return "\n\n".join(
        [
            "### Latency of one acknowledged record",
            f"Milliseconds from sending a record of {RECORD_BYTES} bytes until its acknowledgement has arrived "
            f"(`acks=all`, `linger.ms=0`, idempotence), one record at a time: {LATENCY_RECORDS:,} records a round, "
            f"medians of {LATENCY_ROUNDS} rounds after one that warms the broker up.",
            markdown_table(("client", "call", "mean", "p50", "p99"), rows),
            "\n".join(["Targets:", "", *(f"- {verdict(target)}" for target in latency_targets(found.latencies))]),
        ]
    )


def _latency(client: str, figure: Figure) -> list[str]:
    call = CLIENTS.get(client, "`send().get()`")
    values = [figure] if isinstance(figure, str) else [number(figure[name]) for name in ("mean", "p50", "p99")]
    return [client.replace("_", " "), call, *values]


def _writers(found: Writings) -> str:
    measured: Mapping[str, object] = {name: None for table in found.tables for name in table.outcomes}
    lines = [
        f"- **{writer.name}**: {writer.what}"
        + ("" if writer.share == 1 else f" It writes {writer.share:.0%} of the records.")
        for writer in who.WRITERS
        if writer.name in measured
    ]
    return "\n".join(["### Writers", "", *lines])
