"""What each part measures: how many records, how many rounds, which datasets.

`FULL` is what docs/benchmarks.md has by default. `QUICK` measures the same tables with fewer records and rounds, in
about half an hour on two cores. Rates need seconds of reading: in small topics, the warm-up of the JVM dominates. So
`QUICK` has fewer rounds rather than small topics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from .datasets import Dataset, datasets

PARTS = (
    *("reading", "polls", "latency", "arrivals", "groups", "share", "spark", "spark_formats", "writing"),
    *("writing_spark", "tls", "formats", "scaling"),
)
NAMES = tuple(dataset.name for dataset in datasets())


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """`records` of 100 bytes; a tenth as many of 1 KB. Some parts have records of their own and use only `repeat`."""

    records: int
    repeat: int
    names: Sequence[str] = NAMES

    @property
    def datasets(self) -> list[Dataset]:
        return [dataset for dataset in datasets(self.records) if dataset.name in self.names]


FULL: Mapping[str, Effort] = {
    "reading": Effort(10_000_000, 3),
    "polls": Effort(10_000_000, 1),
    "latency": Effort(10_000_000, 1),
    "arrivals": Effort(10_000_000, 5),
    "groups": Effort(10_000_000, 3),
    "share": Effort(10_000_000, 3),
    "spark": Effort(10_000_000, 2),
    "spark_formats": Effort(3_000_000, 2),
    "writing": Effort(3_000_000, 2),
    "writing_spark": Effort(9_000_000, 3, ("100B", "1KB")),
    "tls": Effort(4_000_000, 3),
    "formats": Effort(1_000_000, 3),
    "scaling": Effort(300_000, 1),
}
QUICK: Mapping[str, Effort] = {
    **FULL,
    "reading": Effort(10_000_000, 2),
    "arrivals": Effort(10_000_000, 2),
    "groups": Effort(10_000_000, 2),
    "share": Effort(10_000_000, 1),
    "spark": Effort(10_000_000, 1),
    "spark_formats": Effort(2_000_000, 1),
    "writing": Effort(3_000_000, 1, ("100B", "100B-zstd", "1KB")),
    "writing_spark": Effort(6_000_000, 1, ("100B", "1KB")),
    "tls": Effort(2_000_000, 2),
    "formats": Effort(1_000_000, 2),
}


def plan(
    parts: Sequence[str],
    *,
    records: int | None = None,
    repeat: int | None = None,
    names: Sequence[str] | None = None,
    quick: bool = False,
) -> dict[str, Effort]:
    """The efforts of these parts, in the order of PARTS. What is given replaces what the part has by default."""
    base = QUICK if quick else FULL
    return {
        part: Effort(records or base[part].records, repeat or base[part].repeat, names or base[part].names)
        for part in PARTS
        if part in parts
    }
