"""KIP-1206 with a broker: share.acquire.mode, and max.poll.records as a strict limit."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from headrace import Record
from headrace._aio.share import sessions as share_streams
from headrace._machines.share.broker_session import BrokerSession
from headrace._machines.share.responses import ShareResponse
from support.brokers.admin import Admin
from support.brokers.produce import Writer, numbered
from support.harness.share_consumers import MakeShareConsumer, offsets, poll_nothing, poll_some, put, share_group

Acquired = list[list[tuple[int, int, int]]]


@pytest.fixture
def acquired(monkeypatch: pytest.MonkeyPatch) -> Acquired:
    """The ranges that each response with records has acquired, over all partitions: (first, last, delivery count)."""
    seen: Acquired = []
    real = share_streams.handle_response

    def noted(*args: Any) -> ShareResponse:
        answer = real(*args)
        if answer.arrivals:
            seen.append([each for arrival in answer.arrivals for each in arrival.ranges])
        return answer

    monkeypatch.setattr(share_streams, "handle_response", noted)
    return seen


def batches_of_five(servers: str, topic: str, count: int = 3) -> None:
    for number in range(count):
        put(servers, topic, numbered(5, start=5 * number))


def test_both_acquire_modes_acquire_as_in_the_example_of_kip_1206(
    make_share: MakeShareConsumer, servers: str, admin: Admin, acquired: Acquired
) -> None:
    """Batches of five and max.poll.records=6: 0 to 9 are acquired, or exactly 0 to 5, then the rest."""
    topic = admin.create("example")
    batches_of_five(servers, topic)
    for mode, first, polls in (
        ("batch_optimized", [(0, 9, 1)], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, *range(10, 12)]]),
        ("record_limit", [(0, 5, 1)], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]),
    ):
        acquired.clear()
        consumer = make_share(
            bootstrap_servers=servers,
            group_id=share_group(servers),
            share_acquire_mode=mode,
            max_poll_records=6,
            topics=[topic],
        )
        found = [offsets(poll_some(consumer))]
        assert acquired[0] == first
        while sum(map(len, found)) < 15:
            found.append(offsets(poll_some(consumer)))
        assert all(len(each) <= 6 for each in found)
        assert [offset for each in found for offset in each] == list(range(15))
        if mode == "record_limit":
            assert acquired == [[(0, 5, 1)], [(6, 9, 1), (10, 11, 1)], [(12, 14, 1)]]
            assert found[:2] == polls
        consumer.close()


def test_batch_size_decides_the_acquired_ranges_as_in_kip_1206(
    make_sync_share: MakeShareConsumer,
    servers: str,
    admin: Admin,
    acquired: Acquired,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BatchSize is the size of the acquired ranges, not the number of acquired records; headrace requests one range."""
    topic = admin.create("ranges")
    batches_of_five(servers, topic)
    fetch = BrokerSession.fetch

    def of_two(*args: Any) -> Any:
        request = fetch(*args)
        request.fields["batch_size"] = 2  # type: ignore[index]
        return request

    monkeypatch.setattr(BrokerSession, "fetch", of_two)
    settings = {"bootstrap_servers": servers, "max_poll_records": 6, "topics": [topic]}
    found = {}
    for mode in ("batch_optimized", "record_limit"):
        acquired.clear()
        consumer = make_sync_share(group_id=share_group(servers), share_acquire_mode=mode, **settings)
        assert offsets(poll_some(consumer)) == [0, 1, 2, 3, 4, 5]
        found[mode] = [(first, last) for first, last, _ in acquired[0]]
    assert found == {"batch_optimized": [(0, 4), (5, 9)], "record_limit": [(0, 5)]}


def test_with_record_limit_a_poll_locks_no_more_than_max_poll_records(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    topic = admin.create("waiting")
    put(servers, topic, numbered(500))
    settings = {
        "bootstrap_servers": servers,
        "group_id": share_group(servers),
        "share_acquire_mode": "Record_Limit",
        "max_poll_records": 10,
        "topics": [topic],
    }
    first = make_sync_share(**settings)
    assert offsets(poll_some(first)) == list(range(10))
    second = make_sync_share(**settings)
    assert offsets(poll_some(second)) == list(range(10, 20))
    first.commit()
    second.commit()
    found: list[int] = []
    while len(found) < 480:
        found += offsets(poll_some(first))
        found += offsets(second.poll(0.5))
    assert sorted(found) == list(range(20, 500))


def test_a_share_poll_acquires_no_more_than_its_own_max_records(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin, acquired: Acquired
) -> None:
    topic = admin.create("once")
    put(servers, topic, numbered(20))
    consumer = make_sync_share(
        bootstrap_servers=servers,
        group_id=share_group(servers),
        share_acquire_mode="record_limit",
        topics=[topic],
    )
    assert offsets(poll_some(consumer, max_records=3)) == [0, 1, 2]
    assert offsets(poll_some(consumer, max_records=1)) == [3]
    assert offsets(poll_some(consumer)) == list(range(4, 20))
    assert acquired == [[(0, 2, 1)], [(3, 3, 1)], [(4, 19, 1)]]


@pytest.mark.parametrize("seed", range(4))
def test_no_share_poll_and_no_acquisition_exceeds_max_records(
    make_sync_share: MakeShareConsumer, servers: str, admin: Admin, acquired: Acquired, seed: int
) -> None:
    """Random batches, codecs, limits, partitions and acknowledgements. Every record is delivered in the end."""
    dice = random.Random(seed)
    partitions = dice.randint(1, 4)
    topic = admin.create("random", partitions)
    written = _write_at_random(servers, topic, partitions, dice)
    group = share_group(servers, share_delivery_count_limit=10)
    consumer = make_sync_share(
        bootstrap_servers=servers,
        group_id=group,
        share_acquire_mode="record_limit",
        share_acknowledgement_mode="explicit",
        topics=[topic],
    )
    accepted: set[tuple[int, bytes]] = set()
    deadline = time.monotonic() + 90
    while len(accepted) < written:
        assert time.monotonic() < deadline, (len(accepted), written)
        limit = dice.choice([1, 2, 7, 40, 500])
        before = len(acquired)
        # Long enough that the response arrives in this poll, not in the next one, which may have another limit.
        records = consumer.poll(60, max_records=limit)
        assert len(records) <= limit
        for each in acquired[before:]:
            assert sum(last - first + 1 for first, last, _ in each) <= limit
        for record in records:
            assert (record.partition, record.value) not in accepted
            if dice.random() < 0.1 and (record.delivery_count or 0) < 4:
                consumer.acknowledge(record, "release")
            else:
                consumer.acknowledge(record)
                accepted.add(_name(record))
    assert set(consumer.commit().values()) <= {None}
    poll_nothing(consumer, 0.3)
    assert consumer.metrics()["refused"] == 0


def _name(record: Record) -> tuple[int, bytes]:
    assert record.value is not None
    return record.partition, record.value


def _write_at_random(servers: str, topic: str, partitions: int, dice: random.Random) -> int:
    written = 0
    for codec in dice.sample(["none", "gzip", "snappy", "lz4", "zstd"], 3):
        writer = Writer(servers, compression_type=codec, linger_ms=50, acks=1)
        for _ in range(dice.randint(1, 5)):
            count = dice.choice([1, 3, 10, 60])
            writer.send(topic, numbered(count, partition=dice.randrange(partitions), start=written))
            written += count
            if dice.random() < 0.7:
                writer.flush()
        writer.flush()
    return written
