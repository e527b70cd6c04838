"""What clients report to a system for traces and metrics, if one is installed: `headrace.otel.instrument()`.

A client asks once, when it is created, whether a system is installed. Without one, nothing here is called: clients
choose their functions then, and check at most once for each poll, batch or commit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sized
from typing import Any, Protocol

from .._record_batch import Delivery, ProducerBatch
from ..config.client import ClientConfig
from ..records import Record, Records


class ConsumerTelemetry(Protocol):
    """Of one consumer or share consumer."""

    def polled(self, records: Records, waited: float | None) -> None:
        """A poll returns these, after so many seconds; None if they were buffered. On the user's thread."""

    def poll_failed(self, error: BaseException, seconds: float) -> None: ...
    def committed(self, seconds: float, error: BaseException | None) -> None:
        """On the client's thread."""

    def call_handler(self, handler: Callable[[Record], Any], record: Record, attempt: int) -> Any:
        """Calls the handler of run(), and returns its result or, in an event loop, an awaitable of it. Elsewhere it
        waits for a Future that the handler returns. On any thread."""

    def call_dead_letter(self, write: Callable[[], Any], record: Record, error: BaseException) -> Any:
        """Calls the function that writes a dead letter. On any thread."""


class SentRecord(Protocol):
    """A call of send(). One of `accepted` and `rejected` ends it, on the user's thread."""

    headers: list[tuple[str, Any]] | None
    """To send the record with."""

    def accepted(self, delivery: Delivery) -> None: ...
    def rejected(self, error: BaseException) -> None: ...


class ProducerTelemetry(Protocol):
    """Of one producer."""

    traces_records: bool
    """Whether `send` wants to know of each record."""

    def send(self, topic: str, value: Any, headers: list[tuple[str, Any]] | None) -> SentRecord: ...
    def send_columns(
        self, topic: str | None, sent: Sized, steps: Generator[Any, Any, None]
    ) -> Generator[Any, Any, None]:
        """Passes on the steps of a send_arrow(), of which `sent` has the number of records."""

    def watch(self, batch: ProducerBatch) -> None:
        """A batch was created. With the accumulator's lock held, before it has records."""


class Telemetry(Protocol):
    def for_consumer(self, config: ClientConfig, group_id: str | None) -> ConsumerTelemetry: ...
    def for_producer(self, config: ClientConfig) -> ProducerTelemetry: ...


installed: Telemetry | None = None
