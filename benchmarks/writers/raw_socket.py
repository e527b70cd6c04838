"""The limit: the rate at which the broker accepts record batches that were encoded beforehand.

The writers send Produce requests on blocking sockets, with 5 of them in flight on each connection. Batches have the
size of the job. They have no producer id, so they can be sent repeatedly. Responses are received and dropped; the
number of records in the topic is checked afterwards, as for every writer.
"""

from __future__ import annotations

import dataclasses
import itertools
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace._protocol.messages import PRODUCE, encode_request
from headrace._record_batch import EncodedBatch, ProducerBatch

from . import LARGE_BATCH_BYTES, WriteJob, WriteMeter

IN_FLIGHT = 5
DEFAULT_BATCH_BYTES = 16_384
_VERSION = 12  # the last version with topic names
_REQUEST_TIMEOUT_MS = 30_000
_TIMEOUT = 60.0
_LENGTH = struct.Struct(">i")


def one_connection(job: WriteJob, meter: WriteMeter) -> None:
    """Like a client: each request has a batch of every partition. The broker handles one request at a time."""
    _write(job, meter, [range(job.partitions)])


def connection_per_partition(job: WriteJob, meter: WriteMeter) -> None:
    """The broker handles requests in parallel, unlike for a client with one connection per broker."""
    _write(job, meter, [(number,) for number in range(job.partitions)])


def large_batches(job: WriteJob, meter: WriteMeter) -> None:
    """Like librdkafka by default: large batches, one per request."""
    job = dataclasses.replace(job, batch_bytes=LARGE_BATCH_BYTES)
    _write(job, meter, [range(job.partitions)], batches_per_request=1)


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    frame: bytes
    records: int


def _write(
    job: WriteJob, meter: WriteMeter, connections: Sequence[Sequence[int]], batches_per_request: int = 0
) -> None:
    queues = [_requests(job, partitions, batches_per_request or len(partitions)) for partitions in connections]
    portion = -(-job.records // len(connections))
    sockets = [_connect(job.servers) for _ in connections]
    try:
        with ThreadPoolExecutor(len(connections)) as threads:
            meter.start()
            sent = threads.map(_send, sockets, queues, itertools.repeat(portion))
            meter.stop(sum(sent))
    finally:
        for each in sockets:
            each.close()


def _send(sock: socket.socket, requests: Sequence[_Request], records: int) -> int:
    """Send the requests in a cycle until there are enough records."""
    in_flight = sent = 0
    for request in itertools.cycle(requests):
        if sent >= records:
            break
        if in_flight == IN_FLIGHT:
            _receive(sock)
            in_flight -= 1
        sock.sendall(request.frame)
        in_flight += 1
        sent += request.records
    for _ in range(in_flight):
        _receive(sock)
    return sent


def _requests(job: WriteJob, partitions: Sequence[int], batches_per_request: int) -> list[_Request]:
    """At least one request, with the lines of the payload in batches for one partition after the other."""
    batches = [(partitions[i % len(partitions)], *batch) for i, batch in enumerate(encoded_batches(job))]
    found = []
    for start in range(0, len(batches), batches_per_request):
        group = batches[start : start + batches_per_request]
        frame = _frame(job.topic, {partition: encoded for partition, encoded, _ in group})
        found.append(_Request(frame, sum(count for *_, count in group)))
    return found


def encoded_batches(job: WriteJob) -> Iterator[tuple[EncodedBatch, int]]:
    """Record batches, each with its number of records."""
    batch = _empty_batch(job)
    for line in job.lines():
        if batch.append(line, timestamp=int(time.time() * 1000)) is None:
            yield batch.finish(job.codec), len(batch)
            batch = _empty_batch(job)
            batch.append(line, timestamp=int(time.time() * 1000))
    yield batch.finish(job.codec), len(batch)


def _empty_batch(job: WriteJob) -> ProducerBatch:
    return ProducerBatch(job.topic, 0, job.batch_bytes or DEFAULT_BATCH_BYTES, 0.0, None)


def _frame(topic: str, batches: dict[int, EncodedBatch]) -> bytes:
    partitions = [{"index": number, "records": batch} for number, batch in batches.items()]
    fields = {
        "transactional_id": None,
        "acks": -1,
        "timeout": _REQUEST_TIMEOUT_MS,
        "topic_data": [{"name": topic, "topic_id": None, "partition_data": partitions}],
    }
    return bytes(encode_request(PRODUCE, _VERSION, 1, "the limit", fields))


def _connect(servers: str) -> socket.socket:
    host, _, port = servers.split(",")[0].rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=_TIMEOUT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _receive(sock: socket.socket) -> None:
    """Receive and drop one response."""
    size = _LENGTH.unpack(_read(sock, _LENGTH.size))[0]
    _read(sock, size)


def _read(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size, socket.MSG_WAITALL)
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data
