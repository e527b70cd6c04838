"""Share consumers without threads and sockets: a model of a broker, real records, the real clock."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from headrace import AsyncShareConsumer, Record, Records, ShareConsumer
from headrace._aio.share.parts import ShareParts
from headrace._machines.share.responses import AcquiredData
from headrace.records import Batch, decode
from support.brokers.record_batches import Entry, encode_batch
from support.harness.interrupts import Interrupter
from support.harness.share_broker_model import Model
from support.harness.share_planner import SharePlannerDriver


class RealRecords(Model):
    """A model with real records."""

    def decode(self, arrival: AcquiredData) -> tuple[list[Any], list[tuple[int, int]]]:
        tp = arrival.acquired.tp
        size = len(self.logs[tp.partition])
        data = encode_batch([Entry(value=b"%d" % number) for number in range(size)])
        whole: Batch = decode(memoryview(data), topic=tp.topic, partition=tp.partition, position=0)
        return [whole.between(*each) for each in arrival.ranges], []


class ShareConsumerDriver:
    """A consumer that has acquired and buffered a whole partition."""

    opened: ClassVar[list[ShareConsumerDriver]] = []

    def __init__(self, kind: str, *, count: int = 12, **settings: Any) -> None:
        settings = {"bootstrap_servers": "127.0.0.1:1", "group_id": "g", "max_poll_records": 4} | settings
        self.loop = asyncio.new_event_loop()
        self.consumer: Any = ShareConsumer(**settings) if kind == "sync" else AsyncShareConsumer(**settings)
        self.parts: ShareParts = self.consumer._parts
        self._is_sync = kind == "sync"
        self.model = RealRecords({0: count}, batch=count)
        settings = self.parts.buffer.planner.settings
        self.planner_driver = SharePlannerDriver(
            self.model, is_explicit=settings.is_explicit, is_strict=settings.is_strict, renews=settings.renews
        )
        self.planner = self.parts.buffer.planner = self.planner_driver.planner
        self._streams = SimpleNamespace(progress=asyncio.Event())
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answering: threading.Thread | None = None
        self.parts.lifecycle.runtime = SimpleNamespace(loop=self.loop, streams=self._streams)  # type: ignore[assignment]
        self.consumer.subscribe(["t"])
        self.planner_driver.now = time.monotonic()
        self.planner.wait(count, self.planner_driver.now + 1.0)
        self.planner_driver.step()
        self.planner.poll_ends()
        assert self.planner.buffer.count == count
        self.seen: list[int] = []
        self.opened.append(self)

    def close(self) -> None:
        if not self.loop.is_closed():
            self._wanted.put(False)
            if self._answering is not None:
                self._answering.join(60)
            self.parts.lifecycle.runtime = None
            self.call(self.consumer.close)
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._is_sync:
            return method(*args, **options)

        async def inside() -> Any:
            result = method(*args, **options)
            return await result if asyncio.iscoroutine(result) else result

        return self.loop.run_until_complete(inside())

    def poll(self, interrupter: Interrupter | None = None) -> Records:
        """Poll; return no records if the poll is interrupted."""
        try:
            with interrupter or contextlib.nullcontext():
                records: Records = self.call(self.consumer.poll, 0)
        except KeyboardInterrupt:
            return Records.EMPTY
        self.saw(*records)
        return records

    def saw(self, *records: Record) -> None:
        self.seen += [record.offset for record in records]

    def answers_at_once(self) -> None:
        """Handle requests on another thread at once, like the real streams, so that the test need not call `send`."""
        buffer = self.parts.buffer

        def answer() -> None:
            while self._wanted.get():
                with buffer.lock:
                    self.planner_driver.now = time.monotonic()
                    self.planner_driver.step()
                buffer.poll_signal.notify()
                self.loop.call_soon_threadsafe(self._streams.progress.set)

        buffer.wake = lambda: self._wanted.put(True)
        self._answering = threading.Thread(target=answer)
        self._answering.start()

    def send(self) -> None:
        """Send all acknowledgements. No record may be accepted that the user has not seen."""
        with self.parts.buffer.lock:
            self.planner_driver.now = time.monotonic()
            self.planner.flush()
            self.planner_driver.step()
        assert {offset for _, offset in self.model.accepted} <= {*self.seen}, (self.model.accepted, self.seen)
        assert self.model.violations == []

    def check_end(self) -> None:
        """Check that every record was seen once, in order, and accepted."""
        self.send()
        assert self.seen == list(range(len(self.model.logs[0])))
        assert sorted(offset for _, offset in self.model.accepted) == self.seen
        assert self.model.acquired() == 0
        numbers = self.parts.metrics() if self.parts.lifecycle.runtime is None else self.parts.buffer.metrics()
        assert (numbers["in_hand"], numbers["buffered_records"]) == (0, 0)
        assert (numbers["records_returned"], numbers["refused"]) == (len(self.seen), 0)
