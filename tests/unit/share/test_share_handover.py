"""Share consumers with Ctrl-C or another exception inside a call: no record is accepted before the user has seen it,
and the consumer stays usable."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace._aio.run.share_run import ShareRun
from headrace.errors import ConcurrentUseError, ConfigError, WakeupError
from support.harness.interrupts import Interrupter, interrupted_everywhere
from support.harness.share_consumer_in_memory import ShareConsumerDriver

# An interrupt inside a generator that is being finalized cannot be raised.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

KINDS = ["sync", "async"]


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    while ShareConsumerDriver.opened:
        ShareConsumerDriver.opened.pop().close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_share_poll_interrupted_anywhere_loses_nothing(kind: str, mode: str) -> None:
    def scenario(at: int) -> bool:
        driver = ShareConsumerDriver(kind, share_acknowledgement_mode=mode)
        decide = driver.consumer.acknowledge if mode == "explicit" else len
        decide(driver.poll())
        decide(driver.poll(interrupter := Interrupter(at)))
        driver.send()
        while records := driver.poll():
            assert len(records) <= 4
            decide(records)
            driver.send()
        driver.check_end()
        driver.close()
        return interrupter.has_raised

    interrupted_everywhere(scenario, more_than=100)


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_poll_interrupted_twice_loses_nothing(kind: str) -> None:
    """A second Ctrl-C comes while the first one puts its records back."""

    def scenario(at: int, again: int) -> tuple[bool, bool]:
        driver = ShareConsumerDriver(kind)
        driver.poll()
        real = driver.parts.break_off
        second = Interrupter(again)

        def interrupted(*args: Any) -> None:
            with second:
                real(*args)

        driver.parts.break_off = interrupted  # type: ignore[method-assign]
        driver.poll(first := Interrupter(at))
        driver.parts.break_off = real  # type: ignore[method-assign]
        _read_to_the_end(driver)
        return first.has_raised, second.has_raised

    last = interrupted_everywhere(lambda at: scenario(at, 0)[0])
    for at in (last, last - 20, last - 40, last - 60):
        interrupted_everywhere(lambda again, at=at: scenario(at, again)[1], more_than=10)  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_iteration_interrupted_anywhere_loses_nothing(kind: str) -> None:
    def scenario(at: int) -> bool:
        driver = ShareConsumerDriver(kind)
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            _iterate(driver, 6)
        _read_to_the_end(driver)
        return interrupter.has_raised

    interrupted_everywhere(scenario, more_than=100)


def _read_to_the_end(driver: ShareConsumerDriver) -> None:
    """Poll until each remaining record was delivered once and accepted."""
    driver.send()
    while driver.poll():
        driver.send()
    driver.check_end()
    driver.close()


def _iterate(driver: ShareConsumerDriver, count: int) -> None:
    """Iterate until `count` records are seen."""
    if hasattr(driver.consumer, "__iter__"):
        for record in driver.consumer:
            driver.saw(record)
            if len(driver.seen) == count:
                break
        return

    async def loop() -> None:
        async for record in driver.consumer:
            driver.saw(record)
            if len(driver.seen) == count:
                break

    driver.call(loop)


CALLS: dict[str, Callable[[ShareConsumerDriver, Any], Any]] = {
    "acknowledge": lambda driver, records: driver.consumer.acknowledge(records),
    "subscribe": lambda driver, records: driver.consumer.subscribe(["t"]),
    "callback": lambda driver, records: driver.consumer.set_acknowledgement_commit_callback(print),
    "metrics": lambda driver, records: driver.parts.buffer.metrics(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_other_share_calls_interrupted_anywhere_lose_nothing(kind: str, name: str) -> None:
    def scenario(at: int) -> bool:
        driver = ShareConsumerDriver(kind, share_acknowledgement_mode="explicit")
        records = driver.poll()
        driver.consumer.acknowledge(records[0], "release")  # changed by the call below
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            CALLS[name](driver, records)
        driver.consumer.set_acknowledgement_commit_callback(None)
        driver.consumer.acknowledge(records)
        driver.send()
        while records := driver.poll():
            driver.consumer.acknowledge(records)
            driver.send()
        driver.check_end()
        driver.close()
        return interrupter.has_raised

    interrupted_everywhere(scenario, more_than=3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_commit_interrupted_anywhere_loses_nothing(kind: str) -> None:
    def scenario(at: int) -> bool:
        driver = ShareConsumerDriver(kind)
        _iterate(driver, 2)
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            driver.consumer.commit_async()
        _read_to_the_end(driver)
        return interrupter.has_raised

    interrupted_everywhere(scenario, more_than=100)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [(("1",), TypeError), ((None,), TypeError), ((0, "2"), TypeError), ((0, 2.5), TypeError), ((0, -1), ValueError)],
)
def test_a_share_poll_with_a_wrong_argument_does_not_affect_the_next(
    kind: str, arguments: Any, error: type[Exception]
) -> None:
    driver = ShareConsumerDriver(kind)
    options = {"max_records": arguments[1]} if len(arguments) > 1 else {}
    for _ in range(2):
        with pytest.raises(error):
            driver.call(driver.consumer.poll, arguments[0], **options)
    while driver.poll():
        pass
    driver.check_end()
    driver.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledgement_callback_that_raises_loses_no_later_outcome(kind: str) -> None:
    driver = ShareConsumerDriver(kind, share_acknowledgement_mode="explicit")
    heard: list[Any] = []

    def callback(offsets: Any, error: Any) -> None:
        heard.append(offsets)
        if len(heard) == 1:
            raise ZeroDivisionError

    driver.consumer.set_acknowledgement_commit_callback(callback)
    records = driver.poll()
    for part in (records[:2], records[2:]):
        driver.consumer.acknowledge(part)
        driver.send()
    with pytest.raises(ZeroDivisionError):
        driver.poll()
    assert [list(each.values()) for each in heard] == [[[range(2)]]]
    assert len(driver.poll()) == 4
    assert [list(each.values()) for each in heard] == [[[range(2)]], [[range(2, 4)]]]
    assert driver.parts.buffer.metrics()["acknowledged"] == 4
    driver.close()


@pytest.mark.parametrize("kind", KINDS)
def test_polling_in_an_acknowledgement_callback_raises(kind: str) -> None:
    driver = ShareConsumerDriver(kind)
    errors: list[BaseException] = []

    def callback(offsets: Any, error: Any) -> None:
        inner = driver.consumer.poll(0)
        if kind == "async":
            try:
                inner.send(None)
            except ConcurrentUseError as refusal:
                errors.append(refusal)
                raise

    driver.consumer.set_acknowledgement_commit_callback(callback)
    driver.poll()
    driver.poll()
    driver.send()
    with pytest.raises(ConcurrentUseError):
        driver.poll()
    driver.consumer.set_acknowledgement_commit_callback(None)
    driver.poll()
    driver.poll()
    driver.check_end()
    driver.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_iteration_continues_after_a_commit_inside_of_it(kind: str) -> None:
    """The next poll returns the records that the commit put back, once."""
    driver = ShareConsumerDriver(kind, share_acknowledgement_mode="implicit")
    if kind == "sync":
        for record in driver.consumer:
            driver.saw(record)
            driver.consumer.commit_async()
            driver.send()
            if len(driver.seen) == 12:
                break
    else:

        async def loop() -> None:
            async for record in driver.consumer:
                driver.saw(record)
                driver.consumer.commit_async()
                driver.send()
                if len(driver.seen) == 12:
                    break

        driver.call(loop)
    driver.check_end()
    driver.close()


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_share_run_interrupted_anywhere_accepts_only_handled_records(mode: str) -> None:
    def scenario(at: int) -> bool:
        driver = ShareConsumerDriver("sync", share_acknowledgement_mode=mode)
        decide = driver.consumer.acknowledge if mode == "explicit" else len
        driver.answers_at_once()

        def handler(record: Any) -> None:
            driver.seen.append(record.offset)  # also after run() has ended, if this thread was late
            if len(driver.seen) > 8:
                driver.consumer.wakeup()

        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            driver.consumer.run(handler, concurrency=1, drain=0.05)
        deadline = time.monotonic() + 10
        while driver.model.left:
            assert time.monotonic() < deadline, (at, driver.seen, driver.parts.buffer.metrics(), driver.model.logs)
            with contextlib.suppress(WakeupError):
                decide(driver.poll())
            driver.send()
        assert {*driver.seen} == {*range(12)}
        driver.close()
        return interrupter.has_raised

    interrupted_everywhere(scenario, every=11, more_than=200)


def test_a_run_interrupted_at_its_end_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture `no_thread_of_a_client_is_left` looks for threads."""
    end = ShareRun.end

    def scenario(at: int) -> bool:
        driver, interrupter = ShareConsumerDriver("sync"), Interrupter(at)
        driver.answers_at_once()

        def end_interrupted(run: ShareRun) -> None:
            interrupter.__enter__()
            end(run)

        monkeypatch.setattr(ShareRun, "end", end_interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            driver.consumer.run(lambda record: driver.consumer.wakeup(), concurrency=1)
        interrupter.__exit__()
        driver.close()
        return interrupter.has_raised

    interrupted_everywhere(scenario, more_than=3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_run_handles_records_that_an_iteration_has_not_returned(kind: str) -> None:
    driver = ShareConsumerDriver(kind)
    _iterate(driver, 2)

    def handler(record: Any) -> None:
        driver.saw(record)
        if len(driver.seen) == 12:
            driver.consumer.wakeup()

    async def coroutine(record: Any) -> None:
        handler(record)

    driver.answers_at_once()
    progress = driver.call(driver.consumer.run, handler if kind == "sync" else coroutine, concurrency=1)
    assert progress.accepted == 10
    driver.check_end()
    driver.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiting_poll_raises_an_error_that_persists_again_before_its_timeout(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = 0.5
    monkeypatch.setattr("headrace._aio.background.RETRIED", pause)  # instead of ten seconds
    driver = ShareConsumerDriver(kind, count=4)
    driver.poll()
    driver.parts.buffer.obstructed(ConfigError("no broker accepts this client"))
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(ConfigError):
            driver.call(driver.consumer.poll, 60.0)
    assert pause <= time.monotonic() - began < 30
