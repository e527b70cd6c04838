"""Reads the offsets of a streaming query from its checkpoint.

    <checkpoint>/offsets/17    the end offsets of batch 17: a line with the version, one with settings, one per source
    <checkpoint>/commits/17    exists if batch 17 is finished

The query has processed the offsets of the last batch with a commit. An offset is a number or, with a backlog lane
(KIP-333), `{"frontier": 131, "holes": {"70": 120}}`. A name with a colon is not a topic: under `headrace:schemas`, a
query notes the schemas of its typed columns. Sources other than Kafka are ignored, and so are partitions that
another member of the group reads. A directory may contain several checkpoints (the storage of a pipeline): they are
combined.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .._machines.commit.offset_set import OffsetSet
from ..errors import HeadraceError
from ..types import TopicPartition

_DEEPEST = 10  # the maximum depth of checkpoints below the given directory


@dataclasses.dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """`batch` is the last finished batch, or None if none is finished yet."""

    path: Path
    name: str
    batch: int | None
    done: dict[TopicPartition, OffsetSet]


def read_checkpoints(directory: Path) -> list[QueryCheckpoint]:
    """Raises HeadraceError if there is no checkpoint, or one cannot be parsed."""
    found = [_read(path, directory) for path in find_checkpoints(directory)]
    if not found:
        raise HeadraceError(
            f"{directory} is not the checkpoint of a streaming query: it has no directories offsets/ and commits/"
        )
    return found


def find_checkpoints(directory: Path) -> list[Path]:
    """The directories of all checkpoints in the directory, or itself."""
    return sorted(_checkpoints(directory, _DEEPEST))


def _checkpoints(directory: Path, depth: int) -> list[Path]:
    if (directory / "offsets").is_dir() and (directory / "commits").is_dir():
        return [directory]
    if depth == 0:
        return []
    if not directory.is_dir():
        return []
    children = sorted(child for child in directory.iterdir() if child.is_dir() and not child.is_symlink())
    return [path for child in children for path in _checkpoints(child, depth - 1)]


def _read(path: Path, root: Path) -> QueryCheckpoint:
    name = str(path.relative_to(root)) if path != root else path.name
    done = _batches(path / "commits") & _batches(path / "offsets")
    if not done:
        return QueryCheckpoint(path, name, None, {})
    batch = max(done)
    return QueryCheckpoint(path, name, batch, offsets_in(offset_lines(path, batch)))


def offset_lines(path: Path, batch: int) -> list[str]:
    """The offset log of a batch: its version, its settings, and a line for each source."""
    lines = (path / "offsets" / str(batch)).read_text().splitlines()
    if not lines or not lines[0].startswith("v"):
        raise HeadraceError(f"{path}/offsets/{batch} is not an offset log of Spark")
    return lines


def offsets_in(lines: list[str]) -> dict[TopicPartition, OffsetSet]:
    """The offsets of the Kafka sources in an offset log."""
    return slowest(_kafka_offsets(line) for line in lines[2:])


def slowest(found: Iterable[dict[TopicPartition, OffsetSet]]) -> dict[TopicPartition, OffsetSet]:
    """For each partition, the least progress of several sources."""
    least: dict[TopicPartition, OffsetSet] = {}
    for each in found:
        for tp, done in each.items():
            if tp not in least or done.low < least[tp].low:
                least[tp] = done
    return least


def _batches(directory: Path) -> set[int]:
    return {int(path.name) for path in directory.iterdir() if is_batch(path)}


def is_batch(path: Path) -> bool:
    """Whether it is the file of a batch, and not a temporary one."""
    return path.name.isascii() and path.name.isdigit()


def _kafka_offsets(line: str) -> dict[TopicPartition, OffsetSet]:
    try:
        return {
            TopicPartition(topic, int(number)): _done(value)
            for topic, numbers in json.loads(line).items()
            if ":" not in topic
            for number, value in numbers.items()
            if not (isinstance(value, dict) and value.get("unread"))
        }
    except (ValueError, TypeError, AttributeError, KeyError):
        return {}


def _done(value: Any) -> OffsetSet:
    if not isinstance(value, dict):
        return OffsetSet(int(value))
    return OffsetSet(int(value["frontier"]), [(int(start), int(end)) for start, end in value.get("holes", {}).items()])
