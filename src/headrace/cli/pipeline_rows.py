"""Counts rows and finds unread files in the tables of a pipeline, without a job of Spark.

TABLE/part-….parquet               the footer of a file has the number of its rows
TABLE/_spark_metadata/17           the files that batch 17 of a streaming table has added; 19.compact: all files
CHECKPOINT/sources/0/17            the files that batch 17 of a query has read from a table; likewise
"""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from ..monitor.checkpoints import find_checkpoints

_SINK_LOG = "_spark_metadata"


def count_rows(location: Path) -> int:
    """The rows of a table of Parquet files."""
    from pyarrow import parquet

    return sum(parquet.read_metadata(path).num_rows for path in table_files(location))


def table_files(location: Path) -> list[str]:
    """The files of a table: with a log only those that it names, since a killed query leaves others behind."""
    log = location / _SINK_LOG
    if log.is_dir():
        return sorted(_logged_files(log))
    found = (path for path in location.rglob("*") if path.is_file())
    hidden = (".", "_")
    return sorted(
        str(path) for path in found if not any(it.startswith(hidden) for it in path.relative_to(location).parts)
    )


def queries_with_unread_files(checkpoints: Path, locations: dict[str, Path]) -> dict[str, set[str]]:
    """The checkpoints of queries that have not read all files of a table, and the names of these tables.

    A query reads a table if it has read one of its files.
    """
    places = {os.path.realpath(location): name for name, location in locations.items()}
    found: dict[str, set[str]] = {}
    for checkpoint in find_checkpoints(checkpoints):
        for source in sorted((checkpoint / "sources").glob("*/")):
            read = {os.path.realpath(path) for path in _logged_files(source)}
            for name in {places[place] for path in read if (place := os.path.dirname(path)) in places}:
                files = {os.path.realpath(path) for path in table_files(locations[name])}
                if files - read:
                    found.setdefault(str(checkpoint.relative_to(checkpoints)), set()).add(name)
    return found


def _logged_files(log: Path) -> Iterator[str]:
    """The paths in a log of Spark: from its last compacted file on."""
    numbered = {path: number for path in log.iterdir() if (number := _number(path)) is not None}
    last = max((number for path, number in numbered.items() if path.suffix == ".compact"), default=-1)
    for path, number in sorted(numbered.items(), key=lambda it: it[1]):
        if number > last or (path.suffix == ".compact" and number == last):
            for line in path.read_text().splitlines()[1:]:  # the first line is the version
                yield urllib.request.url2pathname(urllib.parse.urlsplit(json.loads(line)["path"]).path)


def _number(path: Path) -> int | None:
    stem = path.name.removesuffix(".compact")
    return int(stem) if stem.isdigit() else None
