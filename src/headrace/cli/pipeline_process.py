"""The process in which `headrace run` runs Spark: the output of Spark and its JVM goes to a log file.

    python -m headrace.cli.pipeline_process TASK

TASK is a JSON file with a `Task`. It may contain passwords, and is deleted after reading. The process reports its
progress as JSON lines in the file `events`:

    {"stage": "…"}                                    the current step
    {"message": "…"}                                  a message of the pipeline
    {"warning": "…"}                                  a warning for the user
    {"counts": [{"name", "before", "rows"}, …]}       the tables before the first pass, and after each
    {"tables": [{"name", "before", "rows"}, …], "seconds": 12.3, "shown": {"columns": […], "rows": [[…], …]} | null,
     "location": "…" | null}
    {"failed": "…"}                                   the error in one line; the log has the details

The tables are in Spark's own catalog. Its metastore is stored next to them, so that the next run finds them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import sys
import time
import traceback
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..local.ports import free_ports
from .spark_errors import one_line

SHOW = "headrace.show"
_MAX_PASSES = 6  # for streaming tables that read other streaming tables


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    spec: str
    state: str
    events: str
    master: str
    configuration: dict[str, str]


class _EventLog:
    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  # open until the process ends

    def write(self, **event: Any) -> None:
        self._file.write(json.dumps(event, default=str) + "\n")


def main(path: str) -> int:
    task = Task(**json.loads(Path(path).read_text()))
    os.unlink(path)
    event_log = _EventLog(task.events)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _run(task, event_log)
    except Exception as error:  # noqa: BLE001  # report any error in one line
        traceback.print_exc()
        event_log.write(failed=one_line(error))
        return 1
    return 0


def _run(task: Task, event_log: _EventLog) -> None:
    from pyspark.pipelines import cli

    spec = cli.load_pipeline_spec(Path(task.spec))
    event_log.write(stage="starting Spark")
    spark, configuration = _session(task, {**spec.configuration, **task.configuration}, event_log)
    try:
        _use_namespace(spark, spec.catalog, spec.database, is_own=not _is_remote(task))
        before = rows = dict(_rows(spark))
        event_log.write(counts=_counts(before, rows))
        started = time.monotonic()
        for number in range(_MAX_PASSES):
            again = "running the flows again, for tables whose sources had no new rows yet"
            event_log.write(stage=again if number else "running the flows")
            earlier = rows
            _run_flows(spark, task, spec, configuration, event_log)
            rows = dict(_rows(spark))
            event_log.write(counts=_counts(before, rows))
            # In the first run, Spark waits for a streaming table before it reads it. In later runs it does not always
            # wait: a reader may finish before the table has its new rows.
            if not earlier or rows == earlier:
                break
        else:
            event_log.write(warning=f"there are still new rows after {_MAX_PASSES} passes: run the pipeline again")
        seconds = time.monotonic() - started
        query = configuration.get(SHOW)
        location = None if _is_remote(task) else _location(spark, main_table(list(rows), query, Path(task.state)))
        event_log.write(tables=_counts(before, rows), seconds=seconds, shown=_shown(spark, query), location=location)
    finally:
        spark.stop()


def _run_flows(spark: Any, task: Task, spec: Any, configuration: dict[str, str], event_log: _EventLog) -> None:
    """Run all flows of the pipeline once."""
    from pyspark.pipelines import cli
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    graph = create_dataflow_graph(
        spark, default_catalog=spec.catalog, default_database=spec.database, sql_conf=configuration
    )
    registry = SparkConnectGraphElementRegistry(spark, graph)
    cli.register_definitions(Path(task.spec), registry, spec, spark, graph)
    events = start_run(
        spark,
        graph,
        full_refresh=[],
        full_refresh_all=False,
        refresh=[],
        dry=False,
        storage=(Path(task.state) / "checkpoints").absolute().as_uri(),
    )
    for event in events:
        if found := event.get("pipeline_event_result"):
            print(found.event.message, flush=True)
            event_log.write(message=found.event.message)


def _is_remote(task: Task) -> bool:
    """Whether Spark is a running Connect server."""
    return task.master.startswith("sc://")


def _session(task: Task, configuration: Mapping[str, str], event_log: _EventLog) -> tuple[Any, dict[str, str]]:
    """Start a Spark Connect server, unless the master is one, and connect to it: pipelines need Spark Connect.

    Also returns the settings for the pipeline. The other settings apply to the start of Spark and cannot be changed
    later.
    """
    from pyspark.sql.connect.session import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    url = task.master
    if not _is_remote(task):
        # As SparkSession.builder does, but with another port: 15002 may be in use.
        (port,) = free_ports(1)
        # These settings are on the command line of the JVM, which all users can see: no credentials for Kafka.
        of_spark = {name: value for name, value in configuration.items() if name.startswith("spark.")}
        settings = {**_own_settings(Path(task.state), task.master, port), **of_spark}
        os.environ["SPARK_LOCAL_REMOTE"] = "1"
        SparkSession._start_connect_server(task.master, settings)
        url = f"sc://localhost:{port}"
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    spark = SparkSession.builder.remote(url).getOrCreate()
    later = {
        name: value
        for name, value in configuration.items()
        if not name.startswith("spark.") or spark.conf.isModifiable(name)
    }
    for name, value in later.items():
        spark.conf.set(name, value)
    if _is_remote(task) and (late := sorted(configuration.keys() - later.keys())):
        event_log.write(
            warning=f"these settings have no effect, because the server is already running: {', '.join(late)}"
        )
    return spark, later


def _use_namespace(spark: Any, catalog: str | None, database: str | None, is_own: bool) -> None:
    """Set the catalog and database of the pipeline for unqualified names. In a catalog of our own, the database must be
    created first."""
    if catalog:
        spark.catalog.setCurrentCatalog(catalog)
    if database:
        if is_own:
            spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
        spark.catalog.setCurrentDatabase(database)


def _own_settings(state: Path, master: str, port: int) -> dict[str, str]:
    home = state.absolute()
    found = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(home / "tables"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'catalog'};create=true",
        "spark.driver.extraJavaOptions": f'"-Dderby.stream.error.file={home / "derby.log"}"',  # a path may have spaces
        "spark.ui.enabled": "false",
        # Spark's default, Java's login configuration, keys, and certificates, whose value may contain a key.
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|keystore[.]key|key[.]pem|"
        "certificate[.]chain|certificate[.]pem",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    if master.startswith("local"):
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return found


def _rows(spark: Any) -> Iterator[tuple[str, int]]:
    for row in spark.sql("SHOW TABLES").collect():
        if not row.isTemporary:
            yield row.tableName, spark.table(row.tableName).count()


def _counts(before: Mapping[str, int], rows: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "before": before.get(name, 0), "rows": count} for name, count in rows.items()]


def main_table(names: list[str], query: str | None, state: Path) -> str | None:
    """The table in the query that is shown; otherwise the last view; otherwise the last table. A table without a
    checkpoint is a view."""
    named = [name for name in names if re.search(rf"\b{re.escape(name)}\b", query or "")]
    streaming = {path.name for path in (state / "checkpoints").glob("_checkpoints/*/*/*")}
    views = [name for name in names if name not in streaming]
    return next(iter([*named, *reversed(views), *reversed(names)]), None)


def _location(spark: Any, table: str | None) -> str | None:
    """The directory of the table, if it is on this machine."""
    if table is None:
        return None
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED `{table}`").collect()
    place = next((row.data_type for row in rows if row.col_name == "Location"), "")
    return urllib.request.url2pathname(place.removeprefix("file:")) if place.startswith("file:") else None


def _shown(spark: Any, query: str | None) -> dict[str, Any] | None:
    if not query:
        return None
    found = spark.sql(query)
    return {"columns": found.columns, "rows": [list(row) for row in found.limit(20).collect()]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
