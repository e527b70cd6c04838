"""ShareConsumer and AsyncShareConsumer are one consumer: the same names, parameters, results and documentation."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import headrace
from headrace import AsyncShareConsumer, ShareConsumer
from headrace.errors import StateError

# The public methods that every share consumer must have.
PROMISED = {
    "subscribe",
    "unsubscribe",
    "subscription",
    "poll",
    "run",
    "acknowledge",
    "commit",
    "commit_async",
    "set_acknowledgement_commit_callback",
    "acquisition_lock_timeout",
    "metrics",
    "wakeup",
    "close",
}
NOT_AWAITED = PROMISED - {"unsubscribe", "poll", "run", "commit", "close"}


def public(kind: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_both_share_consumers_have_the_same_names() -> None:
    assert public(ShareConsumer) == public(AsyncShareConsumer) >= PROMISED
    assert typing.get_type_hints(AsyncShareConsumer.__aiter__)["return"] == AsyncIterator[headrace.Record]
    assert typing.get_type_hints(ShareConsumer.__iter__)["return"] == Iterator[headrace.Record]


@pytest.mark.parametrize("name", [*sorted(public(AsyncShareConsumer)), "__init__"])
def test_both_share_consumers_have_the_same_parameters_and_results(name: str) -> None:
    asynchronous, synchronous = getattr(AsyncShareConsumer, name), getattr(ShareConsumer, name)
    ours = [
        [(each.name, each.kind, each.default) for each in inspect.signature(method).parameters.values()]
        for method in (asynchronous, synchronous)
    ]
    assert ours[0] == ours[1]
    assert typing.get_type_hints(asynchronous) == typing.get_type_hints(synchronous)
    if name != "__init__":
        assert asynchronous.__doc__
        assert synchronous.__doc__ == asynchronous.__doc__
        assert inspect.iscoroutinefunction(asynchronous) is (name not in NOT_AWAITED)
        assert not inspect.iscoroutinefunction(synchronous)


def test_a_share_consumer_refuses_wrong_calls_without_a_broker() -> None:
    with ShareConsumer(
        bootstrap_servers="127.0.0.1:1", group_id="g", share_acknowledgement_mode="explicit"
    ) as consumer:
        with pytest.raises(StateError, match="nothing is subscribed"):
            consumer.poll(0)
        with pytest.raises(TypeError):
            consumer.subscribe("t")
        with pytest.raises(StateError, match=r"poll\(\) did not return"):
            consumer.acknowledge(headrace.Record("t", 0, 1))
        with pytest.raises(ValueError, match="ACCEPT, RELEASE, REJECT, RENEW"):
            consumer.acknowledge(headrace.Record("t", 0, 1), "keep")
        with pytest.raises(ValueError, match="at least 1"):
            consumer.poll(0, max_records=0)
        with pytest.raises(TypeError):
            consumer.set_acknowledgement_commit_callback("no")  # type: ignore[arg-type]
        assert consumer.commit() == {}
        consumer.commit_async()
        assert consumer.acquisition_lock_timeout() is None
        consumer.subscribe(["t"])
        consumer.unsubscribe()
        assert consumer.subscription() == set()
