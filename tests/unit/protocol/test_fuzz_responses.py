"""Fuzzing of the message parsers and the frame reader with damaged responses of a real broker.

Every input is either decoded or raises ProtocolError and closes the connection. Nothing else is raised, nothing hangs,
and no memory is allocated for an announced length before its bytes arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
import tracemalloc
from typing import Any

from headrace._net.connection import Connection
from headrace._net.frame_pool import FramePool
from headrace._protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    APIS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    OFFSET_DELETE,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Api,
    decode_response,
)
from headrace._protocol.versions import BrokerVersions
from headrace.errors import HeadraceError, ProtocolError
from support.brokers.fake_broker import sized
from support.brokers.fake_connections import config
from support.harness.fuzz_corpus import answers
from support.harness.fuzzing import mutated, rounds

CORPUS = answers()
_OTHERS = [data for _, _, data in CORPUS]
_LONGEST = 1.0
OF_PRODUCERS = {
    PRODUCE,
    INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
}
_LARGEST = 1_000_000


def test_the_fuzzing_corpus_has_nearly_every_response_that_is_parsed() -> None:
    rare = {OFFSET_FOR_LEADER_EPOCH, OFFSET_DELETE}
    assert {api for api, _, _ in CORPUS} >= set(APIS) - rare - OF_PRODUCERS
    for api, version, data in CORPUS:
        decode_response(api, version, memoryview(data))


def test_damaged_responses_are_protocol_errors() -> None:
    refused = 0
    count = 0
    for chance in rounds(8_000):
        api, version, data = chance.choice(CORPUS)
        bad = mutated(data, chance, _OTHERS)
        count += 1
        began = time.thread_time()  # CPU time of this thread: other processes do not count
        try:
            decode_response(api, version, memoryview(bad))
        except ProtocolError:
            refused += 1
        assert time.thread_time() - began < _LONGEST, (api, bad)
    assert 0.3 < refused / count < 0.99, "mutations test nothing if all of them, or none, are rejected"


def test_an_announced_length_allocates_little_memory() -> None:
    """For example an array of two billion items in a hundred bytes."""
    tracemalloc.start()
    try:
        for chance in rounds(800, seed=2):
            api, version, data = chance.choice(CORPUS)
            bad = bytearray(data)
            at = chance.randrange(4, len(bad))
            bad[at : at + 5] = chance.choice(
                (b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\x7f\xff", b"\xfe\xff\x7f")
            )
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with contextlib.suppress(ProtocolError):
                decode_response(api, version, memoryview(bad))
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < 200 * len(bad) + 500_000, (api, version, bytes(bad))
    finally:
        tracemalloc.stop()


class Unplugged:
    """A transport without a socket."""

    is_aborted = False

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None:
        self.is_aborted = True

    def get_extra_info(self, name: str) -> Any:
        return None


def feed(connection: Connection, data: bytes, size: int) -> None:
    """Feed bytes like the event loop, into the connection's own buffer."""
    while data and connection.is_open:
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(data), size)
        buffer[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


def test_damaged_streams_are_answered_or_fail_for_good() -> None:
    """Frames with wrong lengths and ids, in pieces of any size: calls succeed, or the connection fails for good."""

    async def main() -> None:
        ended = 0
        for number, chance in enumerate(rounds(800, seed=3)):
            connection = Connection("h", 1, config(receive_message_max_bytes=_LARGEST), FramePool())
            transport = Unplugged()
            connection._transport = transport  # type: ignore[assignment]
            if chance.random() < 0.9:
                ranges = {api.key: (api.lowest, api.highest) for api in APIS}
                connection.versions = BrokerVersions("h:1", ranges)
            picked = [chance.choice(CORPUS) for _ in range(chance.randrange(1, 6))]
            calls = [_begin(connection, api, version) for api, version, _ in picked]
            stream = b"".join(
                sized(struct.pack(">i", place + 1) + data[4:]) for place, (_, _, data) in enumerate(picked)
            )
            if chance.random() < 0.9:
                stream = mutated(stream, chance, _OTHERS)
            feed(connection, stream, chance.choice((1, 7, 100, 65_536)))
            assert connection._splitter.frame is None or len(connection._splitter.frame) <= 2 * _LARGEST
            if connection.is_open:
                connection.close()
            else:
                ended += 1
                assert isinstance(connection.failure, ProtocolError)
            assert transport.is_aborted
            for call in calls:
                assert call.done()
                assert call.exception() is None or isinstance(call.exception(), HeadraceError)
            if number % 100 == 0:
                await asyncio.sleep(0)  # let callbacks run and release their memory
        assert ended > 100

    asyncio.run(main())


_FIELDS = {"client_software_name": "x", "client_software_version": "1"}


def _begin(connection: Connection, api: Api, version: int) -> asyncio.Future[Any]:
    """Start a call that expects a response of this API and version. The request itself does not matter."""
    call = connection.start(API_VERSIONS, _FIELDS, version=3)
    connection._calls[-1].api, connection._calls[-1].version = api, version
    return call
