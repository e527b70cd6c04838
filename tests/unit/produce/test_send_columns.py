"""`send_arrow` and the memory of a producer. No broker runs, and no sender: the tests take the batches themselves, or
nobody does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace import AsyncProducer, Producer
from headrace._aio.produce.accumulator import Accumulator
from headrace._machines.cluster import Leader, Partition, Topic
from headrace.errors import ConfigError, RecordTooLargeError, RequestTimeoutError
from headrace.formats import Json
from headrace.records import decode
from headrace.types import Node
from support.harness.interrupts import Interrupter, interrupted_everywhere
from support.harness.producers import PRODUCER_KINDS, AnyProducer, MakeProducer
from support.harness.waiting import wait_for

UNREACHABLE = {"bootstrap_servers": "127.0.0.1:1"}
PARTITIONS = 3
MB = 2**20


@pytest.fixture(params=list(PRODUCER_KINDS))
def make(request: pytest.FixtureRequest) -> Iterator[MakeProducer]:
    """Producers that know the topic "t"."""
    made: list[AnyProducer] = []

    def make_one(**settings: Any) -> AnyProducer:
        made.append(PRODUCER_KINDS[request.param](**{"max_block_ms": 300, **UNREACHABLE, **settings}))
        without_sender(made[-1])
        return made[-1]

    yield make_one
    for producer in made:
        accumulator_of(producer).incomplete.clear()
        producer.close(timeout=0)


def without_sender(producer: AnyProducer) -> None:
    inner: AsyncProducer | Producer = getattr(producer, "producer", producer)
    inner._parts.lifecycle.start = lambda: None  # type: ignore[assignment,method-assign,return-value]
    know_topic(accumulator_of(producer))


def accumulator_of(producer: AnyProducer) -> Accumulator:
    inner: AsyncProducer | Producer = getattr(producer, "producer", producer)
    return inner._parts.accumulator


def know_topic(accumulator: Accumulator, partitions: int = PARTITIONS) -> None:
    with accumulator.lock:
        accumulator._wanted.add("t")
        accumulator.cluster.brokers = {1: Node(1, "127.0.0.1", 1)}
        leader = Partition(Leader(1, 0), (1,), (1,), ())
        accumulator.cluster.topics["t"] = Topic("t", None, False, dict.fromkeys(range(partitions), leader))
        accumulator.metadata_changed()


class Stream:
    """Arrow batches of about 100 KB, and how many of them were read."""

    def __init__(self, count: int, column: str = "value") -> None:
        self.read = 0
        self._batch = pa.record_batch({column: ["x" * 1000] * 100})
        self.reader = pa.RecordBatchReader.from_batches(self._batch.schema, self._batches(count))

    def _batches(self, count: int) -> Iterator[pa.RecordBatch]:
        for _ in range(count):
            self.read += 1
            yield self._batch


class Sending:
    """Takes the batches of a producer and completes them, instead of its sender."""

    def __init__(self, accumulator: Accumulator) -> None:
        self.most = 0
        self.records = 0
        self._accumulator = accumulator

    def take(self) -> None:
        accumulator = self._accumulator
        self.most = max(self.most, accumulator.memory.used)
        closed, _ = accumulator.take_closed(time.monotonic())
        for batch in closed:
            self.records += len(batch)
            accumulator.done(batch, batch.size)
            batch.complete(0)
        accumulator.release_waiters()


@pytest.mark.parametrize(
    ("column", "formats"), [("value", {}), ("text", {"value": Json("text string")})], ids=["bytes", "json"]
)
def test_a_stream_is_read_no_further_than_the_memory_has_room(
    make: MakeProducer, column: str, formats: dict[str, Any]
) -> None:
    producer, stream = make(buffer_memory=MB), Stream(300, column)
    with pytest.raises(RequestTimeoutError, match=r"buffer.memory=1048576 is full"):
        producer.send_arrow("t", stream.reader, **formats)
    assert 5 < stream.read <= 11
    assert producer.metrics()["buffered_bytes"] <= MB


def test_an_event_loop_runs_while_a_stream_computes_its_data() -> None:
    async def main() -> None:
        loop_runs = threading.Event()

        def batches() -> Iterator[pa.RecordBatch]:
            assert loop_runs.wait(30), "the event loop waits for the data"
            yield pa.record_batch({"value": [b"x"]})

        producer = AsyncProducer(**UNREACHABLE)
        without_sender(producer)
        reader = pa.RecordBatchReader.from_batches(pa.schema({"value": pa.binary()}), batches())
        sending = asyncio.create_task(producer.send_arrow("t", reader))
        asyncio.get_running_loop().call_later(0.01, loop_runs.set)
        assert len(await sending) == 1
        accumulator_of(producer).incomplete.clear()
        await producer.close(timeout=0)

    asyncio.run(main())


def test_parallel_calls_stay_within_the_memory(make: MakeProducer) -> None:
    producer = make(buffer_memory=4 * MB, compression_type="gzip")  # which takes long: all of them encode at a time
    inner = getattr(producer, "producer", producer)
    table = pa.table({"value": [b"x" * 1000] * 3000})
    errors: list[BaseException] = []

    def send() -> None:
        try:
            if isinstance(inner, AsyncProducer):
                asyncio.run(_send(inner, table))
            else:
                inner.send_arrow("t", table)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    threads = [threading.Thread(target=send) for _ in range(32)]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        most = max(most, producer.metrics()["buffered_bytes"])
    assert {type(error) for error in errors} == {RequestTimeoutError}
    assert 2 * MB < max(most, producer.metrics()["buffered_bytes"]) <= 4 * MB


async def _send(producer: AsyncProducer, table: pa.Table) -> None:
    await producer.send_arrow("t", table)


def test_parallel_calls_and_single_records_all_end_and_leave_no_memory_behind(make: MakeProducer) -> None:
    """Calls with partial batches for many partitions, which must not wait for the memory of each other."""
    producer = make(buffer_memory=100_000, linger_ms=0, max_request_size=60_000, max_block_ms=60_000)
    inner = getattr(producer, "producer", producer)
    accumulator = accumulator_of(producer)
    sending = Sending(accumulator)
    rows = 2000
    table = pa.table(
        {"value": [b"x" * (number % 7 * 100) for number in range(rows)], "key": list(map(str, range(rows)))}
    )
    table = pa.concat_tables([table, pa.table({"value": [b"y" * 50_000], "key": ["large"]})])
    errors: list[BaseException] = []

    def send(number: int) -> None:
        try:
            if isinstance(inner, AsyncProducer):
                asyncio.run(_send_both(inner, table, number))
            elif number % 2:
                inner.send_arrow("t", table)
            else:
                inner.send_all("t", table["value"].to_pylist())
        except BaseException as error:  # noqa: BLE001 - the test raises it
            errors.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        sending.take()
    accumulator.begin_flush(sending)
    wait_for("the last batches", lambda: sending.take() is None and not accumulator.incomplete)
    assert not errors, errors[0]
    assert sending.records == 8 * (rows + 1)
    assert sending.most <= 100_000
    gc.collect()
    assert accumulator.memory.used == 0


async def _send_both(producer: AsyncProducer, table: pa.Table, number: int) -> None:
    if number % 2:
        await producer.send_arrow("t", table)
    else:
        await producer.send_all("t", table["value"].to_pylist())


@pytest.mark.parametrize(
    ("settings", "limit"),
    [({"buffer_memory": 50_000}, "buffer.memory=50000"), ({"max_request_size": 50_000}, "max.request.size=50000")],
)
def test_a_record_that_send_refuses_is_refused(make: MakeProducer, settings: dict[str, int], limit: str) -> None:
    producer = make(**settings)
    large = b"x" * 50_000
    with pytest.raises(RecordTooLargeError, match=f"takes up to .* exceeds {limit}"):
        producer.send("t", large, partition=0)
    with pytest.raises(RecordTooLargeError, match=f"^row 1: the record takes up to .* exceeds {limit}"):
        producer.send_arrow("t", pa.table({"value": [b"a", large, b"c"], "partition": [0, 0, 0]}))
    assert len(accumulator_of(producer).incomplete) == 1, "the row before it"


@pytest.mark.parametrize("kind", ["send", "send_arrow"])
def test_a_partition_that_may_have_been_added_is_waited_for(make: MakeProducer, kind: str) -> None:
    patient, brief = make(max_block_ms=60_000), make()
    accumulator = accumulator_of(patient)

    def send(partition: int, producer: AnyProducer = patient) -> None:
        if kind == "send":
            producer.send("t", b"x", partition=partition)
        else:
            producer.send_arrow("t", pa.table({"value": [b"w", b"x"], "partition": [0, partition]}))

    added = threading.Timer(0.1, know_topic, (accumulator, 6))
    added.start()
    send(5)
    added.join()
    assert 5 in {batch.partition for batch in accumulator.incomplete}
    same = threading.Timer(0.1, know_topic, (accumulator, 6))
    same.start()
    with pytest.raises(
        ConfigError if kind == "send" else ValueError, match=r"no partition 6|partition 6 does not exist"
    ):
        send(6)
    same.join()
    know_topic(accumulator_of(brief), 6)
    with pytest.raises(RequestTimeoutError, match=r"t had 6 partitions, .* partition 7 .* max.block.ms=300: no broker"):
        send(7, brief)
    began = time.monotonic()
    with pytest.raises(ValueError, match="partition"):
        send(-1)
    assert time.monotonic() - began < 30, "it waited for max.block.ms, and it cannot have been added"


def test_rows_without_a_timestamp_get_the_time_at_which_they_were_read(make: MakeProducer) -> None:
    """A stream may last for hours."""
    producer = make()
    times: list[float] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(2):
            began = time.time()
            wait_for("another millisecond", lambda began=began: time.time() > began + 0.002)
            times.append(time.time() * 1000)
            yield pa.record_batch({"value": [b"%d" % number]})

    producer.send_arrow("t", pa.RecordBatchReader.from_batches(pa.schema({"value": pa.binary()}), batches()))
    found = [decode(batch.encoded, topic="t", partition=0, position=0) for batch in accumulator_of(producer).incomplete]
    for records, began in zip(found, times, strict=True):
        assert next(iter(records)).timestamp >= int(began)


def test_an_interrupt_anywhere_takes_no_memory_away() -> None:
    table = pa.table({"value": [b"x" * 100] * 20, "partition": [number % 3 for number in range(20)]})

    def scenario(at: int) -> bool:
        producer = Producer(linger_ms=60_000, batch_size=500, buffer_memory=10_000, **UNREACHABLE)
        without_sender(producer)
        accumulator = accumulator_of(producer)
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            producer.send_arrow("t", table)
        gc.collect()
        assert accumulator.memory.used == sum(batch.size for batch in list(accumulator.incomplete))
        accumulator.incomplete.clear()
        producer.close(timeout=0)
        return interrupter.has_raised

    interrupted_everywhere(scenario)
