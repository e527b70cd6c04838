"""The program for PySpark 4.2: one session, both sources in turns. `python -m benchmarks.spark_session <job as JSON>`.

The job is `{"servers", "jars", "repeat", "batch": […], "streams": […], "latency": {…}}`. Results are printed as JSON
lines `{"what", "source", …}`, one per run. A run is timed from the action to its end, including planning.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from .process_stats import descendants, peak_kb, stat

SOURCES = ("kafka", "headrace")
SINKS: dict[str, Callable[[DataFrame], object]] = {
    "agg": lambda frame: frame.agg(F.count("*"), F.sum(F.length("value")), F.max("offset")).collect(),
    "noop": lambda frame: frame.write.format("noop").mode("overwrite").save(),
}
_DEADLINE = 900.0


class Session:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", job["jars"])
            .config("spark.driver.memory", "2g")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        self.spark.sparkContext.setLogLevel("ERROR")
        assert self.spark._jvm is not None
        self.jvm = int(self.spark._jvm.java.lang.ProcessHandle.current().pid())

    def run(self) -> None:
        for what in self.job["batch"]:
            self._in_turns(what, self._batch, warm_ups=1)
        for what in self.job["streams"]:
            self._in_turns(what, self._stream)
        if latency := self.job.get("latency"):
            self._in_turns(latency, self._latency)

    def _in_turns(self, what: dict[str, Any], measure: Callable[..., dict[str, Any]], warm_ups: int = 0) -> None:
        for number in range(-warm_ups, self.job["repeat"]):
            for source in SOURCES:
                before = self.cpu_seconds()
                found = measure(source, what)
                found["cpu"] = (self.cpu_seconds() - before) / what["records"] * 1e6
                if number >= 0:
                    found |= {"worker_peak_mb": self.largest_worker()} if source == "headrace" else {}
                    print(json.dumps({"what": what["name"], "source": source, **found}), flush=True)

    def _options(self, what: dict[str, Any]) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.job["servers"], "subscribe": what["topic"]} | what.get("options", {})

    def _batch(self, source: str, what: dict[str, Any]) -> dict[str, Any]:
        frame = self.spark.read.format(source).options(**self._options(what)).load()
        began = time.perf_counter()
        SINKS[what["sink"]](frame)
        seconds = time.perf_counter() - began
        return {"rate": what["records"] / seconds}

    def _stream(self, source: str, what: dict[str, Any]) -> dict[str, Any]:
        """Read the whole topic in five batches. The first is the warm-up and is not counted."""
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(what["records"] // 5)}
        frame = self.spark.readStream.format(source).options(**self._options(what), **options).load()
        with TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(_DEADLINE):
                raise TimeoutError(f"{source} was not done in {_DEADLINE:.0f} s")
            batches = [each for each in query.recentProgress if each["numInputRows"]]
        rows = sum(each["numInputRows"] for each in batches)
        if rows != what["records"]:
            raise ValueError(f"{source} read {rows:,} of {what['records']:,} records")
        counted = batches[1:]
        seconds = sum(each["durationMs"]["triggerExecution"] for each in counted) / 1000
        return {"rate": sum(each["numInputRows"] for each in counted) / seconds}

    def _latency(self, source: str, what: dict[str, Any]) -> dict[str, Any]:
        """The time from a record's timestamp, set by its producer, until its batch is in the driver."""
        found: list[float] = []

        def batch(frame: DataFrame, _number: int) -> None:
            rows = frame.select(F.unix_millis("timestamp")).collect()
            now = time.time() * 1000
            found.extend(now - row[0] for row in rows)

        frame = self.spark.readStream.format(source).options(**self._options(what), startingOffsets="latest").load()
        with TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint)
            query = writer.trigger(processingTime="0 seconds").start()
            try:
                _wait(lambda: (Path(checkpoint) / "commits" / "0").exists(), "the query to begin")
                subprocess.run(what["writer"], check=True, timeout=_DEADLINE, stdout=subprocess.DEVNULL)
                _wait(lambda: len(found) >= what["records"], f"{what['records']:,} records")
            finally:
                query.stop()
        found = sorted(found[len(found) // 10 :])  # the first records wait for the JIT compiler
        return {"p50": found[len(found) // 2], "p95": found[len(found) * 95 // 100], "worst": found[-1]}

    def cpu_seconds(self) -> float:
        """CPU seconds of the JVM and all Python workers, including ended ones."""
        return sum(stat(pid).cpu_seconds for pid in {self.jvm, *descendants(self.jvm)})

    def largest_worker(self) -> float:
        """The memory peak of the current Python workers, which live for a minute after a task."""
        peaks = [peak_kb(pid) for pid in descendants(self.jvm)]
        return max(peaks, default=0) * 1024 / 1e6


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waiting for {what}")
        time.sleep(0.01)


if __name__ == "__main__":
    session = Session(json.loads(sys.argv[1]))
    session.run()
    session.spark.stop()
