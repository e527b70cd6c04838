"""Both producers behind one blocking interface, so that one test runs with each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from headrace import AsyncProducer, Producer

# A Producer, or a class with the same interface.
AnyProducer = Any
MakeProducer = Callable[..., AnyProducer]


class BlockingAsyncProducer:
    """An AsyncProducer with its own event loop, which runs during each call. Deliveries are the same."""

    def __init__(self, config: Any = None, /, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self.producer = AsyncProducer(config, **settings)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.producer, name)
        return lambda *args, **keywords: self._loop.run_until_complete(method(*args, **keywords))

    def metrics(self) -> dict[str, Any]:
        return self.producer.metrics()

    def close(self, **keywords: Any) -> None:
        if not self._loop.is_closed():
            try:
                self._loop.run_until_complete(self.producer.close(**keywords))
            finally:
                if self.producer._parts.guard.is_closed:
                    self._loop.close()


PRODUCER_KINDS: dict[str, MakeProducer] = {"sync": Producer, "async": BlockingAsyncProducer}


def closing_producers(kind: MakeProducer) -> Iterator[MakeProducer]:
    """For fixtures: creates producers of one kind and closes them after the test. A test that expects delivery errors
    must have checked them."""
    made: list[AnyProducer] = []

    def make(config: Any = None, /, **settings: Any) -> AnyProducer:
        made.append(kind(config, **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.close(timeout=20)
