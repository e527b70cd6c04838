"""Reads the timestamps of single records: those at which groups would resume."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from .._aio import AsyncConsumer
from ..errors import AuthorizationError, HeadraceError
from ..types import TopicPartition

# A batch is larger in rare cases only, and is then returned alone (KIP-74).
_LIMITS = {"max.partition.fetch.bytes": 64 * 1024, "fetch.max.bytes": 4 * 1024 * 1024}
_LOOK_ON_FOR = 1.0  # seconds to wait for the others if this client is not allowed to read some topics
_LOOK_EVERY = 0.2


async def read_times(
    settings: Mapping[str, Any], wanted: Mapping[TopicPartition, tuple[int, int]], within: float
) -> dict[TopicPartition, float]:
    """The timestamps of the first records from an offset on, in seconds since 1970, for partitions with that offset and
    the end of their log. The time is infinite if only transaction markers or aborted records are left. Records that
    this client is not allowed to read, or cannot read within so many seconds, have no time."""
    config = {
        **settings,
        **_LIMITS,
        "max.poll.records": -1,
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
    }
    found: dict[TopicPartition, float] = {}
    clock = asyncio.get_running_loop().time
    deadline = clock() + within
    async with AsyncConsumer(config) as consumer:
        consumer.assign(list(wanted))
        for tp, (offset, _) in wanted.items():
            consumer.seek(tp, offset)
        waiting = set(wanted)
        while waiting and (left := deadline - clock()) > 0:
            try:
                records = await consumer.poll(min(left, _LOOK_EVERY))
                passed = [tp for tp in waiting if await consumer.position(tp) >= wanted[tp][1]]
            except AuthorizationError:
                # The error is raised repeatedly, while other topics can be read.
                deadline = min(deadline, clock() + _LOOK_ON_FOR)
                continue
            except HeadraceError:
                break
            for tp in {*records.partitions, *passed} & waiting:
                waiting.discard(tp)
                timestamp = records[tp][0].timestamp if records[tp] else None
                if timestamp is None:
                    found[tp] = math.inf
                elif timestamp >= 0:
                    found[tp] = timestamp / 1000
            consumer.pause(list(records.partitions))
    return found
