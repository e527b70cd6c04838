"""Command lines of Kafka's tools that start quickly."""

from __future__ import annotations

import functools

from headrace.local.kafka_home import DEFAULT_VERSION
from headrace.local.prepare import Ready, prepare
from headrace.local.progress import say_on_terminal

_SHORT_LIVED = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")


def java_tool(name: str, *args: str) -> list[str]:
    """The command line of a class in `org.apache.kafka.tools`. Log lines of level WARN and above go to stderr.

    The brokers' class data archive, which needs the exact class path, halves the startup time.
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
