"""Rows of a table from runs of writers: medians, ratios, the limiting factor, and whether targets are met."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Mapping, Sequence

from . import write_contenders as who
from .datasets import Dataset
from .results import Figure, Measurement, Summary, Target, ratio, summarize

TIMES_JAVA = 1.5
TIMES_CONFLUENT = 4.0
SEND_TIMES_CONFLUENT = 1.5
MOST_GROWTH = 1.5
"""The process may grow by buffer.memory, plus half of it for batches being encoded, sent and acknowledged."""
_AT_LIMIT = 0.8
_BUSY = 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class WriteRun:
    """One run of one writer. None means unknown."""

    measurement: Measurement
    broker_cpu_seconds: float | None
    grown_bytes: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class WriteOutcome:
    """All runs of one writer with one dataset and profile, and the errors of failed runs."""

    runs: Sequence[WriteRun] = ()
    failures: Sequence[str] = ()

    def with_run(self, run: WriteRun) -> WriteOutcome:
        return dataclasses.replace(self, runs=(*self.runs, run))

    def with_failure(self, line: str) -> WriteOutcome:
        return dataclasses.replace(self, failures=(*self.failures, line))

    @property
    def summary(self) -> Summary | None:
        return summarize([run.measurement for run in self.runs])

    @property
    def broker_cpu_per_million(self) -> float | None:
        known = [
            run.broker_cpu_seconds / run.measurement.records * 1e6
            for run in self.runs
            if run.broker_cpu_seconds is not None
        ]
        return statistics.median(known) if known else None

    @property
    def grown_mb(self) -> float | None:
        """The highest growth of all runs."""
        return max((run.grown_bytes / 1e6 for run in self.runs if run.grown_bytes is not None), default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class WriteTable:
    """The results of one dataset and one profile, by writer name."""

    dataset: Dataset
    profile: who.Profile
    outcomes: Mapping[str, WriteOutcome]

    def outcome(self, writer: who.Writer) -> WriteOutcome:
        return self.outcomes.get(writer.name, WriteOutcome())

    def rate(self, writer: who.Writer) -> float | None:
        summary = self.outcome(writer).summary
        return summary.rate if summary else None

    def fastest(self, writers: Sequence[who.Writer]) -> float | None:
        return max((rate for writer in writers if (rate := self.rate(writer))), default=None)

    def limit_of(self, writer: who.Writer) -> float | None:
        """The fastest limit with batches of the writer's size."""
        same = [each for each in who.LIMITS if each.default_batch_bytes == writer.default_batch_bytes]
        return self.fastest(who.LIMITS if self.profile.batch_bytes else same)


@dataclasses.dataclass(frozen=True, slots=True)
class Writings:
    """Rates by dataset and profile, and latencies in milliseconds by client."""

    rounds: int
    tables: Sequence[WriteTable]
    latencies: Mapping[str, Figure]


def limited_by(table: WriteTable, writer: who.Writer, cores: int | None = None) -> str:
    """The reason why a writer is not faster, from its share of the limit and the CPU use of writer and broker."""
    outcome = table.outcome(writer)
    summary = outcome.summary
    if summary is None or writer in who.LIMITS:
        return "" if summary is None else "the broker"
    share = ratio(summary.rate, table.limit_of(writer))
    if share is not None and share >= _AT_LIMIT:
        return "the broker"
    client = summary.cpu_per_million * summary.rate / 1e6
    broker = (outcome.broker_cpu_per_million or 0.0) * summary.rate / 1e6
    if client + broker >= _BUSY * (cores or os.cpu_count() or 1):
        return "processors: the client" if client >= broker else "processors: the broker"
    if client >= _BUSY:
        return "one thread of the client"
    return "waiting"


def targets(table: WriteTable) -> list[Target]:
    arrow, confluent = table.rate(who.SEND_ARROW), table.fastest(who.CONFLUENTS)
    by_record = table.fastest(who.CONFLUENT_BY_RECORD)
    grown = [found for writer in who.HEADRACE if (found := table.outcome(writer).grown_mb) is not None]
    growth = max(grown) * 1e6 / table.profile.buffer_memory if grown else None
    return [
        Target("send_arrow, × Java", ratio(arrow, table.rate(who.JAVA)), TIMES_JAVA),
        Target("send_arrow, × confluent-kafka", ratio(arrow, confluent), TIMES_CONFLUENT),
        Target("send, × confluent-kafka by record", ratio(table.rate(who.SEND), by_record), SEND_TIMES_CONFLUENT),
        Target("growth of headrace, × buffer.memory", growth, MOST_GROWTH, at_most=True),
    ]


def latency_targets(latencies: Mapping[str, Figure]) -> list[Target]:
    ours, theirs = latencies.get("headrace", ""), latencies.get("confluent", "")
    return [
        Target(
            f"latency, {name}, × confluent-kafka",
            None if isinstance(ours, str) or isinstance(theirs, str) else ratio(ours[name], theirs[name]),
            1.0,
            at_most=True,
        )
        for name in ("p50", "p99")
    ]
