"""The command lines of Kafka's tools, for those that have to start quickly."""

from __future__ import annotations

import functools

from headrace.local.kafka_home import DEFAULT_VERSION
from headrace.local.prepare import Ready, prepare
from headrace.local.progress import say_on_terminal

_SHORT_LIVED = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")


def java_tool(name: str, *args: str) -> list[str]:
    """Runs a class of `org.apache.kafka.tools`. Log lines from WARN on go to stderr.

    The brokers' class archive, which fits the exact class path only, halves the time of its start.
    """
    ready = _ready()
    return [
        ready.java.executable,
        *_SHORT_LIVED,
        *([f"-XX:SharedArchiveFile={ready.archive}"] if ready.archive else []),
        f"-Dlog4j2.configurationFile={ready.kafka.tool_logging}",
        *("-cp", ready.kafka.exact_classpath, f"org.apache.kafka.tools.{name}", *args),
    ]


@functools.cache
def _ready() -> Ready:
    return prepare(DEFAULT_VERSION, say_on_terminal)
