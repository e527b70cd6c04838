"""What all client programs have in common: `python -m chaos.clients.<module> SPEC`, with a JSON object.

name, life, kind, topic, group, target      who it is
ledger                                      the file that it appends to
servers, ports                              brokers, and the proxies to use instead of their ports
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chaos.identity import Run, Seen, parse_identity, to_runs
from chaos.ledger import LedgerWriter
from headrace import Record
from headrace._net.connection import Connection

SESSION_MS = 10_000
COMMON: dict[str, Any] = {"request_timeout_ms": 8_000, "metadata_max_age_ms": 3_000}
CONSUMER: dict[str, Any] = {"auto_offset_reset": "earliest", "max_poll_interval_ms": 30_000, "max_poll_records": 200}


class Process:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.name = f"{spec['name']}.{spec['life']}"
        self.kind: str = spec["kind"]
        self.group: str = spec["group"]
        self.topic: str = spec["topic"]
        self.target: str = spec["target"]
        self.servers: str = spec["servers"]
        self.client: str = spec["name"]
        self.dice = random.Random(self.name)
        self.ledger = LedgerWriter(Path(spec["ledger"]))
        self.stopping = threading.Event()
        if self.kind not in ("done", "exactly_once"):  # run() has its own handler
            signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        _redirect({int(port): other for port, other in spec["ports"].items()})
        self.ledger.write("started", kind=self.kind, group=self.group, topic=self.topic, target=self.target)

    def closed(self) -> None:
        self.ledger.write("closed")

    @property
    def settings(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.servers, "client_id": self.client, **COMMON}


def start() -> Process:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    return Process(json.loads(sys.argv[1]))


def runs_of(records: Iterable[Record]) -> list[Run]:
    return to_runs(Seen(each.partition, each.offset, parse_identity((each.value or b"").decode())) for each in records)


def _redirect(ports: dict[int, int]) -> None:
    """Connect to the proxies instead of the brokers."""
    connect: Any = Connection.open

    async def open_elsewhere(host: str, port: int, *args: Any) -> Connection:
        found: Connection = await connect(host, ports.get(port, port), *args)
        return found

    Connection.open = open_elsewhere  # type: ignore[assignment, method-assign]


def spec_of(**fields: Any) -> str:
    return json.dumps({name: os.fspath(value) if isinstance(value, Path) else value for name, value in fields.items()})
