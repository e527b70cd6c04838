"""`kafka-share-groups`, and Java's VerifiableShareConsumer."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from types import TracebackType
from typing import Any, Self

from support.brokers.java_tool import java_tool

_TIMEOUT = 90.0

Row = dict[str, str]


def describe(bootstrap_servers: str, group: str, *table: str) -> list[Row]:
    """A table of `--describe`: offsets by default, otherwise with `--members` or `--state`."""
    command = java_tool(
        "consumer.group.ShareGroupCommand",
        *("--bootstrap-server", bootstrap_servers, "--describe", "--group", group, *table),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert lines, done.stderr
    heads = [line for line in lines if line.startswith("GROUP ")]
    assert heads, done.stdout
    columns = [(match[0], match.start()) for match in re.finditer(r"\S+(?: \(ID\))?", heads[0])]
    ends = [start for _, start in columns[1:]] + [None]
    return [
        {name: line[start:end].strip() for (name, start), end in zip(columns, ends, strict=True)}
        for line in lines[lines.index(heads[0]) + 1 :]
    ]


class VerifiableShareConsumer:
    """Runs as a process until the `with` block ends. Collects the records it got as (partition, offset)."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self.got: list[tuple[int, int]] = []
        self.events: list[dict[str, Any]] = []
        self.other: list[str] = []
        self._command = java_tool(
            "VerifiableShareConsumer",
            *("--bootstrap-server", bootstrap_servers, "--group-id", group, "--topic", topic, "--verbose"),
            *("--acknowledgement-mode", "auto"),
        )

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                self.other.append(line)
                continue
            self.events.append(event)
            if event["name"] == "record_data":
                self.got.append((event["partition"], event["offset"]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
