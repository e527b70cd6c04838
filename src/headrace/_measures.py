"""What metrics() means: the name, kind and unit of each figure, for systems that collect them.

`prometheus.py` and `otel` read the same table. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

Stats = Mapping[str, Any]
Value = tuple[tuple[str, ...], float]
"""The values of the labels, and the figure."""

_PARTITION = ("topic", "partition")


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """One figure, or one for each combination of labels."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: Literal["bytes", "seconds", "records", ""]
    meaning: str
    read: Callable[[Stats], Iterable[Value]]
    labels: tuple[str, ...] = ()


def _one(key: str) -> Callable[[Stats], Iterable[Value]]:
    """A figure that may be unknown."""

    def read(stats: Stats) -> Iterable[Value]:
        value = stats[key]
        return [] if value is None else [((), value)]

    return read


def _counter(name: str, key: str, meaning: str, unit: Literal["bytes", ""] = "") -> Measure:
    return Measure(name, "counter", unit, meaning, _one(key))


def _gauge(name: str, key: str, meaning: str, unit: Literal["bytes", "seconds", ""] = "") -> Measure:
    return Measure(name, "gauge", unit, meaning, _one(key))


def _of_partitions(
    figure: Callable[[Stats], float | None], *, in_backlog: bool = False
) -> Callable[[Stats], Iterable[Value]]:
    def read(stats: Stats) -> Iterable[Value]:
        found = (stats["backlog"] or {"partitions": {}}) if in_backlog else stats
        for name, state in found["partitions"].items():
            topic, _, number = name.rpartition("-")
            value = figure(state)
            if value is not None:
                yield (topic, number), value

    return read


def _backlog(key: str) -> Callable[[Stats], Iterable[Value]]:
    def read(stats: Stats) -> Iterable[Value]:
        value = None if stats["backlog"] is None else stats["backlog"][key]
        return [] if value is None else [((), value)]

    return read


def _state(stats: Stats) -> Iterable[Value]:
    return [] if stats["group"] is None else [((stats["group"]["state"],), 1)]


_OF_ALL = (_gauge("connections", "connections", "Open connections to brokers."),)
_OF_MEMBERS = (
    _counter("polls", "polls", "Calls of poll()."),
    _counter("records", "records_returned", "Records that poll() has returned."),
    _counter("fetches", "fetches", "Fetch requests."),
    _counter("fetched", "bytes_fetched", "Size of the responses to fetch requests.", "bytes"),
    _gauge("buffered_records", "buffered_records", "Records that were fetched and that no poll() has returned yet."),
    _gauge("buffered", "buffered_bytes", "Size of the buffered records.", "bytes"),
    _counter("rebalances", "rebalances", "Assignments that this member has taken over."),
    _counter("heartbeats", "heartbeats", "Heartbeats that were sent."),
    _counter("heartbeat_failures", "heartbeat_failures", "Heartbeats that were rejected or not answered."),
    _gauge("heartbeat_age", "seconds_since_heartbeat", "Time since the coordinator accepted a heartbeat.", "seconds"),
    Measure(
        "assigned_partitions", "gauge", "", "Partitions that are assigned.", lambda it: [((), len(it["partitions"]))]
    ),
    Measure(
        "missing_topics",
        "gauge",
        "",
        "Topics, assigned partitions and patterns that do not exist, or match nothing.",
        lambda it: [((), len(it["missing_topics"]))],
    ),
    Measure("member", "gauge", "", "1 for the current state of the membership.", _state, ("state",)),
)

MEASURES: Mapping[str, Sequence[Measure]] = {
    "consumer": (
        *_OF_ALL,
        *_OF_MEMBERS,
        _counter("returned", "bytes_returned", "Size of the records that poll() has returned.", "bytes"),
        _counter("skipped_offsets", "offsets_skipped", "Offsets that were skipped because the log lost them."),
        _counter("lost_partitions", "partitions_lost", "Partitions that were lost without a revoke."),
        Measure(
            "lag",
            "gauge",
            "records",
            "Offsets between the position (of the live lane) and the end of the log.",
            _of_partitions(lambda state: state["lag"]),
            _PARTITION,
        ),
        Measure(
            "position",
            "gauge",
            "",
            "Offset of the next record that poll() returns (of the live lane).",
            _of_partitions(lambda state: state["position"]),
            _PARTITION,
        ),
        Measure(
            "backlog_lag",
            "gauge",
            "records",
            "Offsets that the backlog lane has yet to return (KIP-333).",
            _of_partitions(lambda state: state["open"], in_backlog=True),
            _PARTITION,
        ),
        Measure(
            "backlog_ranges",
            "gauge",
            "",
            "Open ranges of the backlog lane (KIP-333).",
            _of_partitions(lambda state: len(state["ranges"]), in_backlog=True),
            _PARTITION,
        ),
        Measure(
            "backlog_remaining",
            "gauge",
            "seconds",
            "Expected time until the backlog lane has returned everything (KIP-333).",
            _backlog("expected_seconds"),
        ),
        Measure(
            "backlog_lost_offsets",
            "counter",
            "",
            "Offsets of the backlog lane that retention has deleted (KIP-333).",
            _backlog("lost"),
        ),
    ),
    "share consumer": (
        *_OF_ALL,
        *_OF_MEMBERS,
        _counter("acknowledge_requests", "acknowledgements", "Requests with acknowledgements only."),
        _counter("acknowledged_records", "acknowledged", "Records whose acknowledgement a broker has accepted."),
        _counter("refused_records", "refused", "Records whose acknowledgement a broker has rejected."),
        _counter(
            "expired_records", "expired_in_buffer", "Buffered records that were dropped because their lock expired."
        ),
        Measure(
            "locked_records",
            "gauge",
            "",
            "Records that are locked for this member: returned by poll() and not acknowledged, or buffered.",
            lambda it: [(("in_hand",), it["in_hand"]), (("buffered",), it["buffered_records"])],
            ("place",),
        ),
        _gauge("lock_timeout", "acquisition_lock_timeout", "Acquisition lock timeout of the group.", "seconds"),
    ),
    "producer": (
        *_OF_ALL,
        _counter("delivered_records", "records_delivered", "Records that brokers have written."),
        _counter("failed_records", "records_failed", "Records that were not delivered."),
        _counter("requests", "requests", "Produce requests."),
        _counter("retries", "retries", "Batches that were sent again."),
        _counter("sent", "bytes_sent", "Size of the batches that were sent.", "bytes"),
        _gauge("pending_batches", "batches_pending", "Batches that are not delivered yet."),
        _gauge("buffered", "buffered_bytes", "Memory of the records that are not delivered yet.", "bytes"),
        _gauge("buffer_limit", "buffer_memory", "The setting buffer.memory.", "bytes"),
    ),
}
"""By the `role` in metrics()."""
