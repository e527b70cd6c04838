"""Producer and AsyncProducer are one producer: the same names, parameters, results and documentation."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import pytest

from headrace import AsyncProducer, Delivery, Producer

SAME = [name for name in dir(AsyncProducer) if not name.startswith("_")]
PROMISED = {
    *("send", "send_all", "send_arrow", "flush", "close", "partitions_for_topic", "metrics"),
    *("transaction", "init_transactions", "begin", "commit", "abort", "send_offsets"),
}
NOT_AWAITED = {"metrics", "transaction"}


def test_both_producers_have_the_same_names() -> None:
    assert {name for name in dir(Producer) if not name.startswith("_")} == set(SAME) == PROMISED


@pytest.mark.parametrize("name", [*SAME, "__init__"])
def test_both_producers_have_the_same_parameters(name: str) -> None:
    def parameters(kind: type[Any]) -> list[tuple[str, Any, Any]]:
        found = inspect.signature(getattr(kind, name)).parameters.values()
        return [(each.name, each.kind, each.default) for each in found]

    assert parameters(Producer) == parameters(AsyncProducer)


@pytest.mark.parametrize("name", sorted(set(SAME) - {"transaction"}))
def test_both_producers_have_the_same_results_and_documentation(name: str) -> None:
    asynchronous, synchronous = getattr(AsyncProducer, name), getattr(Producer, name)
    assert typing.get_type_hints(asynchronous)["return"] == typing.get_type_hints(synchronous)["return"]
    assert inspect.iscoroutinefunction(asynchronous) is (name not in NOT_AWAITED)
    assert asynchronous.__doc__
    assert asynchronous.__doc__ == synchronous.__doc__


def test_a_delivery_can_be_asked_waited_for_and_awaited() -> None:
    assert {"topic", "partition", "offset", "timestamp", "error", "is_done", "result", "__await__"} <= set(
        dir(Delivery)
    )
