"""The tables of a pipeline, from run to run, without a metastore: their definitions are in a file.

    state/catalog.json    {"databases": […], "tables": [{"name", "location", "provider", "sql"}, …]}

Spark's catalog in memory opens immediately, its own metastore (Derby) takes seconds. `save` is called before the flows
write their first rows, so a table that is missing in the file has none.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import HeadraceError

_ASIDE = ".{}.kept"
_BUILT_IN = "default"


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineTable:
    """`location` is a directory of this machine, or None."""

    name: str
    location: str | None
    provider: str
    sql: str

    @property
    def database(self) -> str:
        return self.name.partition(".")[0]

    @property
    def short_name(self) -> str:
        return self.name.partition(".")[2]


def tables(spark: Any, database: str) -> list[PipelineTable]:
    """The tables of the database, in the order of their names. Temporary views are none."""
    return [_described(spark, table) for table in named_tables(spark, database)]


def named_tables(spark: Any, database: str) -> list[PipelineTable]:
    """Only their names: other catalogs do not report the rest."""
    rows = spark.sql(f"SHOW TABLES IN {quoted(database)}").collect()
    return [PipelineTable(f"{database}.{row.tableName}", None, "", "") for row in rows if not row.isTemporary]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _described(spark: Any, table: PipelineTable) -> PipelineTable:
    database, _, short_name = table.name.partition(".")
    name = f"{quoted(database)}.{quoted(short_name)}"
    (found,) = spark.sql(f"DESCRIBE TABLE EXTENDED {name} AS JSON").collect()
    described = json.loads(found[0])
    (statement,) = spark.sql(f"SHOW CREATE TABLE {name}").collect()
    location = _local(described.get("location", ""))
    return PipelineTable(table.name, location, described.get("provider", "").lower(), statement[0])


def _local(location: str) -> str | None:
    found = urllib.parse.urlsplit(location)
    return urllib.request.url2pathname(found.path) if found.scheme == "file" else None


def save(spark: Any, path: Path, ignored: str) -> list[PipelineTable]:
    """Write and return the definitions of all tables, except for those of the database `ignored`. Takes two requests
    for each table."""
    databases = [row[0] for row in spark.sql("SHOW DATABASES").collect() if row[0] != ignored]
    found = [table for name in databases for table in tables(spark, name)]
    draft = path.with_suffix(".draft")
    contents = {"databases": databases, "tables": [dataclasses.asdict(table) for table in found]}
    draft.write_text(json.dumps(contents, indent=1))
    draft.replace(path)
    return found


def restore(spark: Any, path: Path, warehouse: Path) -> list[PipelineTable]:
    """Create the saved tables again, and return them. Raises HeadraceError if there are rows of a table that is not
    saved."""
    saved = json.loads(path.read_text()) if path.exists() else {"databases": [], "tables": []}
    known = [PipelineTable(**each) for each in saved["tables"]]
    _move_back(known)
    _remove_unknown(known, warehouse)
    for name in saved["databases"]:
        if name != _BUILT_IN:
            spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(name)}")
    for table in sorted(known, key=lambda it: it.location is None):  # views, which have no location, read tables
        _create(spark, table)
    return known


def _create(spark: Any, table: PipelineTable) -> None:
    """Spark creates a managed table only where there is no directory, so that of the table is moved aside."""
    place = Path(table.location) if table.location else None
    if place is None or not place.exists():
        spark.sql(table.sql)
        return
    aside = place.with_name(_ASIDE.format(place.name))
    place.rename(aside)
    try:
        spark.sql(table.sql)
    finally:
        _put_back(place, aside)


def _move_back(known: list[PipelineTable]) -> None:
    """After a process that was killed while it restored."""
    for table in known:
        if table.location is not None:
            place = Path(table.location)
            _put_back(place, place.with_name(_ASIDE.format(place.name)))


def _put_back(place: Path, aside: Path) -> None:
    if aside.exists():
        if place.exists():
            place.rmdir()  # Spark has created it, without rows
        aside.rename(place)


def _remove_unknown(known: list[PipelineTable], warehouse: Path) -> None:
    """Remove directories of tables that were never written to: the process was killed before it saved them."""
    locations = {os.path.realpath(table.location) for table in known if table.location is not None}
    for place in _table_directories(warehouse):
        if os.path.realpath(place) in locations:
            continue
        if any(path.is_file() and not path.name.startswith((".", "_")) for path in place.rglob("*")):
            raise HeadraceError(
                f"{place} has rows of a table that is not in the catalog of this pipeline: move it away, or choose "
                "another directory with --state"
            )
        shutil.rmtree(place)


def _table_directories(warehouse: Path) -> Iterator[Path]:
    for place in sorted(warehouse.glob("*/")):
        if place.suffix == ".db":
            yield from sorted(place.glob("*/"))
        else:
            yield place
