"""The micro-batches of streaming queries, by their checkpoints.

    offsets/17    written when batch 17 is planned, with the time in its second line
    commits/17    written when batch 17 is finished

The records of a batch are those between the offsets of the batch before and its own. A query notes no offsets for the
start of its first batch: there, the number of records is an upper bound.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from ..errors import HeadraceError
from .checkpoints import find_checkpoints, is_batch, offset_lines, offsets_in

_MOST = 50  # batches of one query


@dataclasses.dataclass(frozen=True, slots=True)
class BatchView:
    query: str
    number: int
    records: int | None
    """None if the query has no Kafka source."""
    is_exact: bool
    """False for the first batch of a query, which may have started in the middle of the log."""
    planned: float
    """When Spark read the end of the log: what was written later is not in the batch."""
    finished: float | None
    """None while the batch runs."""
    open: int = 0
    """Records of the backlog lane (KIP-333) that are left after the batch."""


def read_batches(directory: Path, since: float = 0.0) -> list[BatchView]:
    """The latest batches of all checkpoints in the directory that were planned after `since`, in their order. A file
    that cannot be read is left out: Spark may be writing it."""
    found = []
    for path in find_checkpoints(directory):
        name = str(path.relative_to(directory)) if path != directory else path.name
        try:
            numbers = sorted(int(it.name) for it in (path / "offsets").iterdir() if is_batch(it))
        except OSError:  # Spark has just removed it
            continue
        for number in numbers[-_MOST:]:
            try:
                batch = _batch(path, name, number)
            except (OSError, ValueError, LookupError, HeadraceError):
                continue
            if batch.planned >= since:
                found.append(batch)
    return sorted(found, key=lambda it: (it.query, it.number))


def _batch(path: Path, name: str, number: int) -> BatchView:
    lines = offset_lines(path, number)
    planned = float(json.loads(lines[1])["batchTimestampMs"]) / 1000
    commit = path / "commits" / str(number)
    finished = commit.stat().st_mtime if commit.exists() else None
    ends, is_exact = offsets_in(lines), number > 0 and (path / "offsets" / str(number - 1)).exists()
    starts = offsets_in(offset_lines(path, number - 1)) if is_exact else {}
    done = {tp: starts[tp].count_done if tp in starts else 0 for tp in ends if tp in starts or not is_exact}
    records = sum(ends[tp].count_done - before for tp, before in done.items())
    left = sum(each.count_open for each in ends.values())
    return BatchView(name, number, records if ends else None, is_exact, planned, finished, left)
