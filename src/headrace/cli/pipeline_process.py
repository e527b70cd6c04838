"""The process in which `headrace run` runs Spark: the output of Spark and its JVM goes to a log file.

    python -m headrace.cli.pipeline_process TASK

TASK is a JSON file with a `Task`. Spark starts while the command starts a broker and writes to it; the rest of the
settings is in the file `settings`, which the command creates when Kafka is ready. Both may contain passwords, and are
deleted after reading. The process reports its progress as JSON lines in the file `events`:

    {"stage": "…"}                                    the current step
    {"message": "…"}                                  a message of the pipeline
    {"warning": "…"}                                  a warning for the user
    {"counts": [{"name", "before", "rows"}, …]}       the tables before the flows run
    {"tables": [{"name", "before", "rows", "seconds"}, …], "spark_seconds": 8.1, "seconds": 12.3,
     "shown": {"columns": […], "rows": [[…], …]} | null, "chart": likewise, "topic": "…" | null, "location": "…" | null}
    {"failed": "…"}                                   the error in one line; the log has the details
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import HeadraceError
from .pipeline_catalog import PipelineTable, named_tables, quoted, restore, save
from .pipeline_progress import read_progress
from .pipeline_rows import count_rows, queries_with_unread_files
from .spark_errors import one_line
from .spark_server import CATALOG_SETTING, IN_MEMORY, PROGRESS, TABLES, SparkServer, is_remote

SHOW, SHOW_TOPIC, CHART = "headrace.show", "headrace.show.topic", "headrace.chart"
CATALOG = "catalog.json"
_MOST_ROWS, _MOST_POINTS = 20, 20_000
_SCRATCH = "headrace_definitions"
_SETTINGS_WITHIN = 1800.0  # a broker may have to be downloaded; the guard ends this process if the command ends
_LOOK_EVERY = 0.05
_MOST_REFRESHES = 6  # of tables that read tables


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    configuration: dict[str, str]
    master: str
    spec: str
    state: str
    events: str
    settings: str
    scratch: str
    """A directory for temporary files, which the command deletes."""


class _EventLog:
    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  # open until the process ends

    def write(self, **event: Any) -> None:
        self._file.write(json.dumps(event, default=str) + "\n")


def main(path: str) -> int:
    task = Task(**json.loads(Path(path).read_text()))
    os.unlink(path)
    os.environ["TMPDIR"] = tempfile.tempdir = task.scratch
    event_log = _EventLog(task.events)
    try:
        _run(task, event_log)
    except Exception as error:  # noqa: BLE001  # report any error in one line
        traceback.print_exc()
        event_log.write(failed=one_line(error))
        return 1
    return 0


def _run(task: Task, event_log: _EventLog) -> None:
    begun = time.monotonic()
    event_log.write(stage="starting Spark")
    server = SparkServer(task.master, Path(task.state), Path(task.scratch))
    server.launch({**_configuration_in(Path(task.spec)), **task.configuration})

    from pyspark.pipelines import cli  # takes as long as the JVM that starts meanwhile

    spec = cli.load_pipeline_spec(Path(task.spec))
    configuration = {**spec.configuration, **task.configuration}
    spark = server.connect()
    pipeline = _Pipeline(spark, task, spec, event_log)
    pipeline.open_catalog()
    spark_seconds = time.monotonic() - begun
    configuration |= _await_settings(Path(task.settings))
    later = _configure(spark, task, configuration, event_log)
    before = {table.short_name: rows for table, rows in pipeline.count_tables()}
    event_log.write(counts=[{"name": name, "before": rows, "rows": rows} for name, rows in before.items()])
    started = time.monotonic()
    event_log.write(stage="running the flows")
    pipeline.run_flows(later)
    pipeline.refresh_early_readers(later)
    seconds = time.monotonic() - started
    counted = pipeline.count_tables()
    took = _batch_seconds(Path(task.state))
    query = later.get(SHOW)
    main = main_table([table.short_name for table, _ in counted], query, Path(task.state))
    event_log.write(
        tables=[
            {"name": name, "before": before.get(name, 0), "rows": rows, "seconds": took.get(name)}
            for name, rows in ((table.short_name, rows) for table, rows in counted)
        ],
        spark_seconds=spark_seconds,
        seconds=seconds,
        shown=_shown(spark, query, _MOST_ROWS),
        chart=_shown(spark, later.get(CHART), _MOST_POINTS),
        topic=later.get(SHOW_TOPIC),
        location=next((table.location for table, _ in counted if table.short_name == main), None),
    )


def _configuration_in(spec: Path) -> dict[str, str]:
    """The settings in the file of the project. Spark checks it later, and reports what is wrong with it."""
    import yaml

    try:
        found = yaml.safe_load(spec.read_text())["configuration"]
        return {str(name): str(value) for name, value in found.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return {}


def _await_settings(path: Path) -> dict[str, str]:
    deadline = time.monotonic() + _SETTINGS_WITHIN
    while not path.exists():
        if time.monotonic() > deadline:
            raise HeadraceError(f"Kafka was not ready within {_SETTINGS_WITHIN:g} s")
        time.sleep(_LOOK_EVERY)
    found: dict[str, str] = json.loads(path.read_text())
    path.unlink()
    return found


def _batch_seconds(state: Path) -> dict[str, float]:
    """The duration of all micro-batches of this run, by table."""
    found: dict[str, float] = {}
    for batch in read_progress(state / PROGRESS):
        found[batch.table] = found.get(batch.table, 0.0) + batch.seconds
    return found


class _Pipeline:
    """The graph of a pipeline, in a session of Spark."""

    def __init__(self, spark: Any, task: Task, spec: Any, event_log: _EventLog) -> None:
        self._spark = spark
        self._task = task
        self._spec = spec
        self._events = event_log
        self._catalog = Path(task.state) / CATALOG
        self._database = spec.database or "default"
        self._known: list[PipelineTable] = []  # in a catalog of our own: asking it takes long
        self._has_own_catalog = not is_remote(task.master) and spark.conf.get(CATALOG_SETTING, "") == IN_MEMORY

    def open_catalog(self) -> None:
        """Create the saved tables, and the database of the pipeline in a catalog of our own."""
        if self._has_own_catalog:
            self._known = restore(self._spark, self._catalog, Path(self._task.state) / TABLES)
        if self._spec.catalog:
            self._spark.catalog.setCurrentCatalog(self._spec.catalog)
        if self._spec.database and not is_remote(self._task.master):
            self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(self._spec.database)}")
        self._spark.catalog.setCurrentDatabase(self._database)

    def run_flows(self, configuration: Mapping[str, str], refresh: Sequence[str] = ()) -> None:
        """Run all flows of the pipeline once, or those of the tables in `refresh`."""
        from pyspark.pipelines import cli
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

        graph = create_dataflow_graph(
            self._spark,
            default_catalog=self._spec.catalog,
            default_database=self._spec.database or self._database,
            sql_conf=configuration,
        )
        registry = SparkConnectGraphElementRegistry(self._spark, graph)
        with self._names_unresolved():
            cli.register_definitions(Path(self._task.spec), registry, self._spec, self._spark, graph)
        events = start_run(
            self._spark,
            graph,
            full_refresh=[],
            full_refresh_all=False,
            refresh=list(refresh),
            dry=False,
            storage=(Path(self._task.state) / "checkpoints").absolute().as_uri(),
        )
        is_saved = False
        for event in events:
            if not (found := event.get("pipeline_event_result")):
                continue
            print(found.event.message, flush=True)
            if not is_saved and " is STARTING" in found.event.message:  # all tables exist, without their new rows
                is_saved = True
                self._save()
            self._events.write(message=found.event.message)
        if not is_saved:
            self._save()

    @contextlib.contextmanager
    def _names_unresolved(self) -> Iterator[None]:
        """While definitions are registered, the current database is an empty one.

        Spark resolves a definition such as `spark.readStream.table("raw").withColumn(…)` at once. If it finds the table
        of an earlier run, it takes it for one outside of the pipeline, and reads it before its own flow has run.
        """
        if not self._has_own_catalog:
            yield
            return
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {_SCRATCH}")
        self._spark.catalog.setCurrentDatabase(_SCRATCH)
        try:
            yield
        finally:
            self._spark.catalog.setCurrentDatabase(self._database)
            self._spark.sql(f"DROP DATABASE IF EXISTS {_SCRATCH}")

    def refresh_early_readers(self, configuration: Mapping[str, str]) -> None:
        """Run the flows again that read a table before all its rows of this run were there.

        They name a table in a way that Spark cannot follow, such as the path of its files.
        """
        checkpoints = Path(self._task.state) / "checkpoints"
        for _ in range(_MOST_REFRESHES):
            locations = {table.short_name: Path(table.location) for table in self._tables() if table.location}
            unread = queries_with_unread_files(checkpoints, locations)
            if not unread:
                return
            names = {table for query in unread for table in locations if table in Path(query).parts}
            self._events.write(stage=f"refreshing {', '.join(sorted(names)) or 'all tables'}")
            self.run_flows(configuration, sorted(names))  # a sink cannot be refreshed alone
        self._events.write(warning="some tables have unread rows: run the pipeline again")

    def count_tables(self) -> list[tuple[PipelineTable, int]]:
        return [(table, self._count(table)) for table in self._tables()]

    def _tables(self) -> list[PipelineTable]:
        if self._has_own_catalog:
            return [table for table in self._known if table.database == self._database]
        return named_tables(self._spark, self._database)

    def _count(self, table: PipelineTable) -> int:
        if table.provider == "parquet" and table.location is not None:
            return count_rows(Path(table.location))
        return int(self._spark.table(table.name).count())

    def _save(self) -> None:
        if self._has_own_catalog:
            self._known = save(self._spark, self._catalog, ignored=_SCRATCH)


def _configure(spark: Any, task: Task, configuration: Mapping[str, str], event_log: _EventLog) -> dict[str, str]:
    """Set and return the settings for the pipeline. The others apply to the start of Spark and cannot be changed
    later."""
    later = {
        name: value
        for name, value in configuration.items()
        if not name.startswith("spark.") or spark.conf.isModifiable(name)
    }
    for name, value in later.items():
        spark.conf.set(name, value)
    if is_remote(task.master) and (late := sorted(configuration.keys() - later.keys())):
        event_log.write(
            warning=f"these settings have no effect, because the server is already running: {', '.join(late)}"
        )
    return later


def main_table(names: list[str], query: str | None, state: Path) -> str | None:
    """The table in the query that is shown; otherwise the last view; otherwise the last table. A table without a
    checkpoint is a view."""
    named = [name for name in names if re.search(rf"\b{re.escape(name)}\b", query or "")]
    streaming = {path.name for path in (state / "checkpoints").glob("_checkpoints/*/*/*")}
    views = [name for name in names if name not in streaming]
    return next(iter([*named, *reversed(views), *reversed(names)]), None)


def _shown(spark: Any, query: str | None, most: int) -> dict[str, Any] | None:
    if not query:
        return None
    found = spark.sql(query)
    return {"columns": found.columns, "rows": [list(row) for row in found.limit(most).collect()]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
