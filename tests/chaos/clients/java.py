"""Java's VerifiableProducer: its command line, and its output as the events of a ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chaos.identity import parse_identity
from chaos.ledger import Event
from support.brokers.java_tool import java_tool

# The tool itself sets retries=0, which switches idempotence off.
_SETTINGS = "retries=2147483647\nenable.idempotence=true\nlinger.ms=100\nmetadata.max.age.ms=3000\n"
_RATE = 20


def java_command(servers: str, topic: str, life: int, directory: Path) -> list[str]:
    settings = directory / "java.properties"
    settings.write_text(_SETTINGS)
    return java_tool(
        "VerifiableProducer",
        *("--bootstrap-server", servers, "--topic", topic, "--value-prefix", str(life)),
        *("--throughput", str(_RATE), "--command-config", str(settings)),
    )


def java_events(path: Path, topic: str) -> list[Event]:
    """The events in its output. Lines that are no JSON are log lines."""
    events = []
    for line in path.read_text(errors="replace").splitlines(keepends=True):
        if not (line.startswith("{") and line.endswith("}\n")):
            continue
        said: dict[str, Any] = json.loads(line)
        match said["name"]:
            case "startup_complete":
                started = {"kind": "java", "group": "", "topic": topic}
                events.append(Event(said["timestamp"], "started", started))
            case "producer_send_success":
                record = (said["partition"], parse_identity(said["value"]).number, said["offset"])
                events.append(Event(said["timestamp"], "acked", {"records": [record]}))
            case "producer_send_error":
                events.append(Event(said["timestamp"], "failed", {"records": [[said["value"], said["message"]]]}))
            case "shutdown_complete":
                events.append(Event(said["timestamp"], "closed", {}))
    return events
