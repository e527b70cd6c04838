"""A fetch is repeated natively after each usual response, before Python knows of the response; and after no other."""

from __future__ import annotations

import asyncio
import socket
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._net._kernel import DirectFetch, DirectResponse, FrameReceiver
from headrace._net.calls import NextRequest
from headrace._net.connection import Connection
from headrace._protocol.messages import FETCH, METADATA, decode_response, encode_request
from headrace.errors import HeadraceError, NetworkError, RequestTimeoutError
from headrace.records import decode, next_offset
from support.brokers.fake_broker import FakeBroker, Link, Request, answer, frame, run
from support.brokers.fake_connections import ALL_TOPICS, NO_FETCH, connect, failure, metadata
from support.brokers.record_batches import Entry, encode_batch
from support.harness.retries import patiently

TOPIC = uuid.UUID(int=7)
SESSION = 77
VERSION = 18


class Repeats:
    """Partitions 0 and 1 of a topic, the second from offset 100 on. Ends the repetition after `last` responses."""

    def __init__(self, last: int = 1_000, *, room: int = 1 << 20, epoch: int = 5, **settings: Any) -> None:
        usual = {"client_id": "tester", "min_bytes": 1, "read_committed": False, "rack": "", "check_crcs": True}
        self.fetch = DirectFetch(**{**usual, "max_batch_bytes": 1 << 20, "lane": None, **settings})
        changes = [(number, TOPIC.bytes, number, ("t", 100 * number, 3, 4096)) for number in range(2)]
        request = {"max_wait_ms": 500, "max_bytes": 9999, "session_id": SESSION, "session_epoch": epoch}
        self.fetch.prepare(changes, version=VERSION, room=room, **request)
        self.seen: list[DirectResponse] = []
        self._last = last

    def repeated(self, response: DirectResponse) -> bool:
        self.seen.append(response)
        return len(self.seen) < self._last


async def start(broker: FakeBroker, repeats: Repeats, **settings: Any) -> tuple[Connection, Link, Any, Request]:
    connection, link = await connect(broker, **settings)
    connection.receive_on_a_thread()
    call = connection.start(FETCH, NO_FETCH, repetition=repeats)
    return connection, link, call, await link.receive()


def batch(offset: int, **options: Any) -> bytes:
    return encode_batch([Entry(value=b"v")], base_offset=offset, leader_epoch=3, **options)


def data(number: int, records: bytes | None, end: int, **fields: Any) -> dict[str, Any]:
    usual = {"partition_index": number, "error_code": 0, "high_watermark": end, "last_stable_offset": end}
    return {**usual, "log_start_offset": 0, "aborted_transactions": None, "records": records, **fields}


def response(*items: dict[str, Any], **fields: Any) -> Any:
    topics = [{"topic_id": TOPIC, "partitions": items}] if items else []
    usual = {"throttle_time": 0, "error_code": 0, "session_id": SESSION, "responses": topics}
    return answer(FETCH, VERSION, **{**usual, **fields})


def requested(request: Request) -> list[tuple[int, int]]:
    return [(each.partition, each.fetch_offset) for topic in request.body.topics for each in topic.partitions]


def test_a_usual_response_is_followed_by_a_request_for_what_comes_after_its_records() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            repeats = Repeats()
            connection, link, _, first = await start(broker, repeats)
            await link.reply(first, response(data(1, batch(100), 101)))
            second = await link.receive()
            assert second.correlation_id == first.correlation_id + 1
            assert (second.version, second.client_id) == (VERSION, "tester")
            body = second.body
            assert (body.session_id, body.session_epoch, body.max_bytes, body.min_bytes) == (SESSION, 6, 9999, 1)
            assert (body.max_wait.total_seconds(), body.isolation_level, body.rack_id) == (0.5, 0, "")
            assert requested(second) == [(1, 101)]
            (wanted,) = body.topics[0].partitions
            assert (wanted.current_leader_epoch, wanted.partition_max_bytes) == (3, 4096)
            await link.reply(second, response())
            third = await link.receive()
            assert (third.body.session_epoch, requested(third)) == (7, []), "an idle session names no partition"
            await link.reply(third, response(data(0, batch(0), 1), data(1, batch(101), 102)))
            assert requested(await link.receive()) == [(0, 1), (1, 102)]
            found = [[(number, end, following) for number, end, _, following, _, _ in each.partitions]
                     for each in repeats.seen]  # fmt: skip
            assert found == [[(1, 101, 101)], [], [(0, 1, 1), (1, 102, 102)]]
            records = repeats.seen[0].partitions[0][-1]
            assert [(r.topic, r.partition, r.offset, r.value) for r in records] == [("t", 1, 100, b"v")]
            connection.close()

    run(main())


UNUSUAL = {
    "an error": response(data(0, None, 0), error_code=70),
    "an error of a partition": response(data(0, None, 0, error_code=6)),
    "a throttle time": response(data(0, batch(0), 1), throttle_time=20),
    "another session": response(data(0, batch(0), 1), session_id=SESSION + 1),
    "a partition that was not requested": response(data(2, batch(0), 1)),
    "a preferred replica": response(data(0, None, 0, preferred_read_replica=2)),
    "aborted transactions": response(
        data(0, batch(0), 1, aborted_transactions=[{"producer_id": 1, "first_offset": 0}])
    ),
    "a hint of another leader": response(data(0, batch(0), 1, current_leader={"leader_id": 2, "leader_epoch": 9})),
    "more records in the log": response(data(0, batch(0), 2)),
    "damaged records": response(data(0, batch(0)[:-1] + b"?", 1)),
    "a part of a batch": response(data(0, batch(0)[:-1], 1)),
    "records before the offset": response(data(1, batch(7), 8)),
    "20 KB": response(data(0, encode_batch([Entry(value=b"v" * 20_000)], base_offset=0, leader_epoch=3), 1)),
    "1 MB": response(data(0, encode_batch([Entry(value=b"v" * 1_000_000)], base_offset=0, leader_epoch=3), 1)),
    "a partition twice": response(data(0, batch(0), 1), data(0, batch(0), 1)),
}


@pytest.mark.parametrize("what", [*UNUSUAL, "unknown tags", "no room", "two bytes too few", "another id"])
def test_nothing_follows_a_response_with(what: str) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            repeats = Repeats(room=10 if what == "no room" else 1 << 20)
            connection, link, call, first = await start(broker, repeats)
            sent = frame(
                first.correlation_id + (what == "another id"),
                UNUSUAL.get(what, response(data(0, batch(0), 1))),
                unknown_tags=what == "unknown tags",
            )
            if what == "two bytes too few":
                sent = (len(sent) - 6).to_bytes(4, "big") + sent[4:-2]
            await link.send(sent)
            if what in ("two bytes too few", "another id"):
                assert isinstance(await failure(call), HeadraceError)
            else:
                assert (await call).body.responses
                connection.start(METADATA, ALL_TOPICS)
                following = await link.receive()
                assert (following.api_key, following.correlation_id) == (METADATA.key, first.correlation_id + 1)
            assert repeats.seen == []
            connection.close()

    run(main())


def test_read_committed_waits_for_the_last_stable_offset() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link, _, first = await start(broker, Repeats(read_committed=True))
            await link.reply(first, response(data(0, batch(0), 9, last_stable_offset=1)))
            second = await link.receive()
            assert (requested(second), second.body.isolation_level) == ([(0, 1)], 1)
            connection.close()

    run(main())


def test_after_the_last_epoch_of_a_session_comes_the_first() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link, _, first = await start(broker, Repeats(epoch=2**31 - 1))
            await link.reply(first, response())
            assert (await link.receive()).body.session_epoch == 1
            connection.close()

    run(main())


def test_the_response_after_the_last_repetition_goes_to_the_caller() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            repeats = Repeats(last=2)
            connection, link, call, request = await start(broker, repeats)
            for _ in range(2):
                await link.reply(request, response())
                request = await link.receive()
            await link.reply(request, response(data(0, batch(0), 1)))
            assert len((await call).body.responses[0].partitions) == 1
            assert (len(repeats.seen), connection.in_flight) == (2, 0)
            connection.close()

    run(main())


@pytest.mark.parametrize("what", ["another request", "a re-authentication"])
def test_the_repetition_ends_with(what: str) -> None:
    """The correlation ids stay in order, also if the next request was repeated before."""

    async def main() -> None:
        async with FakeBroker() as broker:
            repeats = Repeats()
            connection, link, call, request = await start(broker, repeats)
            await link.reply(request, response())
            second = await link.receive()
            if what == "another request":
                other = connection.start(METADATA, ALL_TOPICS)
                third = await link.receive()
                assert (third.api_key, third.correlation_id) == (METADATA.key, second.correlation_id + 1)
            else:
                connection.hold()
            await link.reply(second, response())
            assert (await call).body.session_id == SESSION
            assert len(repeats.seen) == 1
            if what == "another request":
                await link.reply(third, metadata("after"))
                assert (await other).body.cluster_id == "after"
            connection.close()

    run(main())


def test_ids_stay_in_order_after_a_large_response_was_followed_by_a_request_that_is_not_repeated() -> None:
    """The native step does not look at a frame of 20 KB, and Python follows it up on the receiving thread."""

    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            connection.receive_on_a_thread()
            following = NextRequest(NO_FETCH, lambda _: None)
            call = connection.start(FETCH, NO_FETCH, on_receipt=lambda _: lambda: following, repetition=Repeats())
            first = await link.receive()
            await link.reply(first, UNUSUAL["20 KB"])
            second = await link.receive()
            other = connection.start(METADATA, ALL_TOPICS)
            third = await link.receive()
            ids = [each.correlation_id - first.correlation_id for each in (second, third)]
            assert ids == [1, 2]
            await link.reply(second, response())
            assert (await call).body.session_id == SESSION
            await link.reply(third, metadata("after"))
            assert (await other).body.cluster_id == "after"
            connection.close()

    run(main())


def test_each_repeated_request_has_the_whole_request_timeout() -> None:
    async def main(scale: float) -> None:
        timeout = 0.4 * scale
        async with FakeBroker() as broker:
            repeats = Repeats()
            _, link, call, request = await start(broker, repeats, request_timeout_ms=round(1000 * timeout))
            for _ in range(4):
                await asyncio.sleep(timeout / 2)
                assert not call.done()
                await link.reply(request, response())
                request = await link.receive()
            assert isinstance(await failure(call), RequestTimeoutError)
            assert len(repeats.seen) == 4

    patiently(lambda scale: run(main(scale)))


@pytest.mark.parametrize("by_broker", [True, False])
def test_a_call_that_is_repeated_fails_with_its_connection(by_broker: bool) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link, call, request = await start(broker, Repeats())
            await link.reply(request, response())
            await link.receive()
            if by_broker:
                link.close()
            else:
                connection.close()
            assert isinstance(await failure(call), NetworkError)

    run(main())


def test_a_partition_that_is_not_requested_any_more_is_unusual() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            repeats = Repeats()
            request = {"max_wait_ms": 1, "max_bytes": 2, "session_id": SESSION, "session_epoch": 1, "room": 9999}
            repeats.fetch.prepare([(0, TOPIC.bytes, 0, None)], version=VERSION, **request)
            connection, link, call, first = await start(broker, repeats)
            await link.reply(first, response(data(0, batch(0), 1)))
            assert (await call).body.responses
            connection.close()

    run(main())


PLACES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=12, unique=True).map(sorted)


@settings(deadline=None, max_examples=60)
@given(
    version=st.integers(FETCH.lowest, FETCH.highest),
    places=PLACES,
    rack=st.text(max_size=200),
    client=st.none() | st.text(max_size=20),
    committed=st.booleans(),
)
def test_a_repeated_request_is_encoded_as_any_other(
    version: int, places: list[tuple[int, int]], rack: str, client: str | None, committed: bool
) -> None:
    """Byte by byte. The records of each partition advance it by one offset."""
    ids = [uuid.UUID(int=1 + number) for number in range(4)]
    fetch = DirectFetch(
        client_id=client,
        min_bytes=3,
        read_committed=committed,
        rack=rack,
        check_crcs=True,
        max_batch_bytes=1 << 20,
        lane=None,
    )
    changes = [(place, ids[place[0]].bytes, place[1], ("t", 10 * place[1], 4, 5)) for place in places]
    request = {"max_wait_ms": 1, "max_bytes": 2, "session_id": SESSION, "session_epoch": 8, "room": 1 << 20}
    fetch.prepare(changes, version=version, **request)
    fields: dict[int, list[dict[str, Any]]] = {}
    items: dict[int, list[dict[str, Any]]] = {}
    for topic, number in places:
        items.setdefault(topic, []).append(data(number, batch(10 * number), 10 * number + 1))
        wanted = {"partition": number, "current_leader_epoch": 4, "fetch_offset": 10 * number + 1}
        fields.setdefault(topic, []).append({**wanted, "partition_max_bytes": 5})
    topics = [{"topic_id": ids[topic], "partitions": each} for topic, each in items.items()]
    got = answer(FETCH, version, throttle_time=0, error_code=0, session_id=SESSION, responses=topics)
    expected = encode_request(
        FETCH,
        version,
        42,
        client,
        {
            "replica_id": -1,
            "max_wait": 1,
            "min_bytes": 3,
            "max_bytes": 2,
            "isolation_level": int(committed),
            "session_id": SESSION,
            "session_epoch": 9,
            "topics": [{"topic_id": ids[topic], "partitions": each} for topic, each in fields.items()],
            "forgotten_topics_data": (),
            "rack_id": rack,
        },
    )
    assert next_request(fetch, frame(41, got), 41) == bytes(expected)


@settings(deadline=None, max_examples=300)
@given(
    places=st.lists(st.sampled_from([0, 1]), max_size=2, unique=True),
    damage=st.lists(st.tuples(st.integers(4, 400), st.integers(0, 255)), max_size=3),
)
def test_a_response_that_is_usual_says_the_same_to_the_general_decoder(
    places: list[int], damage: list[tuple[int, int]]
) -> None:
    sent = bytearray(frame(41, response(*(data(number, batch(100 * number), 1) for number in places))))
    for at, value in damage:
        if at < len(sent):
            sent[at] = value
    repeats = Repeats()
    ours, broker = socket.socketpair()
    with ours, broker:
        receiver = FrameReceiver(ours.fileno(), 0.0)
        receiver.arm(repeats.fetch, 41)
        broker.sendall(sent)
        received = receiver.receive()
    if not isinstance(received, DirectResponse):
        assert received == (len(sent) - 4, bytes(sent[4:])), "it goes to the general decoder"
        return
    body = decode_response(FETCH, VERSION, memoryview(bytes(sent[4:])))
    assert (body.error_code, body.throttle_time.total_seconds(), body.session_id) == (0, 0, SESSION)
    found = [each for topic in body.responses for each in topic.partitions]
    assert [(each.partition_index, each.high_watermark, each.last_stable_offset) for each in found] == [
        (number, high, stable) for number, high, stable, *_ in received.partitions
    ]
    for each, (number, _, _, following, size, records) in zip(found, received.partitions, strict=True):
        assert (each.error_code, each.preferred_read_replica, each.aborted_transactions or ()) == (0, -1, ())
        assert size == len(each.records or b"")
        assert following == (next_offset(each.records, 100 * number) if size else 100 * number)
        if size:
            decoded = decode(each.records, topic="t", partition=number, position=100 * number)
            assert list(records) == list(decoded)


def next_request(fetch: DirectFetch, received: bytes, correlation_id: int) -> bytes:
    """What is sent after a response."""
    ours, broker = socket.socketpair()
    with ours, broker:
        receiver = FrameReceiver(ours.fileno(), 0.0)
        receiver.arm(fetch, correlation_id)
        broker.sendall(received)
        assert isinstance(receiver.receive(), DirectResponse)
        assert receiver.disarm() == correlation_id + 1
        return broker.recv(65536)
