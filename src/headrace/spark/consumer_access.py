"""All uses of a consumer's internal parts in this package."""

from __future__ import annotations

import socket
from collections.abc import Collection

from ..records import Records
from ..sync import Consumer
from ..sync.share_consumer import ShareConsumer
from ..types import PartitionInfo, TopicPartition

Topics = dict[str, list[PartitionInfo]]

_CONNECTS_WITHIN = 2.0


def read_range(consumer: Consumer, tp: TopicPartition, start: int, end: int) -> None:
    """From now on `consumer` returns these offsets of its partition, and fetches nothing from `end` on."""
    consumer._parts.buffer.read_range(tp, start, end)


def topics_and_ends(
    consumer: Consumer,
    names: list[str] | None,
    partitions: Collection[TopicPartition],
    timeout: float | None,
) -> tuple[Topics, dict[TopicPartition, int]]:
    """The partitions of these topics (None: all topics), and the end offsets of these partitions, asked for at the same
    time, so that a trigger waits for one round trip and not for two. Partitions without an answer are left out.
    `timeout` can only shorten default.api.timeout.ms."""
    queries = consumer._parts.queries
    with consumer._alone():
        return consumer._portal.run(lambda: queries.topics_and_ends(names, partitions, timeout))


def late_records(consumer: ShareConsumer, limit: int) -> Records:
    """The records of a fetch that the last poll started and did not wait for: at most `limit`, which must be the limit
    of that poll.

    Waits for the answer, or for the end of its connection (within request.timeout.ms). No other fetch starts meanwhile:
    only a poll that waits starts one. Afterwards the caller has all records that are acquired.
    """
    parts = consumer._parts
    if parts.lifecycle.runtime is None:
        return Records.EMPTY
    with consumer._alone():
        consumer._portal.run(parts.finish_fetch)
        return parts.take_buffered(limit)


def all_refuse(consumer: Consumer) -> bool:
    """Whether all bootstrap servers refuse connections or cannot be resolved."""
    for address in consumer._parts.config.bootstrap_servers:
        try:
            socket.create_connection(address, timeout=_CONNECTS_WITHIN).close()
        except (ConnectionRefusedError, socket.gaierror):
            continue
        except OSError:
            return False
        return False
    return True
