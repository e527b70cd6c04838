"""The report about typed columns in Spark."""

from __future__ import annotations

from collections.abc import Mapping

from .markdown import count, markdown_table, number, verdict
from .results import Figure, Target, ratio
from .spark_formats import SparkFormats
from .spark_peer import VERSION

TIMES = 3.0
_CONNECTOR, _TYPED, _BYTES = "kafka + from_…", "headrace, typed", "headrace, bytes"


def sections(found: SparkFormats) -> list[str]:
    if found.missing:
        return [f"## Typed columns in Spark\n\nNot measured: {found.missing}."]
    rows = [
        [
            f"{name}, {_shown(reader, name)}",
            *([figure] if isinstance(figure, str) else [count(figure["rate"])]),
            number(ratio(_rate(readers, reader), _rate(readers, _CONNECTOR))),
            number(None if isinstance(figure, str) else figure["cpu"]),
        ]
        for name, readers in found.reads.items()
        for reader, figure in readers.items()
    ]
    targets = [
        Target(
            f"{name}, × Spark's connector with from_{name}",
            ratio(_rate(readers, _TYPED), _rate(readers, _CONNECTOR)),
            TIMES,
        )
        for name, readers in found.reads.items()
    ]
    costs = ", ".join(
        f"{number(ratio(_rate(readers, _BYTES), _rate(readers, _TYPED)))} × ({name})"
        for name, readers in found.reads.items()
    )
    return [
        "\n\n".join(
            [
                "## Typed columns in Spark",
                f"Rows per second from a topic to typed columns (six fields of the readings of `pipelines/traffic`), "
                f'written to `noop`: `format("headrace")` with `value.format`, and `format("kafka")` with `from_json` '
                f"or `from_avro`, in one session of PySpark {VERSION}, `local[2]`, in turns after a warm-up; medians "
                f"of {found.rounds}; {found.records:,} records in six partitions. A check before the measurements "
                "compares the rows of both. *bytes* only has the column `value`. CPU is that of the JVM and its Python "
                "workers, in seconds per million rows.",
                markdown_table(("reader", "rows/s", "× from_…", "CPU"), rows),
                f"Bytes are read {costs} as fast as typed columns.",
                "\n".join(["Targets:", "", *(f"- {verdict(target)}" for target in targets)]),
            ]
        )
    ]


def _shown(reader: str, name: str) -> str:
    return reader.replace("from_…", f"from_{name}")


def _rate(readers: Mapping[str, Figure], reader: str) -> float | None:
    figure = readers.get(reader, "")
    return None if isinstance(figure, str) else figure["rate"]
