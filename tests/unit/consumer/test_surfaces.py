"""Consumer and AsyncConsumer are one consumer: the same names, parameters, results and documentation."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import headrace
from headrace import AsyncConsumer, AsyncProducer, Consumer, Producer
from headrace._aio.run.options import DeadLetter, Handler, Progress

SAME = [name for name in dir(AsyncConsumer) if not name.startswith("_")]
SPECIAL = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}

# The public methods that every consumer must have.
PROMISED = [
    "assign",
    "assignment",
    "subscribe",
    "subscription",
    "unsubscribe",
    "group_metadata",
    "enforce_rebalance",
    "to_be_revoked_partitions",
    "lost_partitions",
    "delay_revoke",
    "child_consumer_is_alive",
    "done",
    "in_flight",
    "run",
    "poll",
    "position",
    "seek",
    "seek_to_beginning",
    "seek_to_end",
    "pause",
    "resume",
    "paused",
    "commit",
    "commit_async",
    "committed",
    "beginning_offsets",
    "end_offsets",
    "offsets_for_times",
    "watermarks",
    "list_topics",
    "partitions_for_topic",
    "metrics",
    "wakeup",
    "close",
]

# Methods without I/O are plain methods in both classes.
NOT_AWAITED = {
    "assign",
    "assignment",
    "child_consumer_is_alive",
    "commit_async",
    "delay_revoke",
    "done",
    "enforce_rebalance",
    "group_metadata",
    "lost_partitions",
    "metrics",
    "pause",
    "paused",
    "resume",
    "seek",
    "seek_to_beginning",
    "seek_to_end",
    "subscribe",
    "subscription",
    "to_be_revoked_partitions",
    "wakeup",
}


def public(kind: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_both_consumers_have_the_same_names() -> None:
    assert public(Consumer) == public(AsyncConsumer)
    assert set(PROMISED) <= public(Consumer)
    for asynchronous, synchronous in SPECIAL.items():
        assert hasattr(AsyncConsumer, asynchronous)
        assert hasattr(Consumer, synchronous)


def hints(function: Any) -> dict[str, Any]:
    """Types of parameters and results. run() imports those of its own when it is called: its module lacks the names."""
    names = {each.__name__: each for each in (AsyncProducer, Producer, Progress)}
    return typing.get_type_hints(function, localns={**names, "Handler": Handler, "DeadLetter": DeadLetter})


def parameters(function: Any) -> list[tuple[str, Any, Any, Any]]:
    """Parameters with types. Each consumer takes the producer of its own kind, so those two types count as equal."""
    types = hints(function)
    return [
        (
            each.name,
            each.kind,
            each.default,
            str(types.get(each.name)).replace("_aio.produce.producer.Async", "sync.producer."),
        )
        for each in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize("name", [*SAME, "__init__"])
def test_both_consumers_have_the_same_parameters(name: str) -> None:
    assert parameters(getattr(Consumer, name)) == parameters(getattr(AsyncConsumer, name))


@pytest.mark.parametrize("name", SAME)
def test_both_consumers_have_the_same_return_types(name: str) -> None:
    asynchronous, synchronous = getattr(AsyncConsumer, name), getattr(Consumer, name)
    assert hints(asynchronous)["return"] == hints(synchronous)["return"]
    assert not inspect.iscoroutinefunction(synchronous)
    assert inspect.iscoroutinefunction(asynchronous) is (name not in NOT_AWAITED)


def test_both_consumers_are_iterated_record_by_record() -> None:
    assert typing.get_type_hints(AsyncConsumer.__aiter__)["return"] == AsyncIterator[headrace.Record]
    assert typing.get_type_hints(Consumer.__iter__)["return"] == Iterator[headrace.Record]


@pytest.mark.parametrize("name", SAME)
def test_both_consumers_have_the_same_documentation(name: str) -> None:
    documented = getattr(AsyncConsumer, name).__doc__
    assert documented
    assert getattr(Consumer, name).__doc__ == documented


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_the_docstrings_of_both_consumers_say_how_they_are_used(kind: type[Any]) -> None:
    assert "bootstrap_servers" in (kind.__doc__ or "")
    assert "wakeup()" in (kind.__doc__ or "")


@pytest.mark.parametrize("name", headrace.__all__)
def test_every_exported_name_exists(name: str) -> None:
    assert getattr(headrace, name) is not None
    assert name in dir(headrace)


def test_a_name_that_is_not_exported_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        headrace.nonsense  # noqa: B018


# -- the same results without a broker ---------------------------------------------------------------------------

TP = headrace.TopicPartition("t", 0)


class Both:
    """Call a consumer of either kind in the same way."""

    def __init__(self, kind: type[Any], **settings: Any) -> None:
        self.consumer = kind(bootstrap_servers="127.0.0.1:1", **settings)
        self.runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.consumer, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            return self.runner.run(result) if inspect.iscoroutine(result) else result

        return call


@pytest.fixture(params=[Consumer, AsyncConsumer])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    both = Both(request.param)
    with both.runner:
        yield both
        both.close()


def test_a_poll_with_nothing_assigned_is_refused(both: Both) -> None:
    assert both.assignment() == set()
    with pytest.raises(headrace.errors.StateError, match="nothing is subscribed or assigned"):
        both.poll(0.0)


def test_assign_seek_and_pause_need_no_broker(both: Both) -> None:
    both.assign([("t", 0), ("t", 1), ("t", 1)])
    assert both.assignment() == {TP, ("t", 1)}
    both.seek(TP, 5)
    assert both.position(TP) == 5
    both.seek(TP, headrace.OffsetAndMetadata(7, "", 3))
    assert both.position(("t", 0)) == 7
    both.pause([TP])
    assert both.paused() == {TP}
    both.resume([TP])
    assert both.paused() == set()
    both.assign([TP])
    assert (both.assignment(), both.position(TP)) == ({TP}, 7)
    both.unsubscribe()
    assert both.assignment() == set()


def test_a_pause_with_an_unassigned_partition_pauses_none(both: Both) -> None:
    both.assign([TP])
    with pytest.raises(headrace.errors.StateError, match="t-9 is not assigned"):
        both.pause([TP, ("t", 9)])
    assert both.paused() == set()


@pytest.mark.parametrize("wrong", [[("t", -1)], [("", 0)], [("t", "0")], [(5, 0)]])
def test_assign_refuses_invalid_partitions(both: Both, wrong: Any) -> None:
    with pytest.raises(ValueError, match="is not a valid partition"):
        both.assign(wrong)


@pytest.mark.parametrize("wrong", ["t-0", TP])
def test_assign_refuses_a_single_partition(both: Both, wrong: Any) -> None:
    with pytest.raises(TypeError, match="a list of partitions"):
        both.assign(wrong)


@pytest.mark.parametrize("limit", [0, -2])
def test_a_poll_with_an_invalid_max_records_is_refused(both: Both, limit: int) -> None:
    both.assign([TP])
    with pytest.raises(ValueError, match="max_records"):
        both.poll(0.0, max_records=limit)


def test_a_seek_to_a_negative_offset_is_refused(both: Both) -> None:
    both.assign([TP])
    with pytest.raises(ValueError, match="negative"):
        both.seek(TP, -1)


def test_a_commit_without_a_group_id_is_refused(both: Both) -> None:
    both.assign([TP])
    with pytest.raises(headrace.errors.ConfigError, match=r"group\.id"):
        both.commit({TP: 5})


@pytest.mark.parametrize("name", ["assignment", "metrics", "paused", "unsubscribe", "list_topics"])
def test_calls_of_a_closed_consumer_raise_closed_error(both: Both, name: str) -> None:
    both.close()
    both.close()
    with pytest.raises(headrace.errors.ClosedError):
        getattr(both, name)()


def test_both_consumers_refuse_unknown_settings_at_once() -> None:
    for kind in (Consumer, AsyncConsumer):
        with pytest.raises(headrace.errors.ConfigError, match=r"did you mean group_id"):
            kind(bootstrap_servers="b:1", grup_id="g")
