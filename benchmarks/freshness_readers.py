"""The consumers of `freshness.py`: each reads the timestamp of every record, until it is killed.

    python -m benchmarks.freshness_readers CLIENT SERVERS TOPIC GROUP

It prints the lines of `headrace.cli.demo_consumer`, which is also the consumer for headrace. The consumer for Java is
`java/Freshness.java`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from headrace.cli.demo_consumer import FreshnessReporter, consume
from headrace.local import java_command

JAVA_SOURCE = Path(__file__).parent / "java" / "Freshness.java"

# Settings of all clients. Short sessions, so that the group soon removes a killed member.
SETTINGS = {
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 1000,
    "auto.commit.interval.ms": 1000,
    "auto.offset.reset": "latest",
}
# By default librdkafka pauses fetching for a second whenever 100,000 messages wait to be consumed.
TUNED = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 5}
_POLL = 0.1
_MOST = 500  # records per poll, the default of Java and headrace


def command(client: str, servers: str, topic: str, group: str) -> list[str]:
    if client == "java":
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        return java_command(str(JAVA_SOURCE), servers, topic, group, *settings)
    return [sys.executable, "-m", f"{__package__}.freshness_readers", client, servers, topic, group]


def headrace(servers: str, topic: str, group: str, *, lanes: bool = False) -> None:
    consume({**SETTINGS, "bootstrap.servers": servers, "group.id": group, "enable.parallel.rebalance": lanes}, topic)


def headrace_lanes(servers: str, topic: str, group: str) -> None:
    headrace(servers, topic, group, lanes=True)


def confluent(servers: str, topic: str, group: str, **settings: int) -> None:
    from confluent_kafka import Consumer

    reporter = FreshnessReporter()
    consumer = Consumer({**SETTINGS, **settings, "bootstrap.servers": servers, "group.id": group})
    consumer.subscribe([topic], on_assign=lambda *_: reporter.on_assigned())
    while True:
        for message in consumer.consume(_MOST, timeout=_POLL):
            if message.error() is None:
                timestamp = message.timestamp()[1]
                if timestamp > reporter.newest:
                    reporter.newest = timestamp
                if timestamp < reporter.assigned_at:
                    reporter.old += 1
        reporter.report()


def confluent_tuned(servers: str, topic: str, group: str) -> None:
    confluent(servers, topic, group, **TUNED)


PYTHON: dict[str, Callable[[str, str, str], None]] = {
    "headrace": headrace,
    "headrace-lanes": headrace_lanes,
    "confluent": confluent,
    "confluent-tuned": confluent_tuned,
}

if __name__ == "__main__":
    PYTHON[sys.argv[1]](*sys.argv[2:])
