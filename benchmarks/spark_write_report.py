"""The report about the Spark sink."""

from __future__ import annotations

from collections.abc import Mapping

from .markdown import NONE, count, markdown_table, number, verdict
from .results import Figure, Target, ratio
from .spark_peer import VERSION
from .spark_writing import SINKS, SparkWritings

TIMES = 1.5
EXACTLY_ONCE_TIMES = 0.8
_EXACTLY_ONCE = "headrace, exactlyOnce"


def sections(found: SparkWritings) -> list[str]:
    if found.missing:
        return [f"## Writing with Spark\n\nNot measured: {found.missing}."]
    rows = [_row(name, sinks, sink) for name, sinks in found.writes.items() for sink in SINKS if sink in sinks]
    reasons = [
        f"- {name}, {sink}: {figure}"
        for name, sinks in found.writes.items()
        for sink, figure in sinks.items()
        if isinstance(figure, str)
    ]
    targets = [target for name, sinks in found.writes.items() for target in _targets(name, sinks)]
    records = ", ".join(f"{number_of:,} ({name})" for name, number_of in found.records.items())
    return [
        "\n\n".join(
            [
                "## Writing with Spark",
                f'Rows per second of batch writes with `format("kafka")` and `format("headrace")` in one session of '
                f"PySpark {VERSION}, `local[2]`, in turns after a warm-up; medians of {found.rounds}. At "
                f"least {records} rows, in four tasks, `acks=all` and `linger.ms=5`. *noop* writes nothing: it shows "
                "the cost of the rows themselves. A write is timed from `save()` to its end, including planning. CPU "
                "is that of the JVM and its Python workers, in seconds per million rows.",
                markdown_table(("write", "rows/s", "× Spark's own", "CPU", "peak MB of a worker"), rows),
                *(["\n".join(reasons)] if reasons else []),
                "\n".join(["Targets:", "", *(f"- {verdict(target)}" for target in targets)]),
            ]
        )
    ]


def _row(name: str, sinks: Mapping[str, Figure], sink: str) -> list[str]:
    figure = sinks[sink]
    if isinstance(figure, str):
        return [f"{name}, {sink}", figure.partition(":")[0]]
    peak = figure.get("worker_peak_mb")
    return [
        f"{name}, {sink}",
        count(figure["rate"]),
        number(ratio(figure["rate"], _rate(sinks, "kafka"))),
        number(figure["cpu"]),
        NONE if peak is None else number(peak),
    ]


def _targets(name: str, sinks: Mapping[str, Figure]) -> list[Target]:
    ours = _rate(sinks, "headrace")
    return [
        Target(f"{name}, × Spark's own", ratio(ours, _rate(sinks, "kafka")), TIMES),
        Target(f"{name}, exactlyOnce, × at least once", ratio(_rate(sinks, _EXACTLY_ONCE), ours), EXACTLY_ONCE_TIMES),
    ]


def _rate(sinks: Mapping[str, Figure], sink: str) -> float | None:
    figure = sinks.get(sink, "")
    return None if isinstance(figure, str) else figure["rate"]
