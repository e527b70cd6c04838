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
from support.ledgers.commit_history import Commit, commit_history

from .clients.process import SESSION_MS
from .evidence import Place, TopicLog
from .identity import parse_identity
from .plan import BROKERS, COPIES, PLAIN, TX, Client
from .proxy import Proxy
from .rules.copies import parse_copy
from .rules.shares import LOCK

PARTITIONS = 4
_ASK_WITHIN = 10.0
_STARTS_WITHIN = 120.0
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
}


@contextmanager
def new_brokers(log: Path) -> Iterator[LocalBroker]:
    with LocalBroker(len(BROKERS), properties=_PROPERTIES, log_file=log, start_timeout=_STARTS_WITHIN) as brokers:
        yield brokers


class Cluster:
    """Topics, groups and proxies on running brokers. Faults of brokers must not overlap: see `brokers_lock`."""

    def __init__(self, brokers: LocalBroker, clients: Iterable[Client]) -> None:
        self.brokers = brokers
        self.servers = brokers.bootstrap_servers
        self.brokers_lock = threading.Lock()
        """LocalBroker serves one thread at a time."""
        self.admin = Admin(self.servers)
        self._stack = ExitStack()
        self.proxies = {broker: self._stack.enter_context(Proxy(brokers.address(broker))) for broker in brokers.brokers}
        self.topics = {
            name: self.admin.create(f"chaos-{name}", PARTITIONS, replication=3, min_insync_replicas=2)
            for name in (PLAIN, TX, COPIES)
        }
        self.partitions = dict.fromkeys(self.topics.values(), PARTITIONS)
        self.groups = {client.kind: unique(f"chaos-{client.kind}") for client in clients if not client.is_producer}
        for kind, group in self.groups.items():
            if kind.startswith("share"):
                settings = {"share_auto_offset_reset": "earliest", "share_record_lock_duration_ms": int(LOCK)}
                # Until a killed member's session ends, its partitions belong to nobody, in a share group as well.
                configure_group(self.servers, group, share_session_timeout_ms=SESSION_MS, **settings)
            elif kind not in ("assigned", "eager", "cooperative"):
                configure_group(self.servers, group, consumer_session_timeout_ms=SESSION_MS)

    def close(self) -> None:
        self._stack.close()
        self.admin.close()

    @property
    def ports(self) -> dict[int, int]:
        """The port of each proxy, by the port of its broker."""
        addresses = {broker: self.brokers.address(broker) for broker in self.proxies}
        return {int(addresses[broker].rsplit(":", 1)[1]): proxy.port for broker, proxy in self.proxies.items()}

    # -- faults of brokers, which take as long as a restart ------------------------------------------------------------

    def apply(self, kind: str, target: str, lasts: float) -> None:
        """Apply a fault of a broker or a topic, wait, and heal it."""
        with self.brokers_lock:
            if kind == "add_partitions":
                topic = self.topics[target]
                self.admin.add_partitions(topic, self.partitions[topic] + 1)
                self.partitions[topic] += 1
                return
            if kind == "rolling_restart":
                for broker in self.brokers.brokers:
                    self._restart(broker)
                return
            broker = int(target.rpartition("-")[2])
            if kind == "restart_broker":
                self._restart(broker)
            elif kind == "kill_broker":
                self.brokers.kill(broker)
                time.sleep(lasts)
                self.brokers.restart(broker)
            elif kind == "pause_broker":
                self.brokers.pause(broker)
                time.sleep(lasts)
                self.brokers.resume(broker)

    def _restart(self, broker: int) -> None:
        self.brokers.stop_broker(broker)
        self.brokers.restart(broker)

    # -- what is in it -----------------------------------------------------------------------------------------------

    def log(self, name: str) -> TopicLog:
        topic = self.topics[name]
        rows = oracle_rows(self.servers, topic, self.partitions[topic])
        records = {(row.partition, row.offset): parse_identity((row.value or b"").decode()) for row in rows}
        if name == PLAIN:
            return TopicLog(records, frozenset(records))
        shown = oracle_rows(self.servers, topic, self.partitions[topic], "read_committed")
        return TopicLog(records, frozenset((row.partition, row.offset) for row in shown))

    def copies(self) -> list[tuple[Place, str]]:
        topic = self.topics[COPIES]
        rows = oracle_rows(self.servers, topic, self.partitions[topic], "read_committed")
        return [parse_copy((row.value or b"").decode()) for row in rows]

    def commits(self, group: str) -> list[Commit]:
        return commit_history(self.servers, group)

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
        # The start offset is saved with the next acknowledgement only, but the lag counts accepted records after it.
        reached = {
            tp.partition: _reached(log, tp.partition, offset) for tp, offset in found.items() if tp.topic == topic
        }
        return _behind(log, reached)


def _reached(log: TopicLog, partition: int, offset: ShareOffset) -> int:
    offsets = log.visible_offsets.get(partition)
    return offsets[-1] + 1 if offsets and offset.lag == 0 else offset.start


def _behind(log: TopicLog, reached: Mapping[int, int]) -> dict[int, str]:
    ends = {partition: offsets[-1] + 1 for partition, offsets in log.visible_offsets.items()}
    return {
        partition: f"{reached.get(partition, -1)} of {end}"
        for partition, end in ends.items()
        if reached.get(partition, -1) < end
    }
