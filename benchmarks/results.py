"""Rows of a table from measurements: medians, ratios, and whether targets are met.

MB are 10^6 bytes, also for memory. Bytes are those of delivered keys and values, not those on the wire.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from . import contenders as who
from .datasets import Dataset

Figure = Mapping[str, float] | str
"""Numbers by name, or the reason why there are none."""
Figures = dict[str, Figure]


def median_figure(found: Sequence[Figure]) -> Figure:
    """The median of the successful runs, or the error of the first run if all failed."""
    good = [each for each in found if not isinstance(each, str)]
    if not good:
        return found[0]
    return {name: statistics.median(each[name] for each in good) for name in good[0]}


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one contender. `loop_cpu_seconds` is None if only that of the whole process is known. `instructions`
    are those of the whole process."""

    records: int
    seconds: float
    loop_cpu_seconds: float | None
    process_cpu_seconds: float
    peak_bytes: int
    instructions: int | None = None

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def cpu_per_million(self) -> float:
        cpu = self.process_cpu_seconds if self.loop_cpu_seconds is None else self.loop_cpu_seconds
        return cpu / self.records * 1e6


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """All runs of one contender on one dataset, and the last line of each failed run. `skipped` is the reason why there
    are none."""

    measurements: Sequence[Measurement] = ()
    failures: Sequence[str] = ()
    skipped: str = ""

    def with_measurement(self, measurement: Measurement) -> Outcome:
        return dataclasses.replace(self, measurements=(*self.measurements, measurement))

    def with_failure(self, line: str) -> Outcome:
        return dataclasses.replace(self, failures=(*self.failures, line))


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Medians over the runs, the extremes of the rate, and the highest memory peak."""

    rate: float
    slowest: float
    fastest: float
    cpu_per_million: float
    cpu_of_whole_process: bool
    peak_mb: float
    instructions_per_record: float | None = None


def summarize(measurements: Sequence[Measurement]) -> Summary | None:
    """None without measurements."""
    if not measurements:
        return None
    rates = [m.rate for m in measurements]
    instructions = [m.instructions / m.records for m in measurements if m.instructions is not None]
    return Summary(
        rate=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        cpu_per_million=statistics.median(m.cpu_per_million for m in measurements),
        cpu_of_whole_process=any(m.loop_cpu_seconds is None for m in measurements),
        peak_mb=max(m.peak_bytes for m in measurements) / 1e6,
        instructions_per_record=statistics.median(instructions) if instructions else None,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """The results on one dataset, by the contenders' names."""

    dataset: Dataset
    stored_bytes: int
    outcomes: Mapping[str, Outcome]

    def summary(self, contender: who.Contender) -> Summary | None:
        return summarize(self.outcomes.get(contender.name, Outcome()).measurements)

    def rate(self, contender: who.Contender) -> float | None:
        summary = self.summary(contender)
        return summary.rate if summary else None

    @property
    def limit(self) -> float | None:
        """The higher one of the two limits."""
        return self._fastest(who.LIMITS)

    @property
    def confluent(self) -> float | None:
        """The higher rate of the two, since it would mean little to beat a client that pauses."""
        return self._fastest(who.CONFLUENTS)

    @property
    def franz_go(self) -> float | None:
        """The higher rate of the two."""
        return self._fastest(who.FRANZ_GOS)

    def _fastest(self, contenders: Sequence[who.Contender]) -> float | None:
        return max((rate for contender in contenders if (rate := self.rate(contender))), default=None)


def ratio(rate: float | None, base: float | None) -> float | None:
    return None if rate is None or not base else rate / base


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """`reached` is None if it was not measured."""

    text: str
    reached: float | None
    wanted: float
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.reached is None:
            return None
        return self.reached < self.wanted if self.at_most else self.reached >= self.wanted


def targets(table: Table) -> list[Target]:
    columnar, by_record = table.rate(who.COLUMNAR), table.rate(who.BY_RECORD)
    confluent = table.confluent
    peaks = [summary.peak_mb for contender in who.HEADRACE if (summary := table.summary(contender))]
    found = [
        Target("columnar, × Java", ratio(columnar, table.rate(who.JAVA)), 1.5),
        Target("columnar, × confluent-kafka", ratio(columnar, confluent), 5.0),
        Target("columnar, × franz-go", ratio(columnar, table.franz_go), 3.5),
        Target("by record, × confluent-kafka", ratio(by_record, confluent), 3.0),
        Target("by record, × franz-go", ratio(by_record, table.franz_go), 1.8),
        Target("peak memory of headrace, MB", max(peaks, default=None), 200.0, at_most=True),
    ]
    if table.dataset.codec == "none":
        # With compression, the limit only moves the compressed bytes without decompressing them.
        share = ratio(columnar, table.limit)
        found.insert(2, Target("columnar, % of the limit", None if share is None else share * 100, 85.0))
    return found


def poll_targets(costs: Mapping[str, Figure], most: float) -> list[Target]:
    """For each row of headrace: a poll alone costs at most this many microseconds."""
    return [
        Target(f"{name}, µs per poll", None if isinstance(cost, str) else cost["poll"], most, at_most=True)
        for name, cost in costs.items()
        if name.startswith("headrace")
    ]
