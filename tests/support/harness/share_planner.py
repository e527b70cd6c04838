"""SharePlanner with models of brokers and a virtual clock."""

from __future__ import annotations

from typing import Any

from headrace._machines.backoff import Backoff
from headrace._machines.share.broker_session import ShareRequest, ShareSettings
from headrace._machines.share.planner import SharePlanner
from headrace._machines.share.responses import buffer_records, handle_response
from headrace.errors import NetworkError
from headrace.types import TopicPartition
from support.harness.machine_inputs import cluster_of, partition, topic
from support.harness.share_broker_model import TOPIC, Model, Offsets, tip

T0 = TopicPartition("t", 0)


class SharePlannerDriver:
    """A planner, one or two brokers, and a virtual clock."""

    def __init__(self, *models: Model, can_renew: bool = True, **settings: Any) -> None:
        self.now = 100.0
        self.can_renew = can_renew
        self.models = dict(enumerate(models, 1))
        partitions = [partition(number, leader=node) for node, model in self.models.items() for number in model.logs]
        cluster = cluster_of(topic(*partitions, id=TOPIC), brokers=(1, 2, 3))
        self.planner = SharePlanner(ShareSettings("g", "m", **settings), cluster, Backoff(100, 1000), lambda: 0.5)
        self.planner.topics = frozenset({"t"})
        self.planner.follow(tip(number) for model in models for number in model.logs)
        for node in self.models:
            self.planner.connected(node, can_renew=self.can_renew)
        self.requests: list[ShareRequest] = []
        self.most_acquired = 0

    def plan(self, node: int = 1) -> ShareRequest | None:
        return self.planner.plan(node, self.now)

    def finish(self, request: ShareRequest) -> None:
        model = self.models[request.node]
        answer = handle_response(self.planner, request, model.answer(request, self.now), self.now)
        got = sum(last - first + 1 for each in answer.arrivals for first, last, _ in each.ranges)
        self.most_acquired = max(self.most_acquired, got)
        for arrival in answer.arrivals:
            buffer_records(self.planner, arrival, *model.decode(arrival), self.now)

    def step(self) -> list[ShareRequest]:
        """Send all due requests to all brokers at the same time, and handle the responses."""
        sent = []
        while round := [request for node in self.models if (request := self.planner.plan(node, self.now))]:
            sent += round
            for request in round:
                self.finish(request)
            if self.planner.buffer.count:
                break
            self.now += max(request.size.wait for request in round)
        else:
            for node in self.models:
                assert self.planner.next_wake(node, self.now) > self.now, (
                    "nothing to send, but the planner does not wait"
                )
        self.requests += sent
        return sent

    def poll(self, limit: int = 10, wait: float = 1.0) -> list[Offsets]:
        self.planner.poll_begins(self.now)
        for _ in range(20):
            records = self.planner.take(limit, self.now)
            if records:
                break
            self.planner.wait(limit, self.now + wait)
            if not self.step():
                break
        self.planner.poll_ends()
        return records  # type: ignore[return-value]  # the model has no other type

    def lose(self, node: int = 1) -> None:
        self.models[node].disconnected()
        self.planner.lose_session(node, NetworkError("gone"))
        self.planner.connected(node, can_renew=self.can_renew)


def offsets(records: list[Offsets]) -> list[int]:
    return [offset for each in records for offset in each.offsets]
