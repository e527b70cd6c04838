"""The files of Spark's file sink: only those count that its log (`_spark_metadata`) names.

The log has a file for each batch, with the paths of the batch's files, and every ten batches `<number>.compact`, which
repeats all earlier paths. The time of a record is that of its file.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

from .identity import Seen, parse_identity, to_runs
from .ledger import Event


def file_events(directory: Path) -> list[Event]:
    """The records of each committed file, as a ledger has them, by time."""
    events = []
    for path, batch in committed_files(directory).items():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        runs = to_runs(Seen(row["partition"], row["offset"], parse_identity(row["value"])) for row in rows)
        fields = {"batch": batch, "runs": runs, "lane": None}
        events.append(Event(path.stat().st_mtime_ns / 1_000_000, "received", fields))
    return sorted(events, key=lambda event: event.at)


def committed_files(directory: Path) -> dict[Path, int]:
    """The paths in the log, with their batches. A path of a compact file has the batch whose file named it first, if
    that still exists, otherwise that of the compact file."""
    found: dict[Path, int] = {}
    logs = [path for path in (directory / "_spark_metadata").glob("[0-9]*") if path.suffix in ("", ".compact")]
    for log in sorted(logs, key=lambda path: (path.suffix == ".compact", int(path.stem))):
        for line in log.read_text().splitlines()[1:]:  # the first line is the version
            path = Path(unquote(urlparse(json.loads(line)["path"]).path))
            found.setdefault(path, int(log.stem))
    return found
