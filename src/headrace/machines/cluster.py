"""What is known of the cluster: brokers, topics, leaders and their epochs.

    Metadata answer     replaces the brokers, and of the topics that it lists those that were asked for
    leader hint         (KIP-951, in a Fetch answer) moves one partition ahead of the next Metadata answer

- A partition's leader epoch only grows. An answer from a broker that lags behind keeps the newer leader that
  is known; else a consumer would swing between two leaders after each election.
- A topic that answers do not know is kept for a while, for they may come from a broker that has just started. When
  several in a row do not, it was deleted.
- A topic is its id. A name that comes with another id is another topic: nothing of the old one is kept.
- Addresses stand in errors and logs, so they are made legible. One that had to be is no broker's.
- The answer is read by attribute, so every version of Metadata from 12 on will do.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..protocol.codes import NONE, legible
from ..types import Node, PartitionInfo, TopicPartition

_LONGEST_HOST = 255  # of DNS
_DELETED_AFTER = 3  # answers in a row that do not know a topic; each comes from another broker, if there are several

UNKNOWN_TOPIC = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})


@dataclasses.dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition (-1: nobody), and since which epoch."""

    node: int
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    leader: Leader
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: uuid.UUID | None
    internal: bool
    partitions: Mapping[int, Partition]


def node_at(id: int, host: str, port: int, rack: str | None = None) -> Node:
    """A broker, where another one says that it listens."""
    return Node(id, legible(host, _LONGEST_HOST), port, rack)


class Cluster:
    """The newest view of the cluster. Not thread-safe: whoever owns it guards it."""

    def __init__(self) -> None:
        self.brokers: dict[int, Node] = {}
        self.topics: dict[str, Topic] = {}
        self.topic_errors: dict[str, int] = {}
        self.cluster_id: str | None = None
        self._names: dict[uuid.UUID, str] = {}
        self._unknown: dict[str, int] = {}  # how many answers in a row did not know a topic that is kept

    # -- questions -------------------------------------------------------------------------------------------

    def leader(self, tp: TopicPartition) -> Leader | None:
        """The leader, or None while there is none or it is not known where it listens."""
        partition = self.partition(tp)
        if partition is None or partition.leader.node not in self.brokers:
            return None
        return partition.leader

    def partition(self, tp: TopicPartition) -> Partition | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic else None

    def topic_id(self, name: str) -> uuid.UUID | None:
        topic = self.topics.get(name)
        return topic.id if topic else None

    def topic_name(self, topic_id: uuid.UUID | None) -> str | None:
        return self._names.get(topic_id) if topic_id else None

    def is_unknown(self, name: str) -> bool:
        """Whether the newest answer about a topic says that it does not exist."""
        return self.topic_errors.get(name) in UNKNOWN_TOPIC

    def topic_names(self) -> dict[uuid.UUID, str]:
        """All that are known, by id."""
        return dict(self._names)

    def is_online(self, tp: TopicPartition, node: int) -> bool:
        partition = self.partition(tp)
        return partition is not None and node in self.brokers and node not in partition.offline

    def denied(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these topics that this client may not know of."""
        denied = ErrorCode.topic_authorization_failed
        return frozenset(name for name in names if self.topic_errors.get(name) == denied)

    def without_leader(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        return {tp for tp in partitions if self.leader(tp) is None}

    def partition_infos(self, name: str) -> list[PartitionInfo]:
        topic = self.topics.get(name)
        if topic is None:
            return []
        return [
            PartitionInfo(
                name,
                number,
                self.brokers.get(partition.leader.node),
                partition.replicas,
                partition.in_sync,
                partition.offline,
            )
            for number, partition in sorted(topic.partitions.items())
        ]

    # -- events ----------------------------------------------------------------------------------------------

    def apply(
        self,
        answer: Any,
        complete: bool = False,
        *,
        names: Collection[str] | None = None,
        ids: Collection[uuid.UUID] = (),
    ) -> None:
        """Takes a Metadata answer in. A complete one has all topics: those that it does not list are gone. Else it is
        about the topics of these names and ids (`names` of None: whatever it lists); what nobody asked for is not
        kept."""
        self.cluster_id = answer.cluster_id
        self.brokers = {
            broker.node_id: node_at(broker.node_id, broker.host, broker.port, broker.rack) for broker in answer.brokers
        }
        for topic in answer.topics:
            name = topic.name or self.topic_name(topic.topic_id)
            if name is not None and (names is None or name in names or topic.topic_id in ids):
                self._apply_topic(name, topic)
        if complete:
            for name in self.topics.keys() - {topic.name for topic in answer.topics}:
                self.forget(name)

    def _apply_topic(self, name: str, topic: Any) -> None:
        if topic.error_code != NONE:
            self.topic_errors[name] = int(topic.error_code)
            if name in self.topics and topic.error_code in UNKNOWN_TOPIC:
                self._unknown[name] = self._unknown.get(name, 0) + 1
                if self._unknown[name] >= _DELETED_AFTER:
                    self.forget(name)
            return  # what is known stays: a broker that restarts may not know its topics yet
        self.topic_errors.pop(name, None)
        self._unknown.pop(name, None)
        known = self.topics.get(name)
        if known is not None and known.id != topic.topic_id:
            self.forget(name)
            known = None
        partitions = {item.partition_index: self._newer(known, item.partition_index, item) for item in topic.partitions}
        self.topics[name] = Topic(name, topic.topic_id, topic.is_internal, partitions)
        if topic.topic_id is not None:
            self._names[topic.topic_id] = name

    @staticmethod
    def _newer(known: Topic | None, number: int, item: Any) -> Partition:
        leader = Leader(item.leader_id, item.leader_epoch)
        before = known.partitions.get(number) if known else None
        if before is not None and before.leader.epoch > leader.epoch:
            leader = before.leader
        return Partition(leader, item.replica_nodes, item.isr_nodes, item.offline_replicas)

    def forget(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        self._unknown.pop(name, None)
        if topic is not None and topic.id is not None:
            self._names.pop(topic.id, None)

    def hint(self, tp: TopicPartition, leader: Leader, endpoints: Iterable[Node]) -> bool:
        """Takes a leader hint (KIP-951) in. True if it was news: newer than what is known, and reachable."""
        partition = self.partition(tp)
        if partition is None or leader.epoch <= partition.leader.epoch:
            return False
        known = {node.id: node for node in endpoints}
        if leader.node not in self.brokers and leader.node not in known:
            return False
        if leader.node in known:
            self.brokers[leader.node] = node_at(*known[leader.node])
        topic = self.topics[tp.topic]
        moved = {**topic.partitions, tp.partition: dataclasses.replace(partition, leader=leader)}
        self.topics[tp.topic] = dataclasses.replace(topic, partitions=moved)
        return True
