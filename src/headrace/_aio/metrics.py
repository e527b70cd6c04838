"""What `metrics()` of a consumer returns."""

from __future__ import annotations

import time
from typing import Any

from ..config.consumer import ConsumerConfig
from .fetch.buffer import FetchBuffer
from .group.rebalance import Rebalancer
from .runtime import ConsumerRuntime

_NO_HEARTBEATS = {"heartbeats": 0, "heartbeat_failures": 0, "seconds_since_heartbeat": None}


def metrics_of(
    config: ConsumerConfig, buffer: FetchBuffer, runtime: ConsumerRuntime | None, group: Rebalancer | None
) -> dict[str, Any]:
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
        missing_topics = [] if runtime is None else runtime.missing_topics.describe()
        heartbeats = _NO_HEARTBEATS if group is None else group.health.describe(time.monotonic())
    return {
        "role": config.role,
        "client_id": config.client_id,
        "group_id": config.group_id,
        "polls": buffer.polls,
        "records_returned": buffer.records_returned,
        "bytes_returned": buffer.bytes_returned,
        "offsets_skipped": buffer.offsets_skipped,
        "fetches": buffer.fetches,
        "bytes_fetched": buffer.bytes_fetched,
        "connections": runtime.client.connection_count if runtime else 0,
        "buffered_records": sum(each["buffered_records"] for each in (*partitions.values(), beside or {}) if each),
        "buffered_bytes": sum(each["buffered_bytes"] for each in (*partitions.values(), beside or {}) if each),
        "rebalances": group.rebalances if group else 0,
        "partitions_lost": group.partitions_lost if group else 0,
        **heartbeats,
        "partitions": partitions,
        "backlog": beside,
        "missing_topics": missing_topics,
        "group": None if group is None or not group.is_subscribed else group.describe(),
    }
