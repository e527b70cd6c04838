"""The progress of the queries of a pipeline, as Spark logs it.

A pipeline starts its queries in sessions of its own, where no listener can be added. Their progress is in the log of
Spark: `logging_properties` sends it to a file, and `read_progress` reads it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

_BEGINNING = "Streaming query made progress: "
_PROPERTIES = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.progress.type = File
appender.progress.name = progress
appender.progress.fileName = {file}
appender.progress.append = false
appender.progress.layout.type = PatternLayout
appender.progress.layout.pattern = %m%n
logger.progress.name = org.apache.spark.sql.execution.streaming.runtime.ProgressReporter
logger.progress.level = info
logger.progress.additivity = false
logger.progress.appenderRef.progress.ref = progress
"""


@dataclasses.dataclass(frozen=True, slots=True)
class QueryProgress:
    """A micro-batch of the query. Its `table` is the last part of the name of its flow."""

    table: str
    batch: int
    rows: int
    seconds: float


def logging_properties(file: Path) -> str:
    """Settings of Log4j: warnings go to the standard error, the progress of queries to the file."""
    return _PROPERTIES.format(file=file)


def read_progress(file: Path) -> list[QueryProgress]:
    """The batches in the file, in its order. The last one is left out while Spark is writing it."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return []
    found = []
    for part in text.split(_BEGINNING)[1:]:
        try:
            progress, _ = json.JSONDecoder().raw_decode(part)
        except ValueError:
            continue
        found.append(
            QueryProgress(
                progress["name"].rpartition(".")[2],
                progress["batchId"],
                progress["numInputRows"],
                progress["durationMs"].get("triggerExecution", 0) / 1000,
            )
        )
    return found
