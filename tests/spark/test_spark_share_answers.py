"""share.group.id=…: broker responses that arrive after their poll. No Spark session runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import ShareConsumer
from headrace._net.connection import Connection
from headrace._protocol.messages import SHARE_FETCH
from headrace.spark.group import share_reader as shares
from headrace.spark.group.share_reader import ShareReader
from headrace.spark.source import HeadraceSource
from support.brokers.admin import Admin
from support.brokers.produce import numbered
from support.harness.share_consumers import offsets, poll_nothing, poll_some, put, share_group
from support.harness.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

LATE = 0.3
"""Seconds, longer than a reader waits for more records."""


class SlowFetches:
    """Delays the responses of fetches. `before` is called with the number of earlier fetches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.seconds = 0.0
        self.before: Callable[[int], None] = lambda count: None
        start = Connection.start

        async def start_slowly(connection: Connection, api: Any, fields: Any, *args: Any, **options: Any) -> Any:
            if api is not SHARE_FETCH or not fields["max_records"]:
                return await start(connection, api, fields, *args, **options)
            self.before(self.count)
            self.count += 1
            reply = await start(connection, api, fields, *args, **options)
            await asyncio.sleep(self.seconds)  # the response arrives after its poll
            return reply

        monkeypatch.setattr(Connection, "start", start_slowly)


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> SlowFetches:
    return SlowFetches(monkeypatch)


@pytest.fixture
def topic(admin: Admin) -> str:
    return admin.create("late")


@pytest.fixture
def group(servers: str) -> str:
    return share_group(servers)


@pytest.fixture
def reader(servers: str, topic: str, group: str) -> Iterator[ShareReader]:
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "maxOffsetsPerTrigger": "50"}
    source = HeadraceSource({**given, "share.group.id": group})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, ShareReader)
    yield reader
    reader.stop()


def read(reader: ShareReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    tasks = reader.partitions(start, end)
    return [offset for task in tasks for batch in reader.read(task) for offset in batch["offset"].to_pylist()]


def locks_held(reader: ShareReader) -> int:
    shown = reader.reportLatestOffset()
    assert shown is not None
    return int(shown["headrace:metrics"]["locksHeld"])


def next_batch(reader: ShareReader, start: dict[str, Any]) -> dict[str, Any]:
    """Plan the next batch. A new group takes a while to deliver records."""
    limit = reader.getDefaultReadLimit()

    def plan() -> dict[str, Any] | None:
        end = reader.latestOffset(start, limit)
        return None if end == start else end

    found = wait_for("a batch", plan)
    assert found is not None
    return found


@pytest.mark.parametrize("is_first", [True, False])
def test_share_records_that_arrive_late_belong_to_the_same_batch(
    reader: ShareReader,
    fetches: SlowFetches,
    servers: str,
    topic: str,
    group: str,
    is_first: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is prefetched, and other consumers get all records outside of the batch. Either the first response with
    records is late, or a later one."""
    if is_first:
        put(servers, topic, numbered(30))
        fetches.seconds = LATE
    else:
        monkeypatch.setattr(shares, "_FIRST_POLL_TIMEOUT", 10.0)  # the first response is in time

        def write_more(count: int) -> None:
            if count == 1:
                put(servers, topic, numbered(5, start=30))
                fetches.seconds = LATE

        put(servers, topic, numbered(30))
        fetches.before = write_more
    start = reader.initialOffset()
    end = next_batch(reader, start)
    expected = list(range(30 if is_first else 35))
    assert read(reader, start, end) == expected
    assert locks_held(reader) == len(expected)
    assert reader._member.metrics()["buffered_records"] == 0
    assert not reader._member._parts.buffer.planner.is_acquiring
    put(servers, topic, numbered(10, start=len(expected)))
    with ShareConsumer(bootstrap_servers=servers, group_id=group) as other:
        other.subscribe([topic])
        found: list[int] = []
        while len(found) < 10:
            found += offsets(poll_some(other))
            other.commit()
        assert found == list(range(len(expected), len(expected) + 10)), "none of these records was locked"
        fetches.seconds = 0.0
        assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end, "all records are accepted"
        poll_nothing(other, 0.5)
    assert locks_held(reader) == 0


def test_a_share_batch_never_exceeds_max_offsets_per_trigger(
    reader: ShareReader, fetches: SlowFetches, servers: str, topic: str
) -> None:
    """Also if every response is late."""
    put(servers, topic, numbered(120))
    fetches.seconds = LATE
    at, seen = reader.initialOffset(), []
    while len(seen) < 120:
        end = next_batch(reader, at)
        records = read(reader, at, end)
        assert locks_held(reader) == len(records) <= 50
        seen += records
        at = end
    assert seen == list(range(120))


def test_locks_held_includes_records_that_no_batch_has_yet(reader: ShareReader, servers: str, topic: str) -> None:
    """Also of records that the member has prefetched."""
    put(servers, topic, numbered(30))
    start = reader.initialOffset()
    end = next_batch(reader, start)
    assert locks_held(reader) == len(read(reader, start, end)) == 30
    put(servers, topic, numbered(7, start=30))
    member = reader._member
    wait_for("one ahead", lambda: len(member.poll(0.0, max_records=7)) or member.metrics()["buffered_records"])
    assert locks_held(reader) == 37
