"""The program for PySpark 4.2: one session, the sinks in turns. `python -m benchmarks.spark_write_session <job>`.

The job is JSON: `{"servers", "jars", "repeat", "writes": [{"name", "payload", "records", "codec"}]}`. Results are
printed as JSON lines `{"what", "sink", …}`, one per run. A run is timed from `save()` to its end, including planning.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from .datasets import PARTITIONS
from .readers import Job
from .spark_session import Session
from .spark_writing import SINKS
from .write_topics import count_and_delete, create

_TASKS = 4
_WARM_UPS = 1
_LINGER_MS = "5"


def missing_sink(sink: str) -> str:
    """The reason why the sink cannot be measured; empty if it can."""
    from headrace.spark.source import HeadraceSource

    if sink.startswith("headrace") and HeadraceSource.writer is DataSource.writer:
        return 'skipped: this headrace cannot write: format("headrace") has no writer'
    return ""


def main(job: dict[str, Any]) -> None:
    session = Session({**job, "batch": [], "streams": []})
    try:
        for what in job["writes"]:
            _in_turns(session, what)
    finally:
        session.spark.stop()


def _in_turns(session: Session, what: dict[str, Any]) -> None:
    frame = _frame(session, what)
    for number in range(-_WARM_UPS, session.job["repeat"]):
        for sink in SINKS:
            if reason := missing_sink(sink):
                if number == 0:
                    _print(what, sink, failed=reason)
                continue
            try:
                found = _write(session, frame, sink, what)
            except Exception as error:  # noqa: BLE001  # the other sinks are measured nevertheless
                _print(what, sink, failed=f"failed: {_last_line(error)}")
                continue
            if number >= 0:
                _print(what, sink, **found)
    frame.unpersist()


def _frame(session: Session, what: dict[str, Any]) -> DataFrame:
    """The lines of the payload, repeated as needed. Only the lines are in memory, so the rows cost almost nothing."""
    lines = session.spark.read.text(what["payload"]).select(F.col("value").cast("binary"))
    cached = lines.repartition(_TASKS).cache()
    copies = -(-what["records"] // cached.count())
    frame = cached.crossJoin(F.broadcast(session.spark.range(copies))).select("value")
    what["records"] = copies * cached.count()
    return frame


def _write(session: Session, frame: DataFrame, sink: str, what: dict[str, Any]) -> dict[str, float]:
    topic = Job(session.job["servers"], f"spark-writing-{uuid.uuid4()}", PARTITIONS, what["records"])
    create(topic)
    before = session.cpu_seconds()
    began = time.perf_counter()
    frame.write.format(sink.partition(",")[0]).options(**_options(topic, sink, what["codec"])).mode("append").save()
    seconds = time.perf_counter() - began
    cpu = session.cpu_seconds() - before
    stored = count_and_delete(topic)["records"]
    # The offsets of a transaction include its markers.
    is_complete = stored >= topic.records if "exactlyOnce" in sink else stored == topic.records
    if sink != "noop" and not is_complete:
        raise ValueError(f"the topic has {stored:,} of {topic.records:,} records")
    found = {"rate": topic.records / seconds, "cpu": cpu / topic.records * 1e6}
    return found | ({"worker_peak_mb": session.largest_worker()} if sink.startswith("headrace") else {})


def _options(topic: Job, sink: str, codec: str) -> dict[str, str]:
    if sink == "noop":
        return {}
    found = {
        "kafka.bootstrap.servers": topic.servers,
        "topic": topic.topic,
        "kafka.acks": "all",
        "kafka.linger.ms": _LINGER_MS,
        "kafka.compression.type": codec,
    }
    if "exactlyOnce" in sink:
        found |= {"exactlyOnce": "true", "sinkId": f"benchmark-{uuid.uuid4()}"}
    return found


def _print(what: dict[str, Any], sink: str, **found: Any) -> None:
    print(json.dumps({"what": what["name"], "sink": sink, **found}), flush=True)


def _last_line(error: Exception) -> str:
    """The last line of the message without Java's stack, which has the error of a Python worker."""
    lines = [line.strip() for line in str(error).partition("JVM stacktrace")[0].splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
