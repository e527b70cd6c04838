"""Share consumers of both kinds behind one blocking interface, and settings of share groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from headrace import AsyncShareConsumer, Record, Records, ShareConsumer
from support.brokers.admin import unique
from support.brokers.group_configs import configure_group
from support.brokers.produce import Outgoing, write
from support.harness.consumers import BlockingAsyncConsumer

AnyShareConsumer = Any
MakeShareConsumer = Callable[..., AnyShareConsumer]


class BlockingAsyncShareConsumer(BlockingAsyncConsumer):
    """An AsyncShareConsumer with its own event loop, which runs during each call."""

    def __init__(self, config: Any = None, /, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._consumer = AsyncShareConsumer(config, **settings)  # type: ignore[assignment]  # same interface


SHARE_KINDS: dict[str, MakeShareConsumer] = {"sync": ShareConsumer, "async": BlockingAsyncShareConsumer}


def share_group(servers: str, **settings: object) -> str:
    """A new group that starts at the beginning, with settings such as `share_record_lock_duration_ms=1000`."""
    group = unique("share")
    configure_group(servers, group, **({"share_auto_offset_reset": "earliest"} | settings))
    return group


def put(servers: str, topic: str, records: Iterable[Outgoing], **settings: object) -> None:
    """Write records with a non-idempotent producer, which starts faster."""
    write(servers, topic, records, **({"acks": 1} | settings))


def offsets(records: Records | list[Record]) -> list[int]:
    return [record.offset for record in records]


def poll_some(consumer: AnyShareConsumer, timeout: float = 60.0, **options: Any) -> Records:
    """The records of the first poll that returns any."""
    deadline = time.monotonic() + timeout
    while True:
        records: Records = consumer.poll(0.5, **options)
        if records:
            return records
        assert time.monotonic() < deadline, f"no record within {timeout:g} s: {consumer.metrics()}"


def poll_nothing(consumer: AnyShareConsumer, seconds: float) -> None:
    """Check that polls return no records for `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        records = consumer.poll(left)
        assert not records, offsets(records)
