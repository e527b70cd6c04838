"""The results as Markdown: for the terminal, and as a page of the documentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from . import (
    arrivals,
    formats,
    group_report,
    latency,
    polling,
    scaling_report,
    share_report,
    spark_formats_report,
    spark_report,
    spark_write_report,
    tls,
    write_report,
)
from . import contenders as who
from .datasets import BATCH_BYTES, LINGER_MS, PARTITIONS
from .groups import Groups
from .markdown import NONE, count, latency_table, markdown_table, number, verdict
from .plan import Effort
from .results import Figure, Figures, Table, poll_targets, ratio, targets
from .share_runs import Shares
from .spark import Sparks
from .spark_formats import SparkFormats
from .spark_writing import SparkWritings
from .write_results import Writings

_HEAD = (
    *("reader", "records/s", "slowest – fastest", "MB/s", "CPU s / M records", "peak MB"),
    *("× confluent", "× Java", "× franz-go", "% of limit"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Results:
    """All results of one run. Poll costs are in microseconds, latencies in milliseconds. A string instead of figures
    is the reason why there are none."""

    facts: Mapping[str, str]
    load_before: float
    command: str
    repeat: int
    tables: Sequence[Table]
    poll_costs: Mapping[str, Figure]
    latencies: Mapping[str, Figure]
    arrivals: Figures | None = None
    groups: Groups | None = None
    shares: Shares | None = None
    sparks: Sparks | None = None
    writings: Writings | None = None
    spark_writings: SparkWritings | None = None
    spark_formats: SparkFormats | None = None
    tls: dict[str, list[float]] | None = None
    formats: dict[str, list[float]] | None = None
    scaling: Mapping[str, Figures] | None = None
    plan: Mapping[str, Effort] = dataclasses.field(default_factory=dict)
    durations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Seconds by part."""


def results(found: Results) -> str:
    """The tables alone."""
    parts = [_dataset(table) for table in found.tables]
    if found.poll_costs:
        parts.append(_poll_costs(found.poll_costs))
    if found.latencies:
        parts.append(_latencies(found.latencies))
    if found.arrivals:
        parts.append(arrivals.section(found.arrivals))
    if found.groups:
        parts += group_report.sections(found.groups)
    if found.shares:
        parts += share_report.sections(found.shares)
    if found.scaling:
        parts.append(scaling_report.section(found.scaling))
    if found.sparks:
        parts += spark_report.sections(found.sparks)
    if found.tls:
        parts.append(tls.section(found.plan["tls"].records, found.plan["tls"].repeat, found.tls))
    if found.formats:
        parts.append(formats.section(found.plan["formats"].records, found.plan["formats"].repeat, found.formats))
    if found.spark_formats:
        parts += spark_formats_report.sections(found.spark_formats)
    if found.writings:
        parts += write_report.sections(found.writings)
    if found.spark_writings:
        parts += spark_write_report.sections(found.spark_writings)
    return "\n\n".join(parts)


def page(found: Results) -> str:
    """The whole page."""
    return "\n\n".join(["# Benchmarks", _method(found), results(found), _readers(found), _repeat(found)]) + "\n"


def _dataset(table: Table) -> str:
    delivered = table.dataset.records * table.dataset.value_bytes
    stored = f"{table.stored_bytes / 1e6:,.0f} MB in the broker's log"
    if table.dataset.codec != "none" and table.stored_bytes:
        stored += f" ({delivered / table.stored_bytes:.1f} : 1)"
    rows = [_row(table, contender) for contender in who.CONTENDERS if contender.name in table.outcomes]
    head: tuple[str, ...] = _HEAD
    if counts := _instructions(table):
        head, rows = (*head, "instructions / record"), [[*row, *counts.get(row[0], [])] for row in rows]
    verdicts = [f"- {verdict(target)}" for target in targets(table)]
    failures = [f"- {name} was {outcome.skipped}" for name, outcome in table.outcomes.items() if outcome.skipped]
    failures += [
        f"- {name} failed {len(outcome.failures)} of {len(outcome.failures) + len(outcome.measurements)} times: "
        f"{outcome.failures[-1]}"
        for name, outcome in table.outcomes.items()
        if outcome.failures
    ]
    parts = [f"## {table.dataset.title}", f"{stored}.", markdown_table(head, rows)]
    if failures:
        parts.append("\n".join(failures))
    return "\n\n".join([*parts, "\n".join(["Targets:", "", *verdicts])])


def _row(table: Table, contender: who.Contender) -> list[str]:
    summary = table.summary(contender)
    if summary is None:
        return [contender.name, "skipped" if table.outcomes[contender.name].skipped else "failed"]
    share = ratio(summary.rate, table.limit)
    return [
        contender.name,
        count(summary.rate),
        f"{count(summary.slowest)} – {count(summary.fastest)}",
        f"{summary.rate * table.dataset.value_bytes / 1e6:,.0f}",
        f"{summary.cpu_per_million:.2f}" + (" (whole process)" if summary.cpu_of_whole_process else ""),
        f"{summary.peak_mb:,.0f}",
        number(ratio(summary.rate, table.confluent)),
        number(ratio(summary.rate, table.rate(who.JAVA))),
        number(ratio(summary.rate, table.franz_go)),
        NONE if share is None else f"{share:.0%}",
    ]


def _instructions(table: Table) -> dict[str, list[str]]:
    """The cell of each contender; empty if nothing was counted."""
    summaries = {contender.name: table.summary(contender) for contender in who.CONTENDERS}
    return {
        name: [f"{summary.instructions_per_record:,.0f}"]
        for name, summary in summaries.items()
        if summary is not None and summary.instructions_per_record is not None
    }


def _poll_costs(costs: Mapping[str, Figure]) -> str:
    head = ("client", "poll", "poll, `len(value)` of each", "poll, Arrow table")
    rows = [
        [name, *([cost] if isinstance(cost, str) else [number(cost.get(k)) for k in ("poll", "values", "arrow")])]
        for name, cost in costs.items()
    ]
    return "\n\n".join(
        [
            "## Cost of a poll",
            f"Microseconds for {polling.RECORDS} records of 100 bytes that the client has already buffered: the "
            f"median of up to {polling.ROUNDS * polling.IN_A_ROW:,} polls.",
            markdown_table(head, rows),
            "\n".join(["Targets:", "", *(f"- {verdict(target)}" for target in poll_targets(costs, polling.MOST))]),
        ]
    )


def _latencies(figures: Mapping[str, Figure]) -> str:
    return "\n\n".join(
        [
            "## Latency of a single record",
            f"Milliseconds from `produce()` of a record of {latency.RECORD_BYTES} bytes, including its acknowledgement "
            "(`acks=all`), until the poll with the record returns; one record at a time. Java is Kafka's "
            "`EndToEndLatency` with Java's producer, which rounds percentiles down to whole milliseconds and polls "
            "with `fetch.max.wait.ms=0`; the others get their records from confluent-kafka's producer.",
            latency_table(figures),
        ]
    )


def _method(found: Results) -> str:
    facts = "\n".join(f"- {name}: {value}" for name, value in found.facts.items())
    return f"""\
All clients and the broker ran on one machine, with one topic for each table. The clients took turns in {found.repeat}
rounds, each time in a new process. Figures are medians. The load average was {found.load_before:.1f} before the start.

{facts}

How it was measured:

- **Records** are JSON lines, all of one size, without keys, in {PARTITIONS} partitions, written by Kafka's own
  producer (`batch.size={BATCH_BYTES}`, `linger.ms={LINGER_MS}`). The topic was read before the measurements, so all of
  it came from the page cache.
- **Time** starts just before a client may fetch, and ends when it has returned the last record. It excludes the start
  of the process, imports, connecting and metadata requests.
- **MB/s** are millions of bytes of uncompressed values per second.
- **CPU** is the user and system time of all threads of the reader in this time, in seconds per million records. It
  does not include the broker.
- **Peak memory** is the largest resident size of the whole process, including Python or the JVM, in millions of bytes:
  the highest of all runs.
- **Instructions** (with `--pin`, where `perf` can count) are those of the whole process in user mode, including its
  start.
- **× confluent** and **× franz-go** compare with the faster of the two rows of that name.
- **The limit** is the faster of the two rows of that name. It does not decompress, so with compression a client cannot
  reach it."""


def _readers(found: Results) -> str:
    measured = {name for table in found.tables for name in table.outcomes}
    lines = [
        f"- **{c.name}**: {c.what}" + ("" if c.share == 1 else f" It reads {c.share:.0%} of the records.")
        for c in who.CONTENDERS
        if c.name in measured
    ]
    return "\n".join(["## Readers", "", *lines])


def _repeat(found: Results) -> str:
    return f"""\
## Reproducing the results

```sh
make bench                                   # prints the tables
make bench ARGS="--write docs/benchmarks.md" # writes this page
make bench ARGS="--quick"                    # the same tables in about half an hour
make bench ARGS="--help"
```

`--quick` measures the same tables with fewer records and rounds. `--pin` reserves cores for the broker.

Use an otherwise idle machine. Figures depend on the machine, ratios less so. This command generated the page:

```sh
{found.command}
```

{_durations(found)}"""


def _durations(found: Results) -> str:
    each = ", ".join(f"{part} {seconds / 60:.1f}" for part, seconds in found.durations.items())
    return f"It took {sum(found.durations.values()) / 60:.0f} minutes: {each}."
