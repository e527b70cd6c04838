"""Topics and logs, managed with confluent-kafka's admin client."""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave most of them out
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from support.harness.waiting import wait_for

_TIMEOUT = 60.0
_numbers = itertools.count()
_run = uuid.uuid4().hex[:6]

# librdkafka writes to stderr when a test kills its broker. Nobody needs to see that.
_quiet = logging.getLogger("librdkafka")
_quiet.setLevel(logging.CRITICAL)


def client_settings(bootstrap_servers: str) -> dict[str, Any]:
    """Settings of every confluent-kafka client in the tests."""
    return {"bootstrap.servers": bootstrap_servers, "logger": _quiet}


def unique(prefix: str) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{_run}-{next(_numbers)}"


def bounds_of(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """The log's first offset and its high watermark. While a broker does not respond, librdkafka may not know the
    partition for a moment."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=_TIMEOUT)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # between two attempts, since the broker gives no event
        else:
            return low, high


class Admin:
    """The calls that tests need. Each waits until it is complete."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._client = AdminClient(client_settings(bootstrap_servers))
        self._watcher = Consumer({**client_settings(bootstrap_servers), "group.id": "watcher"})

    def close(self) -> None:
        self._watcher.close()

    # -- topics ----------------------------------------------------------------------------------------------

    def create(
        self,
        prefix: str,
        partitions: int = 1,
        *,
        name: str | None = None,
        replication: int = 1,
        replicas: Sequence[Sequence[int]] | None = None,
        **config: object,
    ) -> str:
        """Create a topic, with settings as keywords (`retention_ms=1`). Return its unique name when it has leaders."""
        name = name or unique(prefix)
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        if replicas is None:
            topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=settings)
        else:
            topic = NewTopic(name, len(replicas), replica_assignment=[list(each) for each in replicas], config=settings)
        self._client.create_topics([topic])[name].result(_TIMEOUT)
        wait_for(f"leaders of {name}", lambda: self._has_leaders(name, topic.num_partitions))
        return name

    def _has_leaders(self, name: str, partitions: int = 1) -> bool:
        topic = self._client.list_topics(name, timeout=_TIMEOUT).topics[name]
        return (
            topic.error is None
            and len(topic.partitions) >= partitions
            and all(p.leader >= 0 for p in topic.partitions.values())
        )

    def delete(self, name: str) -> None:
        self._client.delete_topics([name])[name].result(_TIMEOUT)

    def remove(self, name: str, *, again: int | None = None) -> None:
        """Delete a topic and wait until it is gone. Recreate it with `again` partitions, if given."""
        self.delete(name)
        wait_for("the topic to be gone", lambda: not self.is_there(name))
        if again is not None:
            self.recreate(name, again)

    def recreate(self, name: str, partitions: int = 1) -> None:
        """Create a topic with the name of a deleted one. The broker rejects it until the deletion is complete."""
        wait_for(f"the new topic {name}", lambda: self._is_created(name, partitions))

    def _is_created(self, name: str, partitions: int) -> bool:
        try:
            self.create("", partitions, name=name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    def is_there(self, name: str) -> bool:
        """Whether the broker knows the topic. It learns about a deletion a moment later."""
        # A request for all topics: one by name might create the topic.
        return name in self._client.list_topics(timeout=_TIMEOUT).topics

    def add_partitions(self, name: str, total: int) -> None:
        self._client.create_partitions([NewPartitions(name, total)])[name].result(_TIMEOUT)
        # The broker learns about them a moment after the controller.
        wait_for(f"{total} partitions of {name}", lambda: self._has_leaders(name, total))

    def configure(self, name: str, **config: object) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        self._client.incremental_alter_configs([resource])[resource].result(_TIMEOUT)

    # -- logs ------------------------------------------------------------------------------------------------

    def delete_records(self, name: str, before: int, partition: int = 0) -> None:
        """Move the log start to `before`."""
        target = TopicPartition(name, partition, before)
        self._client.delete_records([target])[target].result(_TIMEOUT)

    def bounds(self, name: str, partition: int = 0) -> tuple[int, int]:
        """The log's first offset and its high watermark, according to confluent-kafka."""
        return bounds_of(self._watcher, TopicPartition(name, partition))

    def wait_end(self, name: str, end: int, partition: int = 0) -> None:
        """Wait for the log end, for example for a transaction marker, which brokers write after they have responded."""
        wait_for(f"offset {end} of {name}-{partition}", lambda: self.bounds(name, partition)[1] >= end)

    # -- leaders ---------------------------------------------------------------------------------------------

    def leader(self, name: str, partition: int = 0) -> int:
        return self._partition(name, partition)[0]

    def replicas(self, name: str, partition: int = 0) -> list[int]:
        """The replicas of a partition, the preferred leader first."""
        return list(self._client.list_topics(name, timeout=_TIMEOUT).topics[name].partitions[partition].replicas)

    def in_sync(self, name: str, partition: int = 0) -> set[int]:
        return self._partition(name, partition)[1]

    def _partition(self, name: str, partition: int) -> tuple[int, set[int]]:
        try:
            found = self._client.list_topics(name, timeout=_TIMEOUT).topics[name].partitions[partition]
        except KafkaException:  # the broker is shutting down
            return -1, set()
        return found.leader, set(found.isrs)

    def coordinator(self, group: str) -> int:
        """The broker that coordinates a group."""
        return int(self._client.describe_consumer_groups([group])[group].result(_TIMEOUT).coordinator.id)

    def elect_preferred(self, name: str, partitions: int = 1) -> None:
        targets = [TopicPartition(name, number) for number in range(partitions)]
        self._client.elect_leaders(ElectionType.PREFERRED, targets).result(_TIMEOUT)

    def wait_in_sync(self, name: str, replicas: int, partitions: int = 1, timeout: float = 60.0) -> None:
        for number in range(partitions):
            wait_for(
                f"{replicas} replicas in sync of {name}-{number}",
                lambda n=number: len(self.in_sync(name, n)) == replicas,  # type: ignore[misc]
                timeout,
            )
