"""What all client programs have in common: `python -m chaos.clients.<module> SPEC`, with a JSON object.

name, life, kind, topic, group, target      who it is
ledger                                      the file that it appends to
directory                                   where it may keep files for its successors
servers, ports                              brokers, and the proxies to use instead of their ports
security                                    the settings for connections to the proxies
is_typed                                    whether values are JSON
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

from chaos.clients.redirection import redirect
from chaos.identity import Identity, Run, Seen, identity_of_record, to_runs, typed_value
from chaos.ledger import LedgerWriter
from headrace import Record

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
        self.directory: str = spec["directory"]
        self.ports: dict[str, int] = spec["ports"]
        self.security: dict[str, str] = spec["security"]
        self._is_typed: bool = spec["is_typed"]
        self.dice = random.Random(self.name)
        self.ledger = LedgerWriter(Path(spec["ledger"]))
        self.stopping = threading.Event()
        if self.kind not in ("done", "exactly_once"):  # run() has its own handler
            signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        redirect(self.ports)
        self.ledger.write("started", kind=self.kind, group=self.group, topic=self.topic, target=self.target)

    def value_of(self, identity: Identity) -> str:
        return typed_value(identity) if self._is_typed else str(identity)

    def closed(self) -> None:
        self.ledger.write("closed")

    @property
    def settings(self) -> dict[str, Any]:
        security = {name.replace(".", "_"): value for name, value in self.security.items()}
        return {"bootstrap_servers": self.servers, "client_id": self.client, **COMMON, **security}


def start() -> Process:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    return Process(json.loads(sys.argv[1]))


def runs_of(records: Iterable[Record]) -> list[Run]:
    return to_runs(Seen(each.partition, each.offset, identity_of_record(each)) for each in records)


def spec_of(**fields: Any) -> str:
    return json.dumps({name: os.fspath(value) if isinstance(value, Path) else value for name, value in fields.items()})
