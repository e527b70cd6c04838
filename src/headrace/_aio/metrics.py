"""What `metrics()` returns."""

from __future__ import annotations

from typing import Any

from .fetch.buffer import FetchBuffer
from .group.rebalance import Rebalancer
from .runtime import ConsumerRuntime


def metrics_of(buffer: FetchBuffer, runtime: ConsumerRuntime | None, group: Rebalancer | None) -> dict[str, Any]:
    """Counters since the start, and the state of every partition; plain values, ready for JSON."""
    with buffer.lock:
        partitions = {
            str(state.tp): {
                "position": state.position.offset if state.position else None,
                "lag": state.lag,
                "readable_end": state.readable_end if state.readable_end >= 0 else None,
                "paused": state.paused,
                "skipped": state.skipped,
                "phase": state.phase.value,
                "buffered_records": state.available,
                "buffered_bytes": state.retained,
            }
            for state in buffer.assignment
        }
        beside = buffer.source.describe()
    return {
        "polls": buffer.polls,
        "records_returned": buffer.records_returned,
        "bytes_returned": buffer.bytes_returned,
        "offsets_skipped": buffer.offsets_skipped,
        "fetches": runtime.fetcher.fetches if runtime else 0,
        "bytes_fetched": runtime.fetcher.bytes_fetched if runtime else 0,
        "connections": runtime.client.connection_count if runtime else 0,
        "buffered_records": sum(each["buffered_records"] for each in (*partitions.values(), beside or {}) if each),
        "buffered_bytes": sum(each["buffered_bytes"] for each in (*partitions.values(), beside or {}) if each),
        "partitions": partitions,
        "backlog": beside,
        "group": None if group is None or not group.is_subscribed else group.describe(),
    }
