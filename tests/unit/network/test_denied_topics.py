"""Topics for which the user has no authorization, as reported by metadata."""

from __future__ import annotations

import time

import pytest

from headrace import TopicPartition
from headrace._aio.fetch.buffer import FetchBuffer
from headrace._machines.fetch.partition import Position
from headrace._protocol.codes import kafka_error
from headrace.config.consumer import ConsumerConfig
from headrace.errors import (
    AuthorizationError,
)

TP = TopicPartition("t", 0)


def buffer() -> FetchBuffer:
    made = FetchBuffer(ConsumerConfig.parse(bootstrap_servers="b:1"))
    made.assignment.assign([TP])
    return made


def test_all_denied_topics_are_in_one_error_which_is_not_raised_again_at_once():
    shared = buffer()
    state = shared.assignment.state(TP)
    state.seek(Position(0))
    state.refuse(kafka_error(29, f"Fetch of {TP} at offset 0"), time.monotonic())
    shared.denied = frozenset({"b", "a"})
    with pytest.raises(AuthorizationError, match=r"topics a, b, t: TOPIC_AUTHORIZATION_FAILED \(29\)") as caught:
        shared.take(10)
    assert caught.value.topics == {"a", "b", "t"}
    assert shared.take(10) is None
    shared.denied = frozenset({"a", "b", "news"})
    with pytest.raises(AuthorizationError, match="news"):
        shared.take(10)
    assert shared.take(10) is None
