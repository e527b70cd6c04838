"""The cluster of a run: three brokers with a proxy in front of each, the topics, and the settings of the groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

import headrace
from headrace import LocalBroker
from headrace.admin import ShareOffset
from headrace.errors import HeadraceError
from support.brokers.admin import Admin, client_settings, unique
from support.brokers.group_configs import configure_group
from support.brokers.topic_contents import oracle_rows
from support.harness.waiting import wait_for
from support.ledgers.commit_history import Commit, commit_history
from support.ledgers.share_history import ShareState, first_open, share_history

from .certificates import Certificates
from .clients.process import SESSION_MS
from .disks import Disks
from .evidence import Place, TopicLog
from .identity import identity_of_record
from .plan import BROKERS, COPIERS, MOVING, PLAIN, TX, TYPED, Client
from .proxy import Proxy
from .rules.copies import parse_copy
from .rules.moving import RETENTION, UNCLEAN_REPLICAS
from .rules.shares import LOCK

PARTITIONS = 4
SHARES = ("share_implicit", "share_explicit", "spark_share")
EPOCH_GROUPS = ("consumer", "lanes", "done", "exactly_once", "spark_member", *MOVING)
"""Kinds whose groups have the protocol of KIP-848."""
_ASK_WITHIN = 10.0
_STARTS_WITHIN = 120.0
_AHEAD = 1.5
"""Seconds in which a leader accepts records that its replica does not have."""
_PROPERTIES = {
    "min.insync.replicas": 2,
    "auto.leader.rebalance.enable": False,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.session.timeout.ms": 500,
    "group.share.heartbeat.interval.ms": 1000,
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.min.session.timeout.ms": 1000,
    "replica.fetch.wait.max.ms": 100,
    "auto.create.topics.enable": False,  # no client may recreate the topic that a fault has deleted
    "log.retention.check.interval.ms": 1000,
    "log.cleaner.backoff.ms": 1000,
    "share.coordinator.state.topic.prune.interval.ms": 86_400_000,  # the judge gets all states of share groups
}


@contextmanager
def new_brokers(log: Path, disks: Disks | None = None) -> Iterator[LocalBroker]:
    with LocalBroker(
        len(BROKERS),
        properties=_PROPERTIES,
        log_file=log,
        start_timeout=_STARTS_WITHIN,
        data_dir=disks.directory if disks is not None else None,
    ) as brokers:
        yield brokers


_REPLICATED: dict[str, Any] = {"replication": 3, "min_insync_replicas": 2}
_CONFIGS: dict[str, dict[str, Any]] = {
    "retained": {
        "retention_ms": int(RETENTION),
        "segment_ms": 1_000,
        "file_delete_delay_ms": 0,
        "message_timestamp_type": "LogAppendTime",  # the clock of a producer may jump
    },
    "unclean": {
        "replicas": UNCLEAN_REPLICAS,
        "min_insync_replicas": 1,
        "unclean_leader_election_enable": True,
    },
    "compacted": {
        "cleanup_policy": "compact",
        "segment_ms": 1_000,
        "min_cleanable_dirty_ratio": 0.01,
        "max_compaction_lag_ms": 2_000,
    },
}


class Cluster:
    """Topics, groups and proxies on running brokers. Faults of brokers must not overlap: see `brokers_lock`."""

    def __init__(
        self,
        brokers: LocalBroker,
        clients: Iterable[Client],
        disks: Disks | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.disks = disks
        self._certificates = certificates
        self._elections = 0
        self.brokers = brokers
        self.servers = brokers.bootstrap_servers
        self.brokers_lock = threading.Lock()
        """LocalBroker serves one thread at a time."""
        self.admin = Admin(self.servers)
        self._stack = ExitStack()
        self.proxies = {
            broker: self._stack.enter_context(Proxy(brokers.address(broker), certificates and certificates.context()))
            for broker in brokers.brokers
        }
        kinds = {client.kind for client in clients}
        self.written = [PLAIN, TX, *(name for name in (TYPED, *MOVING) if name in {each.topic for each in clients})]
        """Names of the topics of producers."""
        self.topics = {
            name: self.admin.create(f"chaos-{name}", PARTITIONS, **{**_REPLICATED, **_CONFIGS.get(name, {})})
            for name in self.written
        }
        self.targets = {
            kind: self.admin.create(
                f"chaos-copies-{kind.replace('_', '-')}", PARTITIONS, replication=3, min_insync_replicas=2
            )
            for kind in COPIERS
            if kind in kinds
        }
        """The topics of clients that copy, by their kind."""
        self.partitions = dict.fromkeys(self.topics.values(), PARTITIONS)
        self.groups = {client.kind: unique(f"chaos-{client.kind}") for client in clients if not client.is_producer}
        if "spark_peer" in kinds:
            self.groups["spark_peer"] = self.groups["spark_member"]
        for kind, group in self.groups.items():
            if kind in SHARES:
                settings = {"share_auto_offset_reset": "earliest", "share_record_lock_duration_ms": int(LOCK)}
                # Until a killed member's session ends, its partitions belong to nobody, in a share group as well.
                configure_group(self.servers, group, share_session_timeout_ms=SESSION_MS, **settings)
            elif kind in EPOCH_GROUPS:
                configure_group(self.servers, group, consumer_session_timeout_ms=SESSION_MS)

    def close(self) -> None:
        self._stack.close()
        self.admin.close()

    @property
    def ports(self) -> dict[int, int]:
        """The port of each proxy, by the port of its broker."""
        addresses = {broker: self.brokers.address(broker) for broker in self.proxies}
        return {int(addresses[broker].rsplit(":", 1)[1]): proxy.port for broker, proxy in self.proxies.items()}

    @property
    def client_settings(self) -> dict[str, str]:
        """What a client needs besides the address to connect to the proxies."""
        return {} if self._certificates is None else self._certificates.client_settings

    def renew_certificates(self) -> None:
        assert self._certificates is not None
        self._certificates.renew()
        for proxy in self.proxies.values():
            proxy.renew(self._certificates.context())

    # -- faults of brokers, which take as long as a restart ------------------------------------------------------------

    def apply(self, kind: str, target: str, lasts: float) -> bool:
        """Apply a fault of a broker or a topic, wait, and heal it. False if it is not possible on this machine."""
        with self.brokers_lock:
            if kind == "full_disk" and self.disks is None:
                return False
            self._apply(kind, target, lasts)
            return True

    def _apply(self, kind: str, target: str, lasts: float) -> None:
        if kind == "add_partitions":
            topic = self.topics[target]
            self.admin.add_partitions(topic, self.partitions[topic] + 1)
            self.partitions[topic] += 1
            return
        if kind == "recreate_topic":
            self._recreate(target)
            return
        if kind == "rolling_restart":
            for broker in self.brokers.brokers:
                self._restart(broker)
            return
        if kind == "unclean_election":
            self._elect_uncleanly(lasts)
            return
        broker = int(target.rpartition("-")[2])
        if kind == "restart_broker":
            self._restart(broker)
        elif kind == "kill_broker":
            self.brokers.kill(broker)
            time.sleep(lasts)
            self.brokers.restart(broker)
        elif kind == "full_disk":
            assert self.disks is not None
            self.disks.fill(broker)
            time.sleep(lasts)
            self.disks.free(broker)
            self.brokers.restart(broker)  # brokers end when they cannot write
        elif kind == "pause_broker":
            self.brokers.pause(broker)
            time.sleep(lasts)
            self.brokers.resume(broker)

    def _elect_uncleanly(self, lasts: float) -> None:
        """Let a replica fall behind and become the leader: the records that only the former leader has are lost."""
        topic = self.topics["unclean"]
        partition = self._elections % PARTITIONS
        self._elections += 1
        self.admin.wait_in_sync(topic, 2, PARTITIONS)
        leader = self.admin.leader(topic, partition)
        (follower,) = self.admin.in_sync(topic, partition) - {leader}
        self.brokers.pause(follower)
        try:
            time.sleep(lasts)
            wait_for("a leader alone", lambda: self.admin.in_sync(topic, partition) == {leader}, _STARTS_WITHIN)
            time.sleep(_AHEAD)  # meanwhile it accepts records
            self.brokers.kill(leader)
        finally:
            self.brokers.resume(follower)
        wait_for("an unclean election", lambda: self.admin.leader(topic, partition) == follower, _STARTS_WITHIN)
        self.brokers.restart(leader)

    def _recreate(self, name: str) -> None:
        topic = self.topics[name]
        self.admin.delete(topic)
        wait_for(f"the deletion of {topic}", lambda: not self.admin.is_there(topic), _STARTS_WITHIN)
        self.admin.create("", PARTITIONS, name=topic, **_REPLICATED)

    def freeze(self) -> None:
        """Nothing is deleted any more."""
        for name in MOVING:
            if name in self.topics:
                self.admin.configure(self.topics[name], cleanup_policy="delete", retention_ms=-1)

    def _restart(self, broker: int) -> None:
        self.brokers.stop_broker(broker)
        self.brokers.restart(broker)

    # -- what is in it -----------------------------------------------------------------------------------------------

    def log(self, name: str) -> TopicLog:
        topic = self.topics[name]
        rows = oracle_rows(self.servers, topic, self.partitions[topic])
        records = {(row.partition, row.offset): identity_of_record(row) for row in rows}
        if name == PLAIN:
            return TopicLog(records, frozenset(records))
        shown = oracle_rows(self.servers, topic, self.partitions[topic], "read_committed")
        return TopicLog(records, frozenset((row.partition, row.offset) for row in shown))

    def copies(self, kind: str) -> list[tuple[Place, str]]:
        rows = oracle_rows(self.servers, self.targets[kind], PARTITIONS, "read_committed")
        return [parse_copy(row.value, row.key) for row in rows]

    def uncopied(self, kind: str, log: TopicLog) -> str:
        found = {place for place, _ in self.copies(kind)}
        missing = sorted(log.visible - found)
        return f"{len(missing)} records, the first at {missing[0]}" if missing else ""

    def commits(self, group: str) -> list[Commit]:
        return commit_history(self.servers, group)

    def share_states(self, group: str) -> list[ShareState]:
        return share_history(self.servers, group)

    def uncommitted(self, group: str, topic: str, log: TopicLog) -> dict[int, str]:
        """The partitions whose last visible record is not committed, with what is."""
        settings: dict[str, Any] = {**client_settings(self.servers), "group.id": group}
        consumer = Consumer(settings)
        try:
            asked = [TopicPartition(topic, partition) for partition in log.visible_offsets]
            found = consumer.committed(asked, timeout=_ASK_WITHIN)
        except KafkaException as error:
            return {-1: str(error)}
        finally:
            consumer.close()
        return _behind(log, {each.partition: each.offset for each in found})

    def unaccepted(self, group: str, topic: str, log: TopicLog) -> dict[int, str]:
        """The same for a share group: by the first offset that is neither accepted nor archived. Ledgers do not tell:
        a member whose connection breaks does not know whether its acknowledgements arrived."""
        try:
            with headrace.Admin(bootstrap_servers=self.servers) as admin:
                found = admin.share_offsets(group, timeout=_ASK_WITHIN)
        except HeadraceError as error:
            return {-1: str(error)}
        offsets = {tp.partition: offset for tp, offset in found.items() if tp.topic == topic}
        behind = _behind(log, {partition: _reached(log, partition, offset) for partition, offset in offsets.items()})
        if not behind:
            return {}
        # The lag is part of what a leader saves, and a late write brings back an older lag (`_is_forgotten` of the
        # rules has the cause). The states of the records are still all there.
        history = self.share_states(group)
        open_at = {each: first_open(history, each, log.visible_offsets[each]) for each in behind}
        return {partition: text for partition, text in behind.items() if open_at[partition] is not None}


def _reached(log: TopicLog, partition: int, offset: ShareOffset) -> int:
    """The start offset is saved with the next acknowledgement only, but the lag counts accepted records after it."""
    offsets = log.visible_offsets.get(partition)
    return offsets[-1] + 1 if offsets and offset.lag == 0 else offset.start


def _behind(log: TopicLog, reached: Mapping[int, int]) -> dict[int, str]:
    ends = {partition: offsets[-1] + 1 for partition, offsets in log.visible_offsets.items()}
    return {
        partition: f"{reached.get(partition, -1)} of {end}"
        for partition, end in ends.items()
        if reached.get(partition, -1) < end
    }
