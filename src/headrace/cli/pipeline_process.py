"""The part of `headrace run` that talks to Spark, in a process of its own: what Spark and its JVM say goes to a file.

    python -m headrace.cli.pipeline_process TASK

TASK is a file with what to do, as JSON; it may have passwords in it, and is removed when it is read. The
process tells what happens as JSON lines in the file `events`:

    {"stage": "…"}                                    what it is doing
    {"message": "…"}                                  what the pipeline says
    {"warning": "…"}                                  what the user should know at the end
    {"tables": [{"name", "before", "rows"}, …], "seconds": 12.3, "shown": {"columns": […], "rows": [[…], …]} | null,
     "location": "…" | null}
    {"failed": "…"}                                   in one line; the whole story is in the log

The tables are in Spark's own catalog, with its metastore beside them, so that the next run finds them.
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
_MOST_PASSES = 6  # of a pipeline whose streaming tables read each other


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    spec: str
    state: str
    events: str
    master: str
    configuration: dict[str, str]


class _Diary:
    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  # for as long as this process lives

    def tell(self, **event: Any) -> None:
        self._file.write(json.dumps(event, default=str) + "\n")


def main(path: str) -> int:
    task = Task(**json.loads(Path(path).read_text()))
    os.unlink(path)
    diary = _Diary(task.events)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _run(task, diary)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told in one line
        traceback.print_exc()
        diary.tell(failed=one_line(error))
        return 1
    return 0


def _run(task: Task, diary: _Diary) -> None:
    from pyspark.pipelines import cli

    spec = cli.load_pipeline_spec(Path(task.spec))
    diary.tell(stage="starting Spark")
    spark, configuration = _session(task, {**spec.configuration, **task.configuration}, diary)
    try:
        _use(spark, spec.catalog, spec.database, is_own=not _is_elsewhere(task))
        before = rows = dict(_rows(spark))
        started = time.monotonic()
        for number in range(_MOST_PASSES):
            again = "running them again, for tables whose sources had no new rows yet"
            diary.tell(stage=again if number else "running its flows")
            earlier = rows
            _pass(spark, task, spec, configuration, diary)
            rows = dict(_rows(spark))
            # In its first run Spark waits for a streaming table before it reads it. Later it was seen not to: readers
            # were done before the table had its new rows.
            if not earlier or rows == earlier:
                break
        else:
            diary.tell(warning=f"there are still new rows after {_MOST_PASSES} passes: run it again for the rest")
        seconds = time.monotonic() - started
        tables = [{"name": name, "before": before.get(name, 0), "rows": count} for name, count in rows.items()]
        query = configuration.get(SHOW)
        location = None if _is_elsewhere(task) else _location(spark, main_table(list(rows), query, Path(task.state)))
        diary.tell(tables=tables, seconds=seconds, shown=_shown(spark, query), location=location)
    finally:
        spark.stop()


def _pass(spark: Any, task: Task, spec: Any, configuration: dict[str, str], diary: _Diary) -> None:
    """All flows of the pipeline, once."""
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
            diary.tell(message=found.event.message)


def _is_elsewhere(task: Task) -> bool:
    """Whether Spark is a Connect server that was there before."""
    return task.master.startswith("sc://")


def _session(task: Task, configuration: Mapping[str, str], diary: _Diary) -> tuple[Any, dict[str, str]]:
    """Pipelines run through Spark Connect: with a server of this process's own, unless the master is one.

    Also, what of the settings is for the pipeline: the others are for the start of Spark, and cannot be changed later.
    """
    from pyspark.sql.connect.session import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    url = task.master
    if not _is_elsewhere(task):
        # As SparkSession.builder does it, but for the port: 15002 may be another one's.
        (port,) = free_ports(1)
        # Whatever is given here stands on the JVM's command line for everybody to see: no logins into Kafka.
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
    if _is_elsewhere(task) and (late := sorted(configuration.keys() - later.keys())):
        diary.tell(warning=f"of no effect, since the server runs already: {', '.join(late)}")
    return spark, later


def _use(spark: Any, catalog: str | None, database: str | None, is_own: bool) -> None:
    """Unqualified names mean what they mean in the pipeline. In a catalog of our own nobody else could make the
    database."""
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
        # Spark's own, Java's logins, keys, and certificates that may have one beside them.
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


def main_table(names: list[str], query: str | None, state: Path) -> str | None:
    """The one that is shown; else a view rather than a streaming table, which has a checkpoint."""
    named = [name for name in names if re.search(rf"\b{re.escape(name)}\b", query or "")]
    streaming = {path.name for path in (state / "checkpoints").glob("_checkpoints/*/*/*")}
    views = [name for name in names if name not in streaming]
    return next(iter([*named, *reversed(views), *reversed(names)]), None)


def _location(spark: Any, table: str | None) -> str | None:
    """Its directory, if it is on this machine."""
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
