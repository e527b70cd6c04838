"""Three brokers: leaders of partitions, coordinators of transactions and groups, and the responses to requests.

A broker can die and restart. Its partitions and coordinators move to the others, after a while without any. What was
not replicated by then may be lost, but nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import random
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace as Body
from typing import Any

from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._protocol.messages import PRODUCE
from headrace.records import decode
from headrace.types import TopicPartition

from .log import LogBatch, PartitionLog
from .offsets import GroupOffsets
from .transaction_coordinator import TransactionCoordinator

Reply = Callable[[Any], None]
NODES = (1, 2, 3)
REMOVES_GROUPS = 60.0
"""Seconds between two checks for groups without offsets (offsets.retention.check.interval.ms)."""
_NO_LEADER = -1


@dataclasses.dataclass(eq=False)
class Replicas:
    """A partition: its log, and its leader."""

    log: PartitionLog
    leader: int
    epoch: int = 0


class Brokers:
    """`calm` ends the errors that brokers return at random."""

    def __init__(self, dice: random.Random, topics: Mapping[str, int], transaction_version: int) -> None:
        self.dice = dice
        self.loop = asyncio.get_running_loop()
        self.ids = {name: uuid.UUID(int=number + 1) for number, name in enumerate(topics)}
        self.partitions = {
            TopicPartition(name, number): Replicas(PartitionLog(), dice.choice(NODES))
            for name, count in topics.items()
            for number in range(count)
        }
        self.down: set[int] = set()
        self.missing: set[str] = set()  # topics that do not exist yet
        self.features = {"transaction.version": transaction_version}
        self.groups: dict[str, GroupOffsets] = {}
        last_epoch = dice.choice((3, 30_000, 30_000))
        self.checks_rights = last_epoch > 3  # by chance, too
        self.transactions = TransactionCoordinator(
            self.loop.time, self._write_marker, last_epoch, lambda: self.features["transaction.version"]
        )
        self.error_rate = 0.0
        self.largest_batch = 2**31
        self.slowest_replication = 0.02
        self.counts = dict.fromkeys(("moves", "restarts", "errors"), 0)
        self.on_down: Callable[[int], None] = lambda node: None
        self._coordinators: dict[tuple[int, str], int] = {}
        self._loading: dict[tuple[int, str], float] = {}
        self._sweep()
        self._remove_empty_groups()

    def _sweep(self) -> None:
        self.transactions.abort_overdue()
        self.loop.call_later(1.0, self._sweep)

    def _remove_empty_groups(self) -> None:
        for group in self.groups.values():
            group.remove_if_empty()
        self.loop.call_later(REMOVES_GROUPS, self._remove_empty_groups)

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        return self.partitions[TopicPartition(topic, partition)].log

    def group(self, name: str) -> GroupOffsets:
        return self.groups.setdefault(name, GroupOffsets())

    # -- faults --------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        self.error_rate = 0.0
        self.largest_batch = 2**31

    def move_leaders(self) -> None:
        for tp, replicas in self.partitions.items():
            if self.dice.random() < 0.5:
                self._elect(tp, replicas, is_clean=True)

    def _elect(self, tp: TopicPartition, replicas: Replicas, *, is_clean: bool) -> None:
        self.counts["moves"] += 1
        up = [node for node in NODES if node not in self.down]
        replicas.epoch += 1
        replicas.leader = self.dice.choice(up) if up else _NO_LEADER
        if not is_clean and self.dice.random() < 0.5:
            replicas.log.lose_unreplicated()

    def move_coordinators(self) -> None:
        for key in list(self._coordinators):
            self._move_coordinator(key)

    def _move_coordinator(self, key: tuple[int, str]) -> None:
        up = [node for node in NODES if node not in self.down] or list(NODES)
        self._coordinators[key] = self.dice.choice(up)
        self._loading[key] = self.loop.time() + self.dice.choice((0.0, 0.1, 2.0))

    def restart(self, node: int, seconds: float) -> None:
        """The broker dies, and is back later."""
        if node in self.down:
            return
        self.counts["restarts"] += 1
        self.down.add(node)
        self.on_down(node)
        pause = self.dice.choice((0.0, 0.05, 1.0))
        for tp, replicas in self.partitions.items():
            if replicas.leader == node:
                replicas.leader, replicas.epoch = _NO_LEADER, replicas.epoch + 1
                self.loop.call_later(pause, self._elect_if_none, tp, replicas)
        for key, at in list(self._coordinators.items()):
            if at == node:
                self._move_coordinator(key)
        self.loop.call_later(seconds, self._is_back, node)

    def _elect_if_none(self, tp: TopicPartition, replicas: Replicas) -> None:
        if replicas.leader == _NO_LEADER:
            self._elect(tp, replicas, is_clean=False)

    def _is_back(self, node: int) -> None:
        self.down.discard(node)
        for tp, replicas in self.partitions.items():
            self._elect_if_none(tp, replicas)

    # -- requests ------------------------------------------------------------------------------------------------

    def handle(self, node: int, name: str, version: int, fields: Mapping[str, Any], reply: Reply) -> None:
        """`name` is that of the request."""
        if name == PRODUCE.name:
            self._produce(node, version, fields, reply)
        else:
            reply(getattr(self, f"_{name}")(node, version, fields))

    def _Metadata(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        asked = fields["topics"]
        names = list(self.ids) if asked is None else [each["name"] for each in asked]
        return Body(
            cluster_id="simulation",
            error_code=E.none,
            brokers=[
                Body(node_id=each, host="broker", port=each, rack=None) for each in NODES if each not in self.down
            ],
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> Body:
        if name in self.missing:
            code = E.unknown_topic_or_partition
            return Body(name=name, topic_id=uuid.UUID(int=0), error_code=code, is_internal=False, partitions=[])
        partitions = [
            Body(
                partition_index=tp.partition,
                leader_id=each.leader,
                leader_epoch=each.epoch,
                replica_nodes=NODES,
                isr_nodes=NODES,
                offline_replicas=(),
            )
            for tp, each in self.partitions.items()
            if tp.topic == name
        ]
        return Body(name=name, topic_id=self.ids[name], error_code=E.none, is_internal=False, partitions=partitions)

    def _FindCoordinator(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        found = []
        for key in fields["coordinator_keys"]:
            at = self._coordinators.setdefault((fields["key_type"], key), self.dice.choice(NODES))
            code = E.coordinator_not_available if at in self.down else E.none
            found.append(Body(error_code=code, error_message=None, node_id=at, host="broker", port=at))
        return Body(coordinators=found)

    def _not_coordinating(self, node: int, kind: int, key: str) -> int:
        """The error of a broker that is not the coordinator, or not yet."""
        if self._coordinators.get((kind, key), node) != node:
            return E.not_coordinator
        if self._loading.get((kind, key), 0.0) > self.loop.time():
            return E.coordinator_load_in_progress
        return self._sometimes(E.coordinator_not_available, E.request_timed_out)

    def _sometimes(self, *codes: int) -> int:
        if self.dice.random() < self.error_rate:
            self.counts["errors"] += 1
            return self.dice.choice(codes)
        return E.none

    def _InitProducerId(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        name = fields["transactional_id"]
        if name is None:
            return _identified(E.none, ProducerIdentity(self.transactions.new_producer_id(), 0))
        identity = ProducerIdentity(fields["producer_id"], fields["producer_epoch"])
        if code := self._not_coordinating(node, 1, name):
            return _identified(code, ProducerIdentity(-1, -1))
        return _identified(*self.transactions.init(name, identity, fields["transaction_timeout"] / 1000))

    def _AddPartitionsToTxn(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        name, identity = fields["v3_and_below_transactional_id"], _identity(fields, "v3_and_below_")
        topics = fields["v3_and_below_topics"]
        places = [TopicPartition(each["name"], number) for each in topics for number in each["partitions"]]
        code = self._not_coordinating(node, 1, name) or self.transactions.add(name, identity, places, 1)
        return Body(
            results_by_topic_v3_and_below=[
                Body(
                    name=tp.topic, results_by_partition=[Body(partition_index=tp.partition, partition_error_code=code)]
                )
                for tp in places
            ]
        )

    def _AddOffsetsToTxn(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        name, identity = fields["transactional_id"], _identity(fields)
        code = self._not_coordinating(node, 1, name)
        return Body(error_code=code or self.transactions.add(name, identity, [fields["group_id"]], 1))

    def _TxnOffsetCommit(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        name, identity, group = fields["transactional_id"], _identity(fields), fields["group_id"]
        code = self._not_coordinating(node, 0, group)
        if not code and version >= 5:
            code = _as_leader(self.transactions.add(name, identity, [group], 2))
        elif not code:
            code = _as_leader(self.transactions.verify(name, identity, group))
        offsets = {
            TopicPartition(topic["name"], each["partition_index"]): (
                each["committed_offset"],
                each["committed_metadata"],
            )
            for topic in fields["topics"]
            for each in topic["partitions"]
        }
        if not code:
            code = self.group(group).add(identity, fields["member_id"], fields["generation_id"], offsets)
        return Body(
            topics=[
                Body(name=tp.topic, partitions=[Body(partition_index=tp.partition, error_code=code)]) for tp in offsets
            ]
        )

    def _EndTxn(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        name = fields["transactional_id"]
        if code := self._not_coordinating(node, 1, name):
            return _identified(code, ProducerIdentity(-1, -1))
        code, identity = self.transactions.end(
            name, _identity(fields), commits=fields["committed"], raises_epoch=version >= 5
        )
        return _identified(code, identity) if version >= 5 else Body(error_code=code)

    def _DescribeTransactions(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        return Body(transaction_states=[self._described(node, name) for name in fields["transactional_ids"]])

    def _described(self, node: int, name: str) -> Body:
        found = self.transactions.ids.get(name)
        code = self._not_coordinating(node, 1, name)
        if found is None or code:
            return Body(error_code=code or E.transactional_id_not_found)
        started = found.started if found.state == "Ongoing" else -0.001
        return Body(
            error_code=E.none,
            transaction_state=found.state,
            producer_id=found.current.producer_id,
            producer_epoch=found.current.epoch,
            transaction_start_time=int(started * 1000),
            transaction_timeout=datetime.timedelta(seconds=found.timeout),
        )

    def _ListTransactions(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        states = [
            Body(transactional_id=name)
            for name, each in self.transactions.ids.items()
            if each.state == "Ongoing" and self._coordinators.get((1, name), node) == node
        ]
        return Body(error_code=E.none, transaction_states=states)

    def _OffsetFetch(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        (asked,) = fields["groups"]
        name = asked["group_id"]
        if code := self._not_coordinating(node, 0, name):
            return Body(groups=[Body(group_id=name, error_code=code, topics=[])])
        group = self.group(name)
        unstable = E.unstable_offset_commit if fields["require_stable"] and group.pending else E.none
        if asked["topics"] is None:
            found = group.committed or {TopicPartition("none", 0): (-1, "")}
        else:
            named = [
                TopicPartition(each["name"], number) for each in asked["topics"] for number in each["partition_indexes"]
            ]
            found = {tp: group.committed.get(tp, (-1, "")) for tp in named}
        topics = [
            Body(
                name=tp.topic,
                partitions=[
                    Body(partition_index=tp.partition, error_code=unstable, committed_offset=offset, metadata=metadata)
                ],
            )
            for tp, (offset, metadata) in found.items()
        ]
        return Body(groups=[Body(group_id=name, error_code=E.none, topics=topics)])

    def _DescribeGroups(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        (name,) = fields["groups"]
        code = self._not_coordinating(node, 0, name)
        exists = self.group(name).exists
        code = code or (E.none if exists else E.group_id_not_found)
        return Body(groups=[Body(error_code=code, group_state="Empty" if exists else "Dead")])

    def _DescribeAcls(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        return Body(error_code=E.none if self.checks_rights else E.security_disabled)

    def _ConsumerGroupDescribe(self, node: int, version: int, fields: Mapping[str, Any]) -> Body:
        (name,) = fields["group_ids"]
        return Body(groups=[Body(error_code=self._not_coordinating(node, 0, name) or E.group_id_not_found)])

    # -- Produce -------------------------------------------------------------------------------------------------

    def _produce(self, node: int, version: int, fields: Mapping[str, Any], reply: Reply) -> None:
        """The response is sent when all batches are replicated."""
        appended = [
            (topic, each["index"], self._append(node, version, fields["transactional_id"], topic["name"], each))
            for topic in fields["topic_data"]
            for each in topic["partition_data"]
        ]
        self.loop.call_later(self.dice.uniform(0.0, self.slowest_replication), self._replicated, appended, reply)

    def _append(
        self, node: int, version: int, transactional_id: str | None, topic: str, sent: Mapping[str, Any]
    ) -> tuple[int, LogBatch | None, int]:
        """The error code, or the batch in the log and the epoch of its leader."""
        data = sent["data"]
        tp = TopicPartition(topic, sent["index"])
        replicas = self.partitions[tp]
        log = replicas.log
        if replicas.leader != node:
            return E.not_leader_or_follower, None, -1
        producer_id, epoch, first, _ = struct.unpack_from(">qhii", data, 43)
        is_transactional = bool(data[22] & 0x10)
        assert is_transactional == (transactional_id is not None)
        if len(data) > self.largest_batch:
            return E.message_too_large, None, -1
        values = [record.value or b"" for record in decode(data, topic=topic, partition=tp.partition, position=0)]
        batch = LogBatch(producer_id, epoch, first, values, is_transactional)
        if code := self._sometimes(E.not_enough_replicas, E.kafka_storage_error):
            return code, None, -1
        if transactional_id is not None:
            identity = ProducerIdentity(producer_id, epoch)
            if code := self._verify(version, transactional_id, identity, tp, log):
                return code, None, -1
        code, known = log.check(batch)
        if code:
            return code, None, -1
        if known is None:
            log.append(batch)
        return E.none, known or batch, replicas.epoch

    def _verify(
        self, version: int, name: str, identity: ProducerIdentity, tp: TopicPartition, log: PartitionLog
    ) -> int:
        """Whether the batch belongs to an open transaction. With version 2, the broker adds its partition."""
        if log.has_open(*identity):
            return E.none
        state = log.producers.get(identity.producer_id)
        if state is not None and identity.epoch < state.epoch:
            return E.invalid_producer_epoch
        if version < 12:
            return _as_leader(self.transactions.verify(name, identity, tp))
        if self._coordinators.get((1, name)) in self.down:
            return E.not_enough_replicas
        return _as_leader(self.transactions.add(name, identity, [tp], 2))

    def _replicated(self, appended: list[tuple[Any, int, tuple[int, LogBatch | None, int]]], reply: Reply) -> None:
        responses = []
        for topic, number, (code, batch, epoch) in appended:
            replicas = self.partitions[TopicPartition(topic["name"], number)]
            if batch is not None:
                if replicas.epoch != epoch:
                    code = E.not_leader_or_follower
                else:
                    _replicate(replicas.log.batches, batch)
                    code = self._sometimes(E.not_enough_replicas_after_append, E.request_timed_out)
            responses.append(
                Body(
                    name=topic["name"],
                    topic_id=topic["topic_id"],
                    partition_responses=[
                        Body(
                            index=number,
                            error_code=code,
                            base_offset=batch.base if batch is not None and not code else -1,
                            log_append_time=-1,
                            record_errors=(),
                            error_message=None,
                            current_leader=self._hint(replicas, code),
                        )
                    ],
                )
            )
        endpoints = [Body(node_id=node, host="broker", port=node, rack=None) for node in NODES]
        reply(Body(responses=responses, node_endpoints=endpoints))

    def _hint(self, replicas: Replicas, code: int) -> Body | None:
        if code != E.not_leader_or_follower or self.dice.random() < 0.5:
            return None
        return Body(leader_id=replicas.leader, leader_epoch=replicas.epoch)

    # -- markers -------------------------------------------------------------------------------------------------

    def _write_marker(self, place: Any, identity: ProducerIdentity, commits: bool, done: Callable[[], None]) -> None:
        self.loop.call_later(self.dice.choice((0.0, 0.005, 0.5)), self._mark, place, identity, commits, done)

    def _mark(self, place: Any, identity: ProducerIdentity, commits: bool, done: Callable[[], None]) -> None:
        if isinstance(place, str):
            self.group(place).end(identity, commits=commits)
        elif self.partitions[place].leader == _NO_LEADER:
            self.loop.call_later(0.1, self._mark, place, identity, commits, done)
            return
        else:
            log = self.partitions[place].log
            marker = LogBatch(*identity, -1, [], True, commits=commits)
            log.append(marker)
            _replicate(log.batches, marker)
        done()


def _replicate(batches: Iterable[LogBatch], last: LogBatch) -> None:
    """Followers fetch in order, so they have everything up to the batch."""
    for each in batches:
        each.is_replicated = True
        if each is last:
            return


def _as_leader(code: int) -> int:
    """What the leader of a partition answers if the coordinator has sent it this error."""
    return E.invalid_producer_epoch if code == E.producer_fenced else code


def _identity(fields: Mapping[str, Any], prefix: str = "") -> ProducerIdentity:
    return ProducerIdentity(fields[f"{prefix}producer_id"], fields[f"{prefix}producer_epoch"])


def _identified(code: int, identity: ProducerIdentity) -> Body:
    return Body(error_code=code, producer_id=identity.producer_id, producer_epoch=identity.epoch)
