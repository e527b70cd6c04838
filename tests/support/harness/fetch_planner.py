"""A driver for `_machines/fetch/planner.py`: partitions, their leaders, and fetch responses."""

from __future__ import annotations

import uuid
from typing import Any

from headrace._machines.cluster import Cluster
from headrace._machines.fetch.assignment import Assignment
from headrace._machines.fetch.partition import PartitionState, Position
from headrace._machines.fetch.planner import Answered, FetchPlanner
from headrace._machines.fetch.standing_fetch import FetchPlan, StandingFetch
from headrace._protocol.messages import FETCH
from headrace.config.consumer import ConsumerConfig
from headrace.types import TopicPartition
from support.brokers.fake_broker import answer
from support.harness.machine_inputs import FakeChunk, cluster_of, partition, topic

TOPIC = uuid.UUID(int=1)
KB = 1024


class FetchPlannerDriver:
    """A planner for partitions of one topic, at offset 0. `leaders` has the leader of each partition."""

    def __init__(self, leaders: list[int], **settings: Any) -> None:
        config = {"max_partition_fetch_bytes": 100 * KB, "fetch_max_bytes": 1000 * KB, "queued_max_bytes": 6000 * KB}
        self.config = ConsumerConfig.parse(bootstrap_servers="b:1", **{**config, **settings})
        nodes = tuple({*leaders, 1, 2})
        self.cluster: Cluster = cluster_of(
            topic(*(partition(number, leader=leader) for number, leader in enumerate(leaders))), brokers=nodes
        )
        self.partitions = [TopicPartition("t", number) for number in range(len(leaders))]
        self.assignment = Assignment("latest", "fair", 2 * self.config.max_partition_fetch_bytes)
        self.assignment.assign(self.partitions)
        for state in self.assignment:
            state.seek(Position(0))
        self.assignment.follow(self.cluster)
        self.fetching = FetchPlanner(self.config, self.assignment, self.cluster, self.config.queued_max_bytes)
        self.fetches: dict[int, list[StandingFetch]] = {}

    def state(self, number: int = 0) -> PartitionState:
        return self.assignment.state(self.partitions[number])

    def look(self, node: int = 1, now: float = 0.0) -> FetchPlan | None:
        """The next fetch from a broker, of a stream without a request under way."""
        fetches = self.fetches.setdefault(node, [])
        fetch = next((fetch for fetch in fetches if fetch.under_way is None), None)
        if fetch is None:
            fetch = StandingFetch(node, keeps=not fetches)
            fetches.append(fetch)
        return self.fetching.plan(fetch, now)

    def plan(self, node: int = 1, now: float = 0.0) -> FetchPlan:
        plan = self.look(node, now)
        assert plan is not None
        return plan

    def asked(self, node: int = 1, now: float = 0.0) -> list[int]:
        """The partitions of the next fetch, in order; empty if there is no fetch."""
        plan = self.look(node, now)
        return [] if plan is None else [tip.partition for tip in plan.wants]

    def user_step(self, what: str, number: int, value: int) -> None:
        """What a user does to a partition between requests: assign (give it up, and perhaps take it again), pause,
        resume, seek."""
        state = self.assignment.get(self.partitions[number])
        if what == "assign":
            self.assignment.assign([each for each in self.partitions if each.partition != number])
            if value % 2:
                self.assignment.assign(self.partitions)
                self.state(number).seek(Position(0))
                self.assignment.follow(self.cluster)
        elif state is not None and what in ("pause", "resume"):
            state.paused = what == "pause"
        elif state is not None and what == "seek":
            state.seek(Position(value))

    def answered(self, plan: FetchPlan, *items: dict[str, Any], now: float = 0.0, **rest: Any) -> Answered:
        return self.fetching.answered(plan, fetched(*items, **rest), now)


def data(number: int = 0, code: int = 0, records: bytes | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "partition_index": number,
        "error_code": code,
        "high_watermark": 50,
        "last_stable_offset": 40,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "records": records,
        **fields,
    }


def fetched(*items: dict[str, Any], node_endpoints: Any = (), version: int = 18) -> Any:
    responses = [{"topic_id": TOPIC, "partitions": items}]
    return answer(
        FETCH, version, throttle_time=0, error_code=0, session_id=0, responses=responses, node_endpoints=node_endpoints
    )


def feed(state: PartitionState, size: int) -> None:
    """Buffers a record of so many bytes."""
    start = state.fetch_offset
    state.arrived(size, start + 1)
    state.decoded(start, size, FakeChunk((start,), start + 1, -1, size), start + 1)
