"""What `headrace run` reads from the files of Spark: rows, unread files, progress, and when the records arrived."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from headrace.cli.pipeline_catalog import restore
from headrace.cli.pipeline_chart import arrivals, series_of
from headrace.cli.pipeline_launch import PipelineOutcome
from headrace.cli.pipeline_progress import QueryProgress, logging_properties, read_progress
from headrace.cli.pipeline_report import Arrival, arrival_of, report, summary
from headrace.cli.pipeline_rows import count_rows, queries_with_unread_files, table_files
from headrace.cli.run import state_id
from headrace.errors import HeadraceError
from headrace.monitor.batches import BatchView


def write_rows(table: Path, name: str, count: int) -> str:
    table.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({"x": list(range(count))}), table / name)
    return (table / name).as_uri()


def write_log(log: Path, name: str, *paths: str) -> None:
    log.mkdir(parents=True, exist_ok=True)
    (log / name).write_text("\n".join(["v1", *(json.dumps({"path": path}) for path in paths)]))


def test_a_table_without_a_log_has_the_rows_of_all_its_files(tmp_path: Path) -> None:
    write_rows(tmp_path / "t", "part-0.parquet", 3)
    write_rows(tmp_path / "t" / "day=1", "part-1.parquet", 4)
    write_rows(tmp_path / "t" / "_temporary", "part-2.parquet", 5)
    (tmp_path / "t" / "_SUCCESS").touch()
    assert count_rows(tmp_path / "t") == 7


def test_a_streaming_table_has_the_rows_that_its_log_names(tmp_path: Path) -> None:
    """A query that was killed leaves files behind, which are not part of the table."""
    table = tmp_path / "my table"
    log = table / "_spark_metadata"
    write_rows(table, "left-behind.parquet", 100)
    names = [write_rows(table, f"part-{number}.parquet", number + 1) for number in range(4)]
    write_log(log, "0", names[0])
    write_log(log, "1", names[1])
    assert count_rows(table) == 3
    write_log(log, "2.compact", *names[:3])
    write_log(log, "3", names[3])
    (log / ".3.crc").touch()
    assert count_rows(table) == 10


def test_a_query_that_has_not_read_all_files_of_its_table_is_found(tmp_path: Path) -> None:
    table, checkpoints = tmp_path / "tables" / "raw", tmp_path / "checkpoints"
    files = [write_rows(table, f"part-{number}.parquet", 1) for number in range(2)]
    for name, read in (("clean/clean/0", files), ("late/late/0", files[:1]), ("other/other/0", [])):
        for log in ("offsets", "commits"):
            (checkpoints / name / log).mkdir(parents=True)
        write_log(checkpoints / name / "sources" / "0", "0", *read)
    assert queries_with_unread_files(checkpoints, {"raw": table}) == {"late/late/0": {"raw"}}
    write_log(checkpoints / "late/late/0/sources/0", "1", files[1])
    assert queries_with_unread_files(checkpoints, {"raw": table}) == {}
    assert table_files(table) == sorted(str(table / f"part-{number}.parquet") for number in range(2))


def test_the_progress_of_queries_is_read_from_the_log(tmp_path: Path) -> None:
    file = tmp_path / "progress.log"
    assert read_progress(file) == []
    entries = [
        {"name": "spark_catalog.city.raw", "batchId": 0, "numInputRows": 5, "durationMs": {"triggerExecution": 1500}},
        {"name": "to_kafka", "batchId": 3, "numInputRows": 0, "durationMs": {}},
    ]
    text = "".join(f"Streaming query made progress: {json.dumps(each, indent=2)}\n" for each in entries)
    file.write_text(text + 'Streaming query made progress: {\n  "name" : "ha')
    assert read_progress(file) == [QueryProgress("raw", 0, 5, 1.5), QueryProgress("to_kafka", 3, 0, 0.0)]
    assert f"fileName = {file}\n" in logging_properties(file)


def batch(number: int, records: int | None, finished: float | None, left: int = 0, query: str = "raw/raw/0") -> Any:
    return BatchView(query, number, records, True, 100.0 + number, finished, left)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], None),
        ([batch(0, None, 101.0)], None),  # a source other than Kafka
        ([batch(0, 5, None)], None),  # still running
        ([batch(0, 5, 102.0), batch(1, 4, 104.0)], Arrival("raw", 9, 4.0, 0, 4.0)),  # in order: the newest comes last
        ([batch(0, 5, 102.0, left=4), batch(1, 4, 104.0)], Arrival("raw", 9, 2.0, 4, 4.0)),  # the newest came first
        ([batch(0, None, 101.0, query="a/a/0"), batch(0, 5, 103.0)], Arrival("raw", 5, 3.0, 0, 3.0)),
    ],
)
def test_when_the_records_of_a_run_arrived(batches: list[BatchView], expected: Arrival | None) -> None:
    assert arrival_of(batches) == expected


def test_the_picture_shows_the_newest_records_apart_from_all() -> None:
    assert arrivals([]) == {}
    in_order = arrivals([batch(0, 5, 102.0), batch(1, 15, 104.0)])
    assert in_order == {"records": ([0.0, 2.0, 4.0], [0.0, 25.0, 100.0])}
    newest_first = arrivals([batch(0, 5, 102.0, left=15), batch(1, 15, 104.0)])
    assert newest_first == {
        "newest record": ([0.0, 2.0, 4.0], [0.0, 100.0, 100.0]),
        "all records": ([0.0, 2.0, 4.0], [0.0, 25.0, 100.0]),
    }
    assert series_of([["b", 2, "1"], ["a", 1, 0.5], ["b", 1, 3], ["c", None, 1]]) == {
        "a": ([1], [0.5]),
        "b": ([1, 2], [3.0, 1.0]),
    }


def outcome(**changes: Any) -> PipelineOutcome:
    rows = [{"name": "totals", "rows": 4, "before": 1, "seconds": None}]
    known: dict[str, Any] = {"shown": None, "chart": None, "topic": None, "location": None}
    return PipelineOutcome(**{"tables": rows, "spark_seconds": 3.0, "seconds": 2.0, **known, **changes})


def test_the_summary_separates_the_start_of_spark_from_the_flows() -> None:
    in_all = "10.0 s in all: Spark started in 3.0 s, the flows took 2.0 s"
    assert summary(None, outcome(), 10.0) == [in_all]
    assert summary(Arrival("raw", 600, 1.0, 400, 2.0), outcome(), 10.0) == [
        "600 new records from Kafka in 2.0 s (300 records/s)",
        "newest record in raw after 1.0 s, the backlog of 400 older records after 2.0 s",
        in_all,
    ]


def test_a_run_whose_checkpoints_and_tables_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    report(tmp_path, outcome(), 0.0, 10.0)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "totals     4    3        -       -",
        "",
        "10.0 s in all: Spark started in 3.0 s, the flows took 2.0 s",
        "log: run.log",
    ]


class Statements:
    """A session of Spark that only notes statements, and whether the directory of a table was moved aside."""

    def __init__(self, watched: Path) -> None:
        self.seen: list[tuple[str, bool]] = []
        self._watched = watched

    def sql(self, text: str) -> None:
        self.seen.append((text, self._watched.exists()))
        if text.startswith("CREATE TABLE"):
            self._watched.mkdir()  # as Spark does
        if "fails" in text:
            raise RuntimeError(text)


def saved(path: Path, *tables: dict[str, Any]) -> None:
    path.write_text(json.dumps({"databases": ["default", "my city"], "tables": tables}))


@pytest.mark.parametrize("statement", ["CREATE TABLE t", "CREATE TABLE fails"])
def test_a_restored_table_keeps_its_rows(tmp_path: Path, statement: str) -> None:
    """Spark creates a table only where there is no directory."""
    table, catalog = tmp_path / "tables" / "t", tmp_path / "catalog.json"
    write_rows(table, "part-0.parquet", 3)
    saved(catalog, {"name": "default.t", "location": str(table), "provider": "parquet", "sql": statement})
    spark = Statements(table)
    if "fails" in statement:
        with pytest.raises(RuntimeError):
            restore(spark, catalog, tmp_path / "tables")
    else:
        restore(spark, catalog, tmp_path / "tables")
    assert spark.seen == [("CREATE DATABASE IF NOT EXISTS `my city`", True), (statement, False)]
    assert count_rows(table) == 3
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["t"]


def test_a_restore_that_was_killed_loses_no_rows(tmp_path: Path) -> None:
    table, catalog = tmp_path / "tables" / "t", tmp_path / "catalog.json"
    write_rows(tmp_path / "tables" / ".t.kept", "part-0.parquet", 3)
    table.mkdir()
    saved(catalog, {"name": "default.t", "location": str(table), "provider": "parquet", "sql": "CREATE TABLE t"})
    restore(Statements(table), catalog, tmp_path / "tables")
    assert count_rows(table) == 3


def test_directories_of_tables_that_were_not_saved(tmp_path: Path) -> None:
    """Without rows, they are of a run that was killed early; with rows, somebody must decide."""
    tables = tmp_path / "tables"
    (tables / "empty" / "_spark_metadata").mkdir(parents=True)
    (tables / "city.db" / "empty").mkdir(parents=True)
    restore(Statements(tables), tmp_path / "catalog.json", tables)
    assert list(tables.rglob("empty")) == []
    write_rows(tables / "city.db" / "full", "part-0.parquet", 1)
    with pytest.raises(HeadraceError, match="full has rows of a table that is not in the catalog"):
        restore(Statements(tables), tmp_path / "catalog.json", tables)
    assert count_rows(tables / "city.db" / "full") == 1


def test_a_state_has_an_id_until_it_is_deleted(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ids = set()
    for _ in range(2):
        state.mkdir()
        assert state_id(state) == state_id(state)
        ids.add(state_id(state))
        shutil.rmtree(state)
    assert len(ids) == 2
