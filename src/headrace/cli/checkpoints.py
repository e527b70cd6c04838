"""The checkpoint of a streaming query, read as if it were a group.

    <checkpoint>/offsets/17    up to where batch 17 reads: a line with the version, one with settings, one a source
    <checkpoint>/commits/17    there when batch 17 is done

What is done are the offsets of the last batch with a commit. A source whose line is not Kafka's offsets is left out.
A directory that holds several checkpoints (a pipeline's storage) stands for all of them.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.types import TopicPartition

_DEEPEST = 6  # how far below the given directory checkpoints are looked for


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """`batch` is None if none is done yet."""

    name: str
    batch: int | None
    offsets: dict[TopicPartition, int]


def read_checkpoints(directory: Path) -> list[Checkpoint]:
    """Raises HeadraceError if there is none, or one cannot be understood."""
    found = [_read(path, directory) for path in sorted(_checkpoints(directory, _DEEPEST))]
    if not found:
        raise HeadraceError(
            f"{directory} is no checkpoint of a streaming query: there is no offsets/ with a commits/ beside it"
        )
    return found


def _checkpoints(directory: Path, depth: int) -> list[Path]:
    if (directory / "offsets").is_dir() and (directory / "commits").is_dir():
        return [directory]
    if depth == 0:
        return []
    children = sorted(child for child in directory.iterdir() if child.is_dir() and not child.is_symlink())
    return [path for child in children for path in _checkpoints(child, depth - 1)]


def _read(path: Path, root: Path) -> Checkpoint:
    name = str(path.relative_to(root)) if path != root else path.name
    done = _batches(path / "commits") & _batches(path / "offsets")
    if not done:
        return Checkpoint(name, None, {})
    batch = max(done)
    lines = (path / "offsets" / str(batch)).read_text().splitlines()
    if not lines or not lines[0].startswith("v"):
        raise HeadraceError(f"{path}/offsets/{batch} is no offset log of Spark's")
    offsets: dict[TopicPartition, int] = {}
    for line in lines[2:]:
        for tp, offset in _kafka_offsets(line).items():
            offsets[tp] = min(offset, offsets.get(tp, offset))  # read by two sources: the slower one counts
    return Checkpoint(name, batch, offsets)


def _batches(directory: Path) -> set[int]:
    return {int(path.name) for path in directory.iterdir() if path.name.isdigit()}


def _kafka_offsets(line: str) -> dict[TopicPartition, int]:
    try:
        found = json.loads(line)
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, numbers in found.items()
            for number, offset in numbers.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
