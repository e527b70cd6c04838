"""headrace.otel without a broker: switching it on and off, and what it costs when it is off."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.metrics import NoOpMeter
from opentelemetry.trace import get_current_span

import headrace.otel
from headrace import (
    AsyncConsumer,
    AsyncProducer,
    AsyncShareConsumer,
    Consumer,
    Producer,
    ProducerRecord,
    Record,
    ShareConsumer,
)
from headrace._aio import telemetry
from headrace._aio.clients import OpenClient
from headrace._aio.flag import Flag
from headrace._aio.poll_loop import ObservedPollLoop, PollLoop
from headrace._measures import MEASURES
from headrace.errors import KafkaError, RequestTimeoutError, StateError
from headrace.otel import client_figures
from headrace.otel.conventions import error_type
from headrace.otel.message_counts import MessageCounts
from headrace.otel.producers import _WatchedBatch
from support.harness.otel import Observed, observing

SERVERS = {"bootstrap_servers": "127.0.0.1:1"}


@pytest.fixture(autouse=True)
def not_instrumented() -> Iterator[None]:
    assert telemetry.installed is None
    yield
    assert telemetry.installed is None


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )  # fmt: skip


def test_without_instrument_no_module_of_opentelemetry_is_imported() -> None:
    done = run_python(
        """
        import sys
        import headrace
        for kind in (headrace.Consumer, headrace.ShareConsumer, headrace.Producer):
            given = {} if kind is headrace.Producer else {"group_id": "g"}
            client = kind(bootstrap_servers="127.0.0.1:1", **given)
            client.metrics()
            client.close()
        extras = ("opentelemetry", "headrace.otel", "prometheus_client", "headrace.prometheus")
        print([name for name in sys.modules if name.startswith(extras)])
        """
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_without_the_api_the_error_names_the_extra() -> None:
    done = run_python("import sys; sys.modules['opentelemetry'] = None; import headrace.otel")
    assert "needs opentelemetry-api: pip install 'headrace[otel]'" in done.stderr


def test_the_sdk_is_not_needed() -> None:
    done = run_python(
        """
        import sys
        sys.modules["opentelemetry.sdk"] = None
        import headrace, headrace.otel
        headrace.otel.instrument()
        with headrace.Consumer(bootstrap_servers="127.0.0.1:1") as consumer:
            assert consumer.metrics()["polls"] == 0
        """
    )
    assert done.stderr == ""


def test_clients_are_observed_only_if_they_are_created_while_it_is_on() -> None:
    """Off, a client has the same functions as ever: there is no branch for each record."""
    before = Consumer(**SERVERS)
    with observing():
        consumer, share = Consumer(**SERVERS), ShareConsumer(**SERVERS, group_id="g")
        producer = Producer(**SERVERS)
    after = Producer(**SERVERS)
    for client in (before, after):
        assert client._parts.telemetry is None
        client.close()
    assert type(before._parts.poll_loop) is PollLoop
    assert after._open is after._parts.accumulator.open
    assert after._parts.accumulator.watch is None
    assert type(consumer._parts.poll_loop) is ObservedPollLoop
    assert share._parts.telemetry is not None
    assert producer._open == {}
    assert producer._open is not producer._parts.accumulator.open
    for client in (consumer, share, producer):
        client.close()


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer, ShareConsumer, AsyncShareConsumer, Producer, AsyncProducer])
def test_every_kind_of_client_can_be_observed(kind: Any) -> None:
    settings = SERVERS if "Producer" in kind.__name__ else {**SERVERS, "group_id": "g"}
    with observing():
        assert kind(**settings)._parts.telemetry is not None


def test_with_metrics_only_send_keeps_its_fast_path() -> None:
    with observing(traces=False), Producer(**SERVERS) as producer:
        assert producer._open is producer._parts.accumulator.open
        assert producer._parts.telemetry is not None


def test_a_second_instrument_is_refused_and_uninstrument_can_be_repeated() -> None:
    with observing():
        with pytest.raises(StateError, match=r"call headrace\.otel\.uninstrument\(\) first"):
            headrace.otel.instrument()
        headrace.otel.uninstrument()
        headrace.otel.uninstrument()


def test_figures_of_open_clients_are_exported_until_it_is_switched_off() -> None:
    with observing() as observed, Consumer(**SERVERS, group_id="g", client_id="mine") as consumer:
        name = consumer._parts.name
        points = [
            each for each in observed.points("headrace.consumer.polls") if each.attributes["headrace.client"] == name
        ]
        assert [(each.value, each.attributes["messaging.consumer.group.name"]) for each in points] == [(0, "g")]
        metric = observed.metric("headrace.consumer.buffered")
        assert (metric.unit, metric.description) == ("By", "Size of the buffered records.")
        headrace.otel.uninstrument()
        assert observed.points("headrace.consumer.polls") == []


def test_every_figure_of_metrics_has_an_instrument() -> None:
    with observing() as observed:
        clients = [Consumer(**SERVERS, group_id="g"), ShareConsumer(**SERVERS, group_id="g"), Producer(**SERVERS)]
        found = {metric.name for metric in observed.metrics() if metric.data.data_points}
        for client in clients:
            client.close()
    always = ("polls", "records", "connections", "buffered", "heartbeat_failures", "rebalances", "delivered_records")
    wanted = {
        f"headrace.{role.replace(' ', '_')}.{measure.name}"
        for role, measures in MEASURES.items()
        for measure in measures
        if measure.name in always
    }
    assert wanted <= found


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (KafkaError(19, "NOT_ENOUGH_REPLICAS", True, "…"), "NOT_ENOUGH_REPLICAS"),
        (ValueError("…"), "ValueError"),
        (StateError("…"), "headrace.errors.StateError"),
    ],
)
def test_error_types_are_names_of_errors(error: BaseException, name: str) -> None:
    assert error_type(error) == name


def test_the_program_s_own_context_is_current_again_after_a_handler() -> None:
    record = Record("orders", 0, 7, value=b"1")

    def fail(_: Record) -> None:
        assert get_current_span().get_span_context().is_valid
        raise ValueError("nonsense")

    async def sleep(_: Record) -> int:
        await asyncio.sleep(0)
        return get_current_span().get_span_context().span_id

    async def main(reports: Any) -> int:
        found: int = await reports.call_handler(sleep, record, 1)
        assert get_current_span() is program
        return found

    with observing() as observed, Consumer(**SERVERS, group_id="g") as consumer:
        reports = consumer._parts.telemetry
        assert reports is not None
        with observed.tracers.get_tracer("program").start_as_current_span("main") as program:
            assert reports.call_handler(lambda each: each.offset, record, 1) == 7
            assert get_current_span() is program
            with pytest.raises(ValueError, match="nonsense"):
                reports.call_handler(fail, record, 2)
            assert get_current_span() is program
            last = asyncio.run(main(reports))
        spans = observed.spans("process orders")
        assert [span.status.is_ok for span in spans] == [True, False, True]
        assert spans[2].context.span_id == last
        assert [span.parent for span in spans] == [None] * 3, "whatever span run() was called in"


@pytest.mark.parametrize("in_loop", [False, True], ids=["threads", "asyncio"])
def test_a_handler_may_return_a_future_of_its_outputs(in_loop: bool) -> None:
    """The outputs are sent later, in another context: their headers say which handler has made them."""

    def work(value: bytes) -> list[ProducerRecord]:
        if not value:
            raise ValueError("nonsense")
        return [ProducerRecord("invoices", value)]

    def call(reports: Any, value: bytes) -> Any:
        def handle(record: Record) -> Future[list[ProducerRecord]]:
            return pool.submit(work, record.value)

        record = Record("orders", 0, 7, value=value)
        if not in_loop:
            return reports.call_handler(handle, record, 1)

        async def main() -> Any:
            return await reports.call_handler(handle, record, 1)

        return asyncio.run(main())

    with (
        observing() as observed,
        Consumer(**SERVERS, group_id="g") as consumer,
        ThreadPoolExecutor(1) as pool,
    ):
        (output,) = call(consumer._parts.telemetry, b"1")
        with pytest.raises(ValueError, match="nonsense"):
            call(consumer._parts.telemetry, b"")
        done, failed = observed.spans("process orders")
        assert (done.status.is_ok, failed.status.is_ok) == (True, False)
        sent = f"00-{done.context.trace_id:032x}-{done.context.span_id:016x}-{done.context.trace_flags:02x}"
        assert (output.value, output.headers) == (b"1", [("traceparent", sent.encode())])


def test_a_handler_can_hand_over_its_context_to_another_thread() -> None:
    def span_of(make: Callable[[], Future[Any]]) -> bool:
        found = reports.call_handler(lambda _: make(), Record("orders", 0, 7), 1)
        return bool(found.get_span_context().is_valid)

    with observing(), Consumer(**SERVERS, group_id="g") as consumer, ThreadPoolExecutor(1) as pool:
        reports: Any = consumer._parts.telemetry
        assert not span_of(lambda: pool.submit(get_current_span))
        assert span_of(lambda: pool.submit(contextvars.copy_context().run, get_current_span))


def test_a_future_that_is_cancelled_with_its_task_ends_its_span() -> None:
    async def main(reports: Any) -> None:
        future: Future[None] = Future()
        task = asyncio.ensure_future(reports.call_handler(lambda _: future, Record("orders", 0, 7), 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled()

    with observing() as observed, Consumer(**SERVERS, group_id="g") as consumer:
        asyncio.run(main(consumer._parts.telemetry))
        assert [span.status.is_ok for span in observed.spans("process orders")] == [False]


class Batch:
    def __init__(self, topic: str, partition: int, number: int) -> None:
        self.topic, self.partition, self._number = topic, partition, number

    def __len__(self) -> int:
        return self._number


def test_counts_outlive_their_clients_and_add_up() -> None:
    observed = Observed()
    counts = MessageCounts()
    counts.register(observed.meters.get_meter("test"), "messages", "Messages.")
    counts.sums({"group": "g"}).add([Batch("a", 0, 3)])
    counts.sums({"group": "g"}).add([Batch("a", 0, 4), Batch("a", 1, 1)])
    counts.sums({"group": "h"}).add([Batch("a", 0, 5)], "REFUSED")
    found = {tuple(each.attributes.values()): each.value for each in observed.points("messages")}
    assert found == {("g", "a", "0"): 7, ("g", "a", "1"): 1, ("h", "a", "0", "REFUSED"): 5}
    counts.is_active = False
    assert observed.points("messages") == []
    observed.end()


def test_a_forked_process_does_not_report_the_messages_of_its_parent() -> None:
    observed, counts = Observed(), MessageCounts()
    counts.register(observed.meters.get_meter("test"), "messages", "Messages.")
    sums = counts.sums({"group": "g"})
    sums.add([Batch("a", 0, 3)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have left threads
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        sums.add([Batch("a", 1, 2)])
        os._exit(7 if [each.value for each in counts._observe(None)] == [2] else 1)  # type: ignore[arg-type]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert [each.value for each in observed.points("messages")] == [3]
    observed.end()


def test_two_readers_at_the_same_time_get_each_client_once(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = client_figures.ClientFigures(NoOpMeter("test"))
    names = ["consumer-1", "consumer-2", "producer-1"]
    asked: list[str] = []

    class Parts:
        def metrics(self) -> dict[str, Any]:
            asked.append("…")
            if len(asked) == 2:
                assert len(figures._stats()) == 3, "the other reader, in the middle of the first one"
            return {}

    clients = [OpenClient(name, Parts()) for name in names]  # type: ignore[arg-type]
    monkeypatch.setattr(client_figures, "open_clients", lambda: clients)
    for _ in range(2):
        assert [name for name, _ in figures._stats()] == names


class IncomparableSpan:
    """Spans of a batch are not compared with each other: that would take a second for a few thousand."""

    is_ended = False
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("spans are compared")

    def is_recording(self) -> bool:
        return False

    def end(self) -> None:
        assert not self.is_ended
        self.is_ended = True


class PendingDelivery:
    is_done = False


def test_the_records_of_a_batch_that_are_done_end_their_spans_once() -> None:
    batch: Any = _WatchedBatch(None, None, None)  # type: ignore[arg-type]
    sent = [(IncomparableSpan(), PendingDelivery()) for _ in range(4)]
    for each in sent:
        batch.add(*each)
    for done in ((1, 2), (0,), (3,)):
        for number in done:
            sent[number][1].is_done = True
        batch._end_spans()
        assert [span.is_ended for span, _ in sent] == [delivery.is_done for _, delivery in sent]


class InterruptedFlag(Flag):
    """Ctrl-C while send() waits."""

    def wait(self, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt


def test_an_interrupted_send_ends_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    with observing() as observed, Producer(**SERVERS) as producer:
        accumulator = producer._parts.accumulator
        monkeypatch.setattr(accumulator, "append", lambda *_: InterruptedFlag())
        monkeypatch.setattr(accumulator, "know_topic", lambda *_: InterruptedFlag())
        with pytest.raises(KeyboardInterrupt):
            producer.send("orders", b"1")
        with pytest.raises(KeyboardInterrupt):
            producer.send_arrow("orders", pa.table({"value": [b"1"]}))
        spans = observed.spans("send orders")
    assert [(span.attributes or {})["error.type"] for span in spans] == ["KeyboardInterrupt"] * 2


def test_a_cancelled_send_ends_its_span() -> None:
    async def main() -> None:
        async with AsyncProducer(**SERVERS) as producer:
            calls = [producer.send("orders", b"1"), producer.send_arrow("orders", pa.table({"value": [b"1"]}))]
            for call in calls:
                task = asyncio.create_task(call)
                await asyncio.sleep(0)  # it starts, and waits for metadata
                assert not task.done()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    with observing() as observed:
        asyncio.run(main())
        spans = observed.spans("send orders")
    assert [(span.attributes or {})["error.type"] for span in spans] == ["asyncio.exceptions.CancelledError"] * 2


def test_a_send_that_times_out_ends_its_span_once(caplog: pytest.LogCaptureFixture) -> None:
    with observing() as observed, Producer(**SERVERS, max_block_ms=1) as producer:
        with pytest.raises(RequestTimeoutError):
            producer.send("orders", b"1")
        with pytest.raises(RequestTimeoutError):
            producer.send_arrow("orders", pa.table({"value": [b"1"]}))
        spans = observed.spans("send orders")
    assert [(span.attributes or {})["error.type"] for span in spans] == ["headrace.errors.RequestTimeoutError"] * 2
    assert "ended span" not in caplog.text
