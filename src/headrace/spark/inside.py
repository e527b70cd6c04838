"""What this package uses of a consumer beside its public methods: all of it is here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Collection

from ..aio.log_offsets import LATEST
from ..errors import HeadraceError
from ..records import Batch, Records
from ..sync import Consumer
from ..sync.share_consumer import ShareConsumer
from ..types import PartitionInfo, TopicPartition

Topics = dict[str, list[PartitionInfo]]

_CONNECTS_WITHIN = 2.0


def read_range(consumer: Consumer, tp: TopicPartition, start: int, end: int) -> None:
    """From now on `consumer` hands out these offsets of its partition, and fetches nothing from `end` on."""
    consumer._aio._intake.read_range(tp, start, end)


def topics_and_ends(
    consumer: Consumer,
    names: list[str] | None,
    partitions: Collection[TopicPartition],
    timeout: float | None = None,
) -> tuple[Topics, dict[TopicPartition, int]]:
    """What is there of these topics (None: all topics), and at the same time, so that a trigger has one round trip to
    wait for and not two, where the logs of these partitions end. Those that did not tell are left out. `timeout` makes
    default.api.timeout.ms shorter."""
    aio = consumer._aio
    longest = aio._config.default_api_timeout_ms / 1000
    timeout = longest if timeout is None else min(timeout, longest)

    async def ask() -> tuple[Topics, dict[TopicPartition, int]]:
        engine = aio._start()
        topics, found = await asyncio.gather(
            engine.describe_topics(names), engine.offsets.by_time(dict.fromkeys(partitions, LATEST))
        )
        return topics, {tp: end.offset for tp, end in found.items() if not isinstance(end, HeadraceError)}

    with consumer._alone():
        return consumer._portal.run(lambda: aio._timed("Metadata and ListOffsets", timeout, ask))


def late_records(consumer: ShareConsumer, limit: int) -> Records:
    """What a fetch brings that the last poll began and that outlasts it: at most `limit` records, as that poll had it.

    Waits for the answer, or for the end of its connection, which request.timeout.ms bounds. No other fetch begins
    meanwhile: that takes a poll that waits. Afterwards nothing is acquired that the caller does not have.
    """
    aio = consumer._aio
    engine, intake = aio._engine, aio._intake
    if engine is None:
        return Records.EMPTY

    async def answered() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(aio._config.default_api_timeout_ms / 1000):
                while True:
                    engine.streams.progress.clear()
                    with intake.lock:
                        if not intake.planner.is_acquiring:
                            return
                    await engine.streams.progress.wait()

    with consumer._alone():
        consumer._portal.run(answered)
        with intake.lock:
            batches: list[Batch] = intake.planner.take(limit, time.monotonic())  # type: ignore[assignment]
        records = Records(batches)
        intake.records_returned += len(records)
        return records


def all_refuse(consumer: Consumer) -> bool:
    """Whether nothing listens at any of the bootstrap servers, or they have no address."""
    for address in consumer._aio._config.bootstrap_servers:
        try:
            socket.create_connection(address, timeout=_CONNECTS_WITHIN).close()
        except (ConnectionRefusedError, socket.gaierror):
            continue
        except OSError:
            return False
        return False
    return True
