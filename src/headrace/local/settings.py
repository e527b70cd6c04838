"""The settings of a broker of the local cluster: its properties, directories and logging.

The settings differ from Kafka's defaults where a developer's machine differs from a data centre. The `properties` of
the user override all of them.
"""

from __future__ import annotations

import base64
import secrets
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalBrokerError
from .kafka_home import KafkaHome
from .secured import Secured

HOST = "127.0.0.1"

_OWNED = frozenset(
    {"node.id", "broker.id", "process.roles", "listeners", "advertised.listeners", "log.dirs", "log.dir"}
    | {"metadata.log.dir", "controller.quorum.voters", "controller.listener.names", "broker.rack"}
    | {"controller.quorum.bootstrap.servers", "listener.security.protocol.map", "inter.broker.listener.name"}
)

LOGGING = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} broker ${sys:headrace.broker} %-5p %m (%c{1})%n
# At level INFO: 1,400 lines per start, all of them in server.properties or in Kafka's documentation.
logger.config.name = org.apache.kafka.common.config.AbstractConfig
logger.config.level = warn
logger.broker.name = kafka.server.KafkaConfig
logger.broker.level = warn
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one broker: for clients and other brokers, for the quorum of controllers and, on a secured cluster,
    for clients with a certificate."""

    client: int
    controller: int
    mutual: int = 0


@dataclass(frozen=True, slots=True)
class BrokerFiles:
    """The files of one broker, below the cluster's data directory."""

    home: Path

    @property
    def properties(self) -> Path:
        return self.home / "server.properties"

    @property
    def logging(self) -> Path:
        return self.home / "log4j2.properties"

    @property
    def data(self) -> Path:
        return self.home / "data"


def check_overrides(properties: Mapping[str, str]) -> None:
    """Raise `LocalBrokerError` for a property that the cluster itself must set."""
    for name in properties:
        if name in _OWNED:
            raise LocalBrokerError(f"{name} is set by LocalBroker and cannot be given in properties")


def broker_properties(
    broker_id: int,
    ports: Mapping[int, Ports],
    rack: str | None,
    data: Path,
    overrides: Mapping[str, str],
    secured: Secured | None = None,
) -> dict[str, str]:
    own = ports[broker_id]
    replicas = str(min(3, len(ports)))
    in_sync = str(min(2, len(ports)))
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(broker_id),
        **_listeners(own, secured),
        "controller.listener.names": "CONTROLLER",
        # A static quorum: its addresses are settings, not data, so the ports may change between starts.
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{p.controller}" for i, p in sorted(ports.items())),
        "log.dirs": str(data),
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        # With the default of 50 each, the first groups of a test would have to create 150 partitions.
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.num.partitions": "8",
        # The first member of a group does not wait three seconds for others.
        "group.initial.rebalance.delay.ms": "0",
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": str(_session_timeout(len(ports), data)),
        # The default takes 128 MB of heap, to compact logs that are larger than those on a laptop.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }
    if rack is not None:
        settings["broker.rack"] = rack
        settings["replica.selector.class"] = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    return settings | dict(overrides)


def _session_timeout(brokers: int, data: Path) -> int:
    """The milliseconds without heartbeats after which the controller fences a broker."""
    was_killed = (data / "meta.properties").exists() and not (data / ".kafka_cleanshutdown").exists()
    if brokers > 1 or was_killed:
        # The leaderships of a killed broker move after four seconds instead of nine. A broker that starts after it was
        # killed is not registered before its former session has expired, either.
        return 4_000
    # There is nobody to move leaderships to. A machine that stalls for some seconds delays heartbeats, and while the
    # only broker is fenced, no topic can be created ("All brokers are currently fenced").
    return 30_000


def _listeners(own: Ports, secured: Secured | None) -> dict[str, str]:
    if secured is None:
        return {
            "listeners": f"PLAINTEXT://{HOST}:{own.client},CONTROLLER://{HOST}:{own.controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{own.client}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
    for_clients = f"SECURE://{HOST}:{own.client},MUTUAL://{HOST}:{own.mutual}"
    return {
        "listeners": f"{for_clients},CONTROLLER://{HOST}:{own.controller}",
        "advertised.listeners": for_clients,
        "listener.security.protocol.map": "SECURE:SASL_SSL,MUTUAL:SSL,CONTROLLER:SSL",
        **secured.broker_properties(),
    }


def write_broker_files(
    files: BrokerFiles, settings: Mapping[str, str], cluster_id: str, begin: KafkaHome | Secured
) -> None:
    """Write the settings, which may contain passwords, and format the log directory if it is not formatted yet."""
    files.data.mkdir(parents=True, exist_ok=True)
    files.properties.touch(mode=0o600)
    files.properties.write_text("".join(f"{name}={_escape(value)}\n" for name, value in settings.items()))
    files.logging.write_text(LOGGING)
    meta = files.data / "meta.properties"
    if meta.exists():
        return
    shutil.copyfile(begin.bootstrap_checkpoint, files.data / "bootstrap.checkpoint")
    # Written last, and renamed: Kafka considers the directory formatted if this file exists.
    draft = meta.with_suffix(".draft")
    draft.write_text(f"version=1\ncluster.id={cluster_id}\nnode.id={settings['node.id']}\ndirectory.id={random_id()}\n")
    draft.rename(meta)


def random_id() -> str:
    """A Kafka id: a random UUID in URL-safe base64, without a leading dash, which would look like an option."""
    while True:
        made = base64.urlsafe_b64encode(uuid.UUID(bytes=secrets.token_bytes(16), version=4).bytes)
        if not made.startswith(b"-"):
            return made.decode().rstrip("=")


def rack_of(index: int, racks: Sequence[str] | None) -> str | None:
    return None if racks is None else racks[index % len(racks)]


def _escape(value: str) -> str:
    """A value in Java's properties format: backslashes and line breaks are escaped."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
