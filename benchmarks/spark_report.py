"""The report about the Spark source."""

from __future__ import annotations

from collections.abc import Mapping

from .markdown import NONE, count, markdown_table, number, verdict
from .results import Figure, Target, ratio
from .spark import LATENCY_RATE, Sparks
from .spark_peer import VERSION

_TIMES = 3.0


def sections(found: Sparks) -> list[str]:
    if found.missing:
        return [f"## Spark\n\nNot measured: {found.missing}."]
    return [_rates(found), _latencies(found)]


def _rates(found: Sparks) -> str:
    head = (
        "query",
        "`kafka`, rows/s",
        "`headrace`, rows/s",
        "×",
        "`kafka`, CPU",
        "`headrace`, CPU",
        "peak MB of a worker",
    )
    rows = [
        *(_row(f"batch, {name}", figures) for name, figures in found.batches.items()),
        *(_row(f"stream, {name}, noop", figures) for name, figures in found.streams.items()),
        *(_row(f"batch, 100B, noop, {n:,} partitions", figures) for n, figures in found.partitions.items()),
    ]
    targets = [
        *(Target(f"batch, {name}, × Spark's connector", _times(each), _TIMES) for name, each in found.batches.items()),
        *(Target(f"stream, {name}, × Spark's connector", _times(each), _TIMES) for name, each in found.streams.items()),
    ]
    return "\n\n".join(
        [
            "## Spark",
            f'Rows per second of `format("kafka")` and `format("headrace")` in one session of PySpark {VERSION}, '
            f"`local[2]`, in turns; medians of {found.rounds}. *agg* counts the rows and sums the lengths of values, "
            "*noop* reads all columns and drops them. A batch query is timed from the action to its end, including "
            "planning, after a warm-up; a stream reads in five batches, the first of which is not counted. CPU is that "
            "of the JVM and its Python workers, in seconds per million rows. The JVM has 2 GB of heap; only headrace "
            "has Python workers.",
            markdown_table(head, rows),
            "\n".join(["Targets:", "", *(f"- {verdict(target)}" for target in targets)]),
        ]
    )


def _row(name: str, figures: Mapping[str, Figure]) -> list[str]:
    ours = figures["headrace"]
    memory = NONE if isinstance(ours, str) else number(ours.get("worker_peak_mb"))
    rates, cpu = ([_shown(figures[source], key) for source in ("kafka", "headrace")] for key in ("rate", "cpu"))
    return [name, *rates, number(_times(figures)), *cpu, memory]


def _shown(figure: Figure, key: str) -> str:
    if isinstance(figure, str):
        return figure
    return count(figure[key]) if key == "rate" else number(figure[key])


def _times(figures: Mapping[str, Figure]) -> float | None:
    ours, theirs = figures["headrace"], figures["kafka"]
    return None if isinstance(ours, str) or isinstance(theirs, str) else ratio(ours["rate"], theirs["rate"])


def _latencies(found: Sparks) -> str:
    rows = [
        [f"`{source}`", *([figure] if isinstance(figure, str) else [number(figure[k]) for k in ("p50", "p95")])]
        for source, figure in found.latencies.items()
    ]
    ours, theirs = found.latencies["headrace"], found.latencies["kafka"]
    compared = {
        k: None if isinstance(ours, str) or isinstance(theirs, str) else ratio(ours[k], theirs[k])
        for k in ("p50", "p95")
    }
    targets = [Target(f"latency, {k}, × Spark's connector", times, 1.05, at_most=True) for k, times in compared.items()]
    return "\n\n".join(
        [
            "## Latency of a stream in Spark",
            f"Milliseconds from the timestamp of a record until `foreachBatch` has it in the driver; {LATENCY_RATE} "
            "records per second, each batch as soon as the previous one is done.",
            markdown_table(("source", "p50", "p95"), rows),
            "\n".join(["Targets:", "", *(f"- {verdict(target)}" for target in targets)]),
        ]
    )
