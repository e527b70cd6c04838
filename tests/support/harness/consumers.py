"""Both consumers behind one blocking interface, so that one test runs with each."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from headrace import AsyncConsumer, Consumer, Record, TopicPartition
from support.brokers.topic_contents import Row, by_place, row

# A Consumer, or a class with the same interface.
AnyConsumer = Any
MakeConsumer = Callable[..., AnyConsumer]

_TIMEOUT = 60.0


class BlockingAsyncConsumer:
    """An AsyncConsumer with its own event loop, which runs during each call."""

    def __init__(self, config: Any = None, /, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._consumer = AsyncConsumer(config, **settings)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._consumer, name)

        async def call(*args: Any, **keywords: Any) -> Any:
            result = method(*args, **keywords)
            return await result if inspect.isawaitable(result) else result

        return lambda *args, **keywords: self._loop.run_until_complete(call(*args, **keywords))

    def wakeup(self) -> None:
        self._consumer.wakeup()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Also works in listeners, which are called inside the loop."""
        self._consumer.pause(partitions)

    def __iter__(self) -> Iterator[Record]:
        records = self._consumer.__aiter__()
        while True:
            try:
                yield self._loop.run_until_complete(anext(records))
            except StopAsyncIteration:
                return

    def close(self, **keywords: Any) -> None:
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._consumer.close(**keywords))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def __enter__(self) -> Self:
        self._loop.run_until_complete(self._consumer.__aenter__())
        return self

    def __exit__(self, *problem: Any) -> None:
        self._loop.run_until_complete(self._consumer.__aexit__(*problem))
        self.close()


def closing_all(kind: MakeConsumer) -> Iterator[MakeConsumer]:
    """For fixtures: creates consumers of one kind and closes them after the test."""
    made: list[AnyConsumer] = []

    def make(config: Any = None, /, **settings: Any) -> AnyConsumer:
        made.append(kind(config, **settings))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


KINDS: dict[str, MakeConsumer] = {"sync": Consumer, "async": BlockingAsyncConsumer}


def poll_until(consumer: AnyConsumer, count: int, timeout: float = _TIMEOUT) -> list[Record]:
    """At least `count` records; more if the last poll returns more."""
    deadline = time.monotonic() + timeout
    records: list[Record] = []
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records within {timeout:g} s"
        records += consumer.poll(1.0)
    return records


def read_rows(consumer: AnyConsumer, partitions: Iterable[TopicPartition], timeout: float = _TIMEOUT) -> list[Row]:
    """All records from the positions to the current log ends, by partition and offset."""
    rows: list[Row] = []
    left = dict(consumer.end_offsets(partitions))
    deadline = time.monotonic() + timeout
    while left:
        assert time.monotonic() < deadline, f"not read to {left} within {timeout:g} s"
        rows += map(row, consumer.poll(0.1))
        left = {tp: end for tp, end in left.items() if consumer.position(tp) < end}
    return by_place(rows)


def is_fetching(consumer: AnyConsumer, tp: TopicPartition) -> bool:
    """Whether records of the partition are being fetched or decoded, or are about to be fetched."""
    inner: Any = getattr(consumer, "_consumer", consumer)
    buffer = inner._parts.buffer
    with buffer.lock:
        state = buffer.assignment.get(tp)
        is_wanted = not state.paused and buffer.assignment.is_running_low(state)
        return bool(state.in_flight or state.undecoded or is_wanted)


def assigned(
    make: MakeConsumer, bootstrap_servers: str, topic: str, partitions: int = 1, **settings: Any
) -> AnyConsumer:
    """A consumer that reads the topic from its beginning."""
    consumer = make(bootstrap_servers=bootstrap_servers, **({"auto_offset_reset": "earliest"} | settings))
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    return consumer
