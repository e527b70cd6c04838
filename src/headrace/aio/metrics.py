"""Numbers about one consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .intake import Intake

if TYPE_CHECKING:
    from .engine import Engine
    from .group import Group


def metrics_of(intake: Intake, engine: Engine | None, group: Group | None) -> dict[str, Any]:
    """Counters since the start, and the state of every partition; plain values, ready for JSON."""
    with intake.lock:
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
            for state in intake.assignment
        }
        beside = None if intake.backlog is None else intake.backlog.describe()
    return {
        "polls": intake.polls,
        "records_returned": intake.records_returned,
        "bytes_returned": intake.bytes_returned,
        "offsets_skipped": intake.offsets_skipped,
        "fetches": engine.fetcher.fetches if engine else 0,
        "bytes_fetched": engine.fetcher.bytes_fetched if engine else 0,
        "connections": engine.client.connection_count if engine else 0,
        "buffered_records": sum(each["buffered_records"] for each in (*partitions.values(), beside or {}) if each),
        "buffered_bytes": sum(each["buffered_bytes"] for each in (*partitions.values(), beside or {}) if each),
        "partitions": partitions,
        "backlog": beside,
        "group": None if group is None or not group.is_subscribed else group.describe(),
    }
