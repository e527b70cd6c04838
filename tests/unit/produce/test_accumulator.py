"""Accumulator with many threads: every accepted record is in exactly one batch, in the order of its thread."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from headrace._aio.flag import Flag
from headrace._aio.produce.accumulator import Accumulator
from headrace._machines.cluster import Leader, Partition, Topic
from headrace._record_batch import Delivery, ProducerBatch
from headrace.config.producer import ProducerConfig
from headrace.errors import HeadraceError
from headrace.records import decode
from headrace.types import Node
from support.harness.interrupts import Interrupter, interrupted_everywhere

THREADS = 4
RECORDS = 50_000 if os.environ.get("SOAK") else 5_000
PARTITIONS = 3


def accumulator(**settings: object) -> Accumulator:
    made = Accumulator(ProducerConfig.parse(bootstrap_servers="b:1", **settings))
    with made.lock:
        made._wanted.add("t")
        made.cluster.brokers = {1: Node(1, "b", 1)}
        leader = Partition(Leader(1, 0), (1,), (1,), ())
        made.cluster.topics["t"] = Topic("t", None, False, dict.fromkeys(range(PARTITIONS), leader))
        made.metadata_changed()
    return made


class Sending:
    """Threads that append like a producer, and a loop instead of the sender."""

    def __init__(self, accumulator: Accumulator, seed: int) -> None:
        self.accumulator = accumulator
        self.batches: list[ProducerBatch] = []
        self.deliveries: dict[bytes, Delivery] = {}
        self.errors: list[BaseException] = []
        self._seed = seed
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(THREADS)]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        while any(thread.is_alive() for thread in self._threads):
            self.take()
        self.accumulator.refuse(lambda: HeadraceError("closed"))
        self.take()

    def take(self) -> None:
        closed, _ = self.accumulator.take_closed(time.monotonic())
        for batch in closed:
            batch.finish("none", None)
            self.batches.append(batch)
            self.accumulator.done(batch, batch.size)
        self.accumulator.release_waiters()

    def _send(self, thread: int) -> None:
        dice = random.Random(self._seed * 100 + thread)
        try:
            for number in range(RECORDS):
                value = b"%d %d" % (thread, number)
                key = dice.choice((None, b"%d" % dice.randrange(10)))
                self.deliveries[value] = self._append(value, key)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.errors.append(error)

    def _append(self, value: bytes, key: bytes | None) -> Delivery:
        found = self.accumulator.open["t"].append(value, key)
        while not isinstance(found, Delivery):
            slow = self.accumulator.append("t", value, key, None, None, None, 0)
            if isinstance(slow, Flag):
                assert slow.wait(30), "no buffer memory was released"
            else:
                found = slow
        return found


@contextlib.contextmanager
def while_garbage_is_collected(look: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Call `look` in every garbage collection and yield its errors. Any allocation may run the collector and with it
    Python code (prometheus_client has such a callback), so that other threads run in between."""
    errors: list[BaseException] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        try:
            look()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            errors.append(error)

    thresholds = gc.get_threshold()
    gc.callbacks.append(callback)
    gc.set_threshold(1)
    try:
        yield errors
    finally:
        gc.callbacks.remove(callback)
        gc.set_threshold(*thresholds)


@pytest.mark.parametrize(
    "settings",
    [{"linger_ms": 0}, {"linger_ms": 1, "batch_size": 200}, {"batch_size": 0}, {"buffer_memory": 500}],
    ids=str,
)
def test_every_record_of_many_threads_is_in_one_batch_and_in_order(settings: dict[str, int]) -> None:
    sending = Sending(accumulator(**settings), seed=1)
    sending.run()
    assert not sending.errors, sending.errors
    assert not sending.accumulator.incomplete
    assert sending.accumulator.memory.used == 0
    places: dict[int, list[bytes]] = defaultdict(list)
    for batch in sending.batches:
        base = len(places[batch.partition])
        assert batch.encoded is not None
        values = [each.value or b"" for each in decode(batch.encoded, topic="t", partition=0, position=0)]
        assert len(values) == len(batch)
        places[batch.partition] += values
        batch.complete(base)
    found = [value for values in places.values() for value in values]
    assert len(found) == THREADS * RECORDS
    assert set(found) == set(sending.deliveries)
    for partition, values in places.items():
        for thread in range(THREADS):
            own = [int(value.split()[1]) for value in values if value.startswith(b"%d " % thread)]
            assert own == sorted(own), "out of order"
        for offset, value in enumerate(values):
            delivery = sending.deliveries[value]
            assert (delivery.partition, delivery.offset) == (partition, offset)


def test_open_batches_can_be_used_while_an_append_collects_garbage() -> None:
    made = accumulator(linger_ms=0)
    made.append("t", b"", None, None, 0, 0, 0)
    batches = made.open["t"]

    def look() -> None:
        batches.get(0)
        batches.append(b"another", None, None, 0, 0)

    with while_garbage_is_collected(look) as errors:
        found = [batches.append(b"%d" % number, None, [("n", b"v")], 0, 0) for number in range(100)]
    assert not errors, errors[0]
    assert all(isinstance(each, Delivery) for each in found)


@pytest.mark.parametrize("end", ["complete", "fail", "split"])
def test_deliveries_can_be_asked_for_while_the_end_of_their_batch_collects_garbage(end: str) -> None:
    made = accumulator(linger_ms=0, batch_size=0)
    for _ in range(50):
        delivery = made.append("t", b"x", None, None, 0, 0, 0)
        assert isinstance(delivery, Delivery)
        (batch,), _ = made.take_closed(time.monotonic() + 1)
        batch.add_waiter(Flag())
        argument = {"complete": 5, "fail": HeadraceError("failed"), "split": [ProducerBatch("t", 0, 1, 0.0, None)]}[end]

        def look(delivery: Delivery = delivery, batch: ProducerBatch = batch) -> None:
            _ = delivery.is_done, delivery.offset, batch.parts
            batch.add_waiter(Flag())

        with while_garbage_is_collected(look) as errors:
            getattr(batch, end)(argument)
            _ = batch.parts
        assert not errors, errors[0]


@pytest.mark.parametrize("key", [None, b"key"])
def test_an_append_that_is_interrupted_anywhere_leaves_no_record_behind(key: bytes | None) -> None:
    """Every record accepted before or after is in one batch, and the sender was woken for every batch."""

    def scenario(at: int) -> bool:
        made = accumulator(linger_ms=0, batch_size=50)
        wakes: list[float] = []
        made.wake = lambda: wakes.append(time.monotonic())
        accepted = []

        def send(value: bytes) -> None:
            found = made.append("t", value, key, None, 0, None, 0)
            assert isinstance(found, Delivery)
            accepted.append(value)

        send(b"1" * 40)
        wakes.clear()
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            send(b"2" * 40)
        is_announced = bool(wakes)
        opened = [made.open["t"].get(number) for number in range(PARTITIONS)]
        assert is_announced or not any(each is not None and each.created > 0 and not len(each) for each in opened)
        send(b"3" * 40)
        values: list[bytes] = []
        for _ in range(2):
            for batch in made.take_closed(time.monotonic() + 1)[0]:
                encoded = batch.finish("none", None)
                values += [each.value or b"" for each in decode(encoded, topic="t", partition=0, position=0)]
                made.done(batch, batch.size)
        assert set(accepted) <= set(values)
        assert len(values) == len(set(values)), "a batch was sent twice"
        assert not made.incomplete
        assert made.memory.used == 0
        return interrupter.has_raised

    interrupted_everywhere(scenario, more_than=10)
