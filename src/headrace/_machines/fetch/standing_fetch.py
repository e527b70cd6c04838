"""The partitions that a stream requests, kept from one request to the next.

A consumer of thousands of partitions gets records of a few of them at a time. A response lists only those that have
something new (KIP-227), so the others are simply requested again: no step looks at all of them.

    joins     what the planner adds to the next request
    leaves    by a response that lists it, or when something else happens to it: a seek, a new leader, a pause. The
              partition itself notes that (`touched`), and the next plan takes it out
    all go    when a request fails, and when the assignment or the cluster has changed
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from ...types import TopicPartition
from ..cluster import TopicIdPartition
from .session import PartitionRequest


@dataclasses.dataclass(frozen=True, slots=True)
class InFlightPartition:
    """A partition in a fetch that is under way: the requested offset, and the position version."""

    tp: TopicPartition
    position_version: int
    offset: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FetchPlan:
    """A fetch to send. The broker is likely to park it until something is written, if `parked`. `changed` has the
    partitions whose request may be another one than the last time; `wants` has all that are requested now."""

    fetch: StandingFetch
    changed: Mapping[TopicIdPartition, None]
    max_bytes: int
    parked: bool

    @property
    def wants(self) -> Mapping[TopicIdPartition, PartitionRequest]:
        return self.fetch.wants

    @property
    def asked(self) -> Mapping[TopicIdPartition, InFlightPartition]:
        return self.fetch.asked


class StandingFetch:
    """Of one stream to a broker. If it does not `keep` partitions, all leave with each response. The owner of the
    assignment locks."""

    def __init__(self, node: int, *, keeps: bool) -> None:
        self.node = node
        self.keeps = keeps
        self.wants: dict[TopicIdPartition, PartitionRequest] = {}
        self.asked: dict[TopicIdPartition, InFlightPartition] = {}
        self.unfetched: set[TopicIdPartition] = set()  # those that are known to have records
        self.touched: dict[TopicIdPartition, None] = {}  # those that may have to leave
        self.changed: dict[TopicIdPartition, None] = {}  # since the last request
        self.under_way: FetchPlan | None = None
        self.assignment_version = -1  # with which the partitions joined
        self.expires = math.inf  # when the first of them is to be fetched from another replica

    def touch(self, tip: TopicIdPartition) -> None:
        self.touched[tip] = None

    def join(self, tip: TopicIdPartition, want: PartitionRequest, asked: InFlightPartition, unfetched: bool) -> None:
        self.wants[tip] = want
        self.asked[tip] = asked
        self.changed[tip] = None
        if unfetched:
            self.unfetched.add(tip)

    def advance(self, tip: TopicIdPartition, asked: InFlightPartition, offset: int) -> PartitionRequest:
        """The request that is repeated asks for this offset."""
        self.asked[tip] = InFlightPartition(asked.tp, asked.position_version, offset)
        _, leader_epoch, max_bytes = self.wants[tip]
        self.wants[tip] = want = PartitionRequest(offset, leader_epoch, max_bytes)
        return want

    def leave(self, tip: TopicIdPartition) -> InFlightPartition | None:
        asked = self.asked.pop(tip, None)
        if asked is not None:
            del self.wants[tip]
            self.unfetched.discard(tip)
            self.changed[tip] = None
        return asked

    def leave_all(self) -> list[InFlightPartition]:
        left = list(self.asked.values())
        self.changed.update(dict.fromkeys(self.wants))
        self.wants.clear()
        self.asked.clear()
        self.unfetched.clear()
        self.touched.clear()
        self.expires = math.inf
        return left

    def start(self, max_bytes: int, parked: bool) -> FetchPlan:
        changed, self.changed = self.changed, {}
        self.under_way = FetchPlan(self, changed, max_bytes, parked)
        return self.under_way

    def repeat(self, plan: FetchPlan) -> FetchPlan:
        """The request of this plan was sent again, with the offsets of `advance`."""
        self.under_way = FetchPlan(self, {}, plan.max_bytes, plan.parked)
        return self.under_way
