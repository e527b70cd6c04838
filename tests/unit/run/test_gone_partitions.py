"""run() learns that a partition is gone before the user's listener does."""

from __future__ import annotations

from unittest import mock

import pytest

from headrace import RebalanceListener, TopicPartition
from headrace._aio.fetch.buffer import FetchBuffer
from headrace._aio.group.rebalance import Rebalancer
from headrace._machines.group.actions import Lose, Partitions, Revoke
from headrace.config.consumer import ConsumerConfig

GONE = frozenset({TopicPartition("t", 0)})


@pytest.mark.parametrize("action", [Lose(GONE), Revoke(GONE)])
def test_no_handler_may_start_once_the_listener_is_called(action: Lose | Revoke) -> None:
    calls: list[tuple[str, Partitions]] = []

    class Listener(RebalanceListener):
        def on_partitions_revoked(self, partitions: Partitions) -> None:
            calls.append(("revoked", partitions))

        def on_partitions_lost(self, partitions: Partitions) -> None:
            calls.append(("lost", partitions))

    async def nothing(partitions: Partitions) -> None: ...

    config = ConsumerConfig.parse({"bootstrap.servers": "x:1", "group.id": "g", "enable.auto.commit": False})
    group = Rebalancer(config, FetchBuffer(config), nothing, None, lambda gone: None)
    group.member = mock.Mock()
    listener = Listener()  # the consumer would hold it
    group.subscribe(["t"], None, listener)
    group.before_listener = lambda partitions: calls.append(("held", partitions))
    assert list(group._perform(action)) == []
    assert calls == [("held", GONE), ("lost" if isinstance(action, Lose) else "revoked", GONE)]
