"""The cluster view: brokers, topics, leaders and their epochs.

    Metadata answer     replaces the brokers, and those of its topics that were asked for
    leader hint         (KIP-951, in a Fetch answer) moves one partition before the next Metadata answer

- A partition's leader epoch only grows. If a broker lags behind, its answer does not replace a newer leader; otherwise
  a consumer would alternate between two leaders after each election.
- A topic that an answer does not know is kept for a while, because the broker may have just started. After several
  such answers in a row it counts as deleted.
- A topic is identified by its id. A name with another id is another topic: nothing of the old one is kept.
- Addresses appear in errors and logs, so they are made printable. A changed one is no valid address anyway.
- Answers are read by attribute, so every version of Metadata from 12 on works.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from .._protocol.codes import NONE, kafka_error, printable
from ..errors import KafkaError
from ..types import Node, PartitionInfo, TopicPartition

_LONGEST_HOST = 255  # of DNS
_DELETED_AFTER = 3  # answers in a row without the topic, each from another broker if there are several

UNKNOWN_TOPIC = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})


class TopicIdPartition(NamedTuple):
    """A partition by the id of its topic: a topic that is deleted and recreated under its old name is another."""

    topic_id: uuid.UUID
    partition: int


def partitions_by_id(topics: Iterable[Any]) -> frozenset[TopicIdPartition]:
    """The partitions of an assignment in an answer (KIP-848, KIP-932)."""
    return frozenset(TopicIdPartition(topic.topic_id, number) for topic in topics for number in topic.partitions)


@dataclasses.dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition (-1: none), and its epoch."""

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
    """A broker, at the address that another broker reports."""
    return Node(id, printable(host, _LONGEST_HOST), port, rack)


class Cluster:
    """Not thread-safe: the owner's lock guards it."""

    def __init__(self) -> None:
        self.brokers: dict[int, Node] = {}
        self.topics: dict[str, Topic] = {}
        self.topic_errors: dict[str, int] = {}
        self.cluster_id: str | None = None
        self.has_listed_all = False  # there was an answer about all topics
        self._names: dict[uuid.UUID, str] = {}
        self._unknown: dict[str, int] = {}  # known topics: how many answers in a row lacked them

    # -- questions -------------------------------------------------------------------------------------------

    def leader(self, tp: TopicPartition) -> Leader | None:
        """The leader, or None while there is none or its address is unknown."""
        partition = self.partition(tp)
        if partition is None or partition.leader.node not in self.brokers:
            return None
        return partition.leader

    def why_leaderless(self, tp: TopicPartition) -> str | None:
        """For the error of a partition that has no leader, or one whose address is unknown."""
        partition = self.partition(tp)
        if partition is None:
            return None
        away = sorted(set(partition.replicas) - self.brokers.keys())
        if away:
            return f"no leader, while of its replicas broker {', '.join(map(str, away))} is away. Start it again"
        return f"no leader among its replicas, the brokers {', '.join(map(str, partition.replicas))}"

    def partition(self, tp: TopicPartition) -> Partition | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic else None

    def topic_id(self, name: str) -> uuid.UUID | None:
        topic = self.topics.get(name)
        return topic.id if topic else None

    def topic_name(self, topic_id: uuid.UUID | None) -> str | None:
        return self._names.get(topic_id) if topic_id else None

    def is_unknown(self, name: str) -> bool:
        """Whether the latest answer says that the topic does not exist."""
        return self.topic_errors.get(name) in UNKNOWN_TOPIC

    def topic_names(self) -> dict[uuid.UUID, str]:
        """All known names, by id."""
        return dict(self._names)

    def is_online(self, tp: TopicPartition, node: int) -> bool:
        partition = self.partition(tp)
        return partition is not None and node in self.brokers and node not in partition.offline

    def denied(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these topics that this client may not describe."""
        denied = ErrorCode.topic_authorization_failed
        return frozenset(name for name in names if self.topic_errors.get(name) == denied)

    def invalid_topic_error(self, names: Iterable[str]) -> KafkaError | None:
        """If brokers reject the name of one of these topics."""
        invalid = ErrorCode.invalid_topic_exception
        found = next((name for name in names if self.topic_errors.get(name) == invalid), None)
        return None if found is None else kafka_error(invalid, f"Metadata of topic {found}")

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
        """Applies a Metadata answer. A complete one lists all topics: those that it lacks are gone. Any other is about
        the topics with these names and ids (`names` of None: all that it lists); other topics are ignored."""
        self.cluster_id = answer.cluster_id
        self.brokers = {
            broker.node_id: node_at(broker.node_id, broker.host, broker.port, broker.rack) for broker in answer.brokers
        }
        for topic in answer.topics:
            name = topic.name or self.topic_name(topic.topic_id)
            if name is not None and (names is None or name in names or topic.topic_id in ids):
                self._apply_topic(name, topic)
        if complete:
            self.has_listed_all = True
            for name in self.topics.keys() - {topic.name for topic in answer.topics}:
                self.forget(name)

    def _apply_topic(self, name: str, topic: Any) -> None:
        if topic.error_code != NONE:
            self.topic_errors[name] = int(topic.error_code)
            if name in self.topics and topic.error_code in UNKNOWN_TOPIC:
                self._unknown[name] = self._unknown.get(name, 0) + 1
                if self._unknown[name] >= _DELETED_AFTER:
                    self.forget(name)
            return  # the topic is kept: a broker that restarts may not know its topics yet
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
        """Applies a leader hint (KIP-951). Returns whether it was newer than the known leader, and has an address."""
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
