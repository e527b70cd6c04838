"""Share consumers with Ctrl-C or another exception inside a call: no record is accepted before the user has seen it,
and the consumer stays usable."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.errors import ConcurrentUseError, ConfigError, WakeupError
from support.harness.interrupts import Interrupter, interrupted_everywhere
from support.harness.share_consumer_in_memory import Scene

# An interrupt inside a generator that is being finalized cannot be raised.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

KINDS = ["sync", "async"]


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    while Scene.opened:
        Scene.opened.pop().close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_share_poll_interrupted_anywhere_loses_nothing(kind: str, mode: str) -> None:
    def scenario(at: int) -> bool:
        scene = Scene(kind, share_acknowledgement_mode=mode)
        decide = scene.consumer.acknowledge if mode == "explicit" else len
        decide(scene.poll())
        decide(scene.poll(interrupter := Interrupter(at)))
        scene.send()
        while records := scene.poll():
            assert len(records) <= 4
            decide(records)
            scene.send()
        scene.check_end()
        scene.close()
        return interrupter.has_raised

    assert interrupted_everywhere(scenario) > 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_poll_interrupted_twice_loses_nothing(kind: str) -> None:
    """A second Ctrl-C comes while the first one puts its records back."""

    def scenario(at: int, again: int) -> tuple[bool, bool]:
        scene = Scene(kind)
        scene.poll()
        real = scene.parts.break_off
        second = Interrupter(again)

        def interrupted(*args: Any) -> None:
            with second:
                real(*args)

        scene.parts.break_off = interrupted  # type: ignore[method-assign]
        scene.poll(first := Interrupter(at))
        scene.parts.break_off = real  # type: ignore[method-assign]
        _read_to_the_end(scene)
        return first.has_raised, second.has_raised

    last = interrupted_everywhere(lambda at: scenario(at, 0)[0])
    for at in (last, last - 20, last - 40, last - 60):
        assert interrupted_everywhere(lambda again, at=at: scenario(at, again)[1]) > 10  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_iteration_interrupted_anywhere_loses_nothing(kind: str) -> None:
    def scenario(at: int) -> bool:
        scene = Scene(kind)
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            _iterate(scene, 6)
        _read_to_the_end(scene)
        return interrupter.has_raised

    assert interrupted_everywhere(scenario) > 100


def _read_to_the_end(scene: Scene) -> None:
    """Poll until each remaining record was delivered once and accepted."""
    scene.send()
    while scene.poll():
        scene.send()
    scene.check_end()
    scene.close()


def _iterate(scene: Scene, count: int) -> None:
    """Iterate until `count` records are seen."""
    if hasattr(scene.consumer, "__iter__"):
        for record in scene.consumer:
            scene.saw(record)
            if len(scene.seen) == count:
                break
        return

    async def loop() -> None:
        async for record in scene.consumer:
            scene.saw(record)
            if len(scene.seen) == count:
                break

    scene.call(loop)


CALLS: dict[str, Callable[[Scene, Any], Any]] = {
    "acknowledge": lambda scene, records: scene.consumer.acknowledge(records),
    "subscribe": lambda scene, records: scene.consumer.subscribe(["t"]),
    "callback": lambda scene, records: scene.consumer.set_acknowledgement_commit_callback(print),
    "metrics": lambda scene, records: scene.parts.buffer.metrics(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_other_share_calls_interrupted_anywhere_lose_nothing(kind: str, name: str) -> None:
    def scenario(at: int) -> bool:
        scene = Scene(kind, share_acknowledgement_mode="explicit")
        records = scene.poll()
        scene.consumer.acknowledge(records[0], "release")  # changed by the call below
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            CALLS[name](scene, records)
        scene.consumer.set_acknowledgement_commit_callback(None)
        scene.consumer.acknowledge(records)
        scene.send()
        while records := scene.poll():
            scene.consumer.acknowledge(records)
            scene.send()
        scene.check_end()
        scene.close()
        return interrupter.has_raised

    assert interrupted_everywhere(scenario) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_commit_interrupted_anywhere_loses_nothing(kind: str) -> None:
    def scenario(at: int) -> bool:
        scene = Scene(kind)
        _iterate(scene, 2)
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            scene.consumer.commit_async()
        _read_to_the_end(scene)
        return interrupter.has_raised

    assert interrupted_everywhere(scenario) > 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [(("1",), TypeError), ((None,), TypeError), ((0, "2"), TypeError), ((0, 2.5), TypeError), ((0, -1), ValueError)],
)
def test_a_share_poll_with_a_wrong_argument_does_not_affect_the_next(
    kind: str, arguments: Any, error: type[Exception]
) -> None:
    scene = Scene(kind)
    options = {"max_records": arguments[1]} if len(arguments) > 1 else {}
    for _ in range(2):
        with pytest.raises(error):
            scene.call(scene.consumer.poll, arguments[0], **options)
    while scene.poll():
        pass
    scene.check_end()
    scene.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledgement_callback_that_raises_loses_no_later_outcome(kind: str) -> None:
    scene = Scene(kind, share_acknowledgement_mode="explicit")
    heard: list[Any] = []

    def callback(offsets: Any, error: Any) -> None:
        heard.append(offsets)
        if len(heard) == 1:
            raise ZeroDivisionError

    scene.consumer.set_acknowledgement_commit_callback(callback)
    records = scene.poll()
    for part in (records[:2], records[2:]):
        scene.consumer.acknowledge(part)
        scene.send()
    with pytest.raises(ZeroDivisionError):
        scene.poll()
    assert [list(each.values()) for each in heard] == [[[range(2)]]]
    assert len(scene.poll()) == 4
    assert [list(each.values()) for each in heard] == [[[range(2)]], [[range(2, 4)]]]
    assert scene.parts.buffer.metrics()["acknowledged"] == 4
    scene.close()


@pytest.mark.parametrize("kind", KINDS)
def test_polling_in_an_acknowledgement_callback_raises(kind: str) -> None:
    scene = Scene(kind)
    errors: list[BaseException] = []

    def callback(offsets: Any, error: Any) -> None:
        inner = scene.consumer.poll(0)
        if kind == "async":
            try:
                inner.send(None)
            except ConcurrentUseError as refusal:
                errors.append(refusal)
                raise

    scene.consumer.set_acknowledgement_commit_callback(callback)
    scene.poll()
    scene.poll()
    scene.send()
    with pytest.raises(ConcurrentUseError):
        scene.poll()
    scene.consumer.set_acknowledgement_commit_callback(None)
    scene.poll()
    scene.poll()
    scene.check_end()
    scene.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_iteration_continues_after_a_commit_inside_of_it(kind: str) -> None:
    """The next poll returns the records that the commit put back, once."""
    scene = Scene(kind, share_acknowledgement_mode="implicit")
    if kind == "sync":
        for record in scene.consumer:
            scene.saw(record)
            scene.consumer.commit_async()
            scene.send()
            if len(scene.seen) == 12:
                break
    else:

        async def loop() -> None:
            async for record in scene.consumer:
                scene.saw(record)
                scene.consumer.commit_async()
                scene.send()
                if len(scene.seen) == 12:
                    break

        scene.call(loop)
    scene.check_end()
    scene.close()


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_share_run_interrupted_anywhere_accepts_only_handled_records(mode: str) -> None:
    def scenario(at: int) -> bool:
        scene = Scene("sync", share_acknowledgement_mode=mode)
        decide = scene.consumer.acknowledge if mode == "explicit" else len
        scene.answers_at_once()
        worked_on: list[int] = []

        def handler(record: Any) -> None:
            worked_on.append(record.offset)
            if len(worked_on) > 8:
                scene.consumer.wakeup()

        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            scene.consumer.run(handler, concurrency=1, drain=0.05)
        scene.seen += worked_on
        deadline = time.monotonic() + 10
        while scene.model.left:
            assert time.monotonic() < deadline, (at, scene.seen, scene.parts.buffer.metrics(), scene.model.logs)
            with contextlib.suppress(WakeupError):
                decide(scene.poll())
            scene.send()
        assert {*scene.seen} == {*range(12)}
        scene.close()
        return interrupter.has_raised

    assert interrupted_everywhere(scenario, every=11) > 200


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_run_handles_records_that_an_iteration_has_not_returned(kind: str) -> None:
    scene = Scene(kind)
    _iterate(scene, 2)

    def handler(record: Any) -> None:
        scene.saw(record)
        if len(scene.seen) == 12:
            scene.consumer.wakeup()

    scene.answers_at_once()
    progress = scene.call(scene.consumer.run, handler, concurrency=1)
    assert progress.accepted == 10
    scene.check_end()
    scene.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiting_poll_raises_an_error_that_persists_again_before_its_timeout(kind: str) -> None:
    scene = Scene(kind, count=4)
    scene.poll()
    scene.parts.buffer.obstructed(ConfigError("no broker accepts this client"))
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(ConfigError):
            scene.call(scene.consumer.poll, 60.0)
    assert time.monotonic() - began < 30
