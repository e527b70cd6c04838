"""From measurements to rows of a table: medians, ratios, and whether the targets are met.

MB are 10^6 bytes, of memory too. Bytes are those of keys and values as delivered, whatever they were on the wire.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from . import contenders as who
from .datasets import Dataset

Figure = Mapping[str, float] | str
"""Numbers by their names, or why there are none."""
Figures = dict[str, Figure]


def median_figure(found: Sequence[Figure]) -> Figure:
    """Of the runs that did not fail; if all have failed, why the first one did."""
    good = [each for each in found if not isinstance(each, str)]
    if not good:
        return found[0]
    return {name: statistics.median(each[name] for each in good) for name in good[0]}


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one contender. `loop_cpu_seconds` is None where only the whole process can be seen."""

    records: int
    seconds: float
    loop_cpu_seconds: float | None
    process_cpu_seconds: float
    peak_bytes: int

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def cpu_per_million(self) -> float:
        cpu = self.process_cpu_seconds if self.loop_cpu_seconds is None else self.loop_cpu_seconds
        return cpu / self.records * 1e6


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """All runs of one contender on one dataset, and the last line of each that failed."""

    measurements: Sequence[Measurement] = ()
    failures: Sequence[str] = ()

    def with_measurement(self, measurement: Measurement) -> Outcome:
        return dataclasses.replace(self, measurements=(*self.measurements, measurement))

    def with_failure(self, line: str) -> Outcome:
        return dataclasses.replace(self, failures=(*self.failures, line))


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Medians over the runs; of the rate also the extremes, and of memory the highest peak."""

    rate: float
    slowest: float
    fastest: float
    cpu_per_million: float
    cpu_of_whole_process: bool
    peak_mb: float


def summarize(measurements: Sequence[Measurement]) -> Summary | None:
    """None without measurements."""
    if not measurements:
        return None
    rates = [m.rate for m in measurements]
    return Summary(
        rate=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        cpu_per_million=statistics.median(m.cpu_per_million for m in measurements),
        cpu_of_whole_process=any(m.loop_cpu_seconds is None for m in measurements),
        peak_mb=max(m.peak_bytes for m in measurements) / 1e6,
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
        """The higher of the two: what was reached can be reached."""
        return self._fastest(who.LIMITS)

    @property
    def confluent(self) -> float | None:
        """The higher of the two: beating a client that was left to pause would say little."""
        return self._fastest(who.CONFLUENTS)

    def _fastest(self, contenders: Sequence[who.Contender]) -> float | None:
        return max((rate for contender in contenders if (rate := self.rate(contender))), default=None)


def ratio(rate: float | None, base: float | None) -> float | None:
    return None if rate is None or not base else rate / base


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """`reached` is None where what it compares was not measured."""

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
        Target("by record, × confluent-kafka", ratio(by_record, confluent), 3.0),
        Target("peak memory of headrace, MB", max(peaks, default=None), 200.0, at_most=True),
    ]
    if table.dataset.codec == "none":
        # Compressed, the limit only moves the compressed bytes, and does not unpack them.
        share = ratio(columnar, table.limit)
        found.insert(2, Target("columnar, % of the limit", None if share is None else share * 100, 85.0))
    return found


def poll_targets(costs: Mapping[str, Figure], most: float) -> list[Target]:
    """For each row of headrace: a poll without any use of what it returned costs at most so many microseconds."""
    return [
        Target(f"{name}, µs a poll", None if isinstance(cost, str) else cost["poll"], most, at_most=True)
        for name, cost in costs.items()
        if name.startswith("headrace")
    ]
