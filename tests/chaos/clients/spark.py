"""A driver of Spark with one streaming query, which restarts from its checkpoint whenever it fails.

    spark_plain        into JSON files, by Spark's own file sink
    spark_lanes        enable.parallel.rebalance, with the lane of each record
    spark_member       group.membership, in a group with `spark_peer`
    spark_share        share.group.id
    spark_typed        JSON decoded to typed columns
    spark_sink         copies its topic with the sink, at least once
    spark_sink_once    copies its topic with the sink, exactly once

All but the first and the sinks use foreachBatch, and write the records of a batch into the ledger under its number.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import groupby
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chaos.clients.process import Process, start
from chaos.identity import Seen, parse_identity, to_runs
from chaos.rules.copies import FILES, SINKS
from support.spark.drivers import local_settings
from support.spark.home import fast_start
from support.spark.streams import started

_TESTS = Path(__file__).parents[2]
_TRIGGER = "1 second"
_LOOK_EVERY = 1
_PAUSE = 1.0
_ERROR = 2_000
"""Characters of an error that the ledger keeps."""
_SETTINGS = {"spark.driver.memory": "700m", "spark.sql.streaming.metricsEnabled": "false"}
_COMMITS = {"commitOffsets": "true"}
_KINDS: dict[str, dict[str, str]] = {
    "spark_plain": _COMMITS,
    "spark_lanes": {
        "enable.parallel.rebalance": "true",
        "includeLane": "true",
        "maxOffsetsPerTrigger": "2500",  # so that a backlog lasts for some batches
        **_COMMITS,
    },
    "spark_member": {
        "group.membership": "true",
        "kafka.group.protocol": "consumer",
        "kafka.max.poll.interval.ms": "60000",
    },
    "spark_share": {},
    "spark_typed": {"value.format": "json", "value.schema": "identity STRING, number BIGINT", **_COMMITS},
    "spark_sink": {},
    "spark_sink_once": {"kafka.isolation.level": "read_committed"},
}


class Driver:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._directory = Path(process.directory)
        self._brokers = {
            "kafka.bootstrap.servers": process.servers,
            "kafka.request.timeout.ms": "8000",
            "kafka.metadata.max.age.ms": "3000",
            **{f"kafka.{name}": value for name, value in process.security.items()},
        }
        paths = [str(_TESTS / "chaos" / "redirected"), str(_TESTS), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ["CHAOS_PORTS"] = json.dumps(process.ports)
        # A task may fail three times, as on a cluster: local mode would give it one attempt.
        os.environ.update(fast_start())
        builder = SparkSession.builder.master("local[1,4]")
        self._spark: SparkSession = builder.config(map={**local_settings(), **_SETTINGS}).getOrCreate()
        self._spark.sparkContext.setLogLevel("WARN")

    def run(self) -> None:
        while not self._process.stopping.is_set():
            try:
                query = started(self._writer().start)
                self._process.ledger.write("running")
                self._watch(query)
            except PySparkException as error:
                self._process.ledger.write("query_failed", error=str(error)[:_ERROR])
                self._process.stopping.wait(_PAUSE)
        self._spark.stop()

    def _watch(self, query: StreamingQuery) -> None:
        batch = -1
        while not self._process.stopping.is_set():
            if query.awaitTermination(_LOOK_EVERY):  # raises the query's error
                return
            progress = query.lastProgress
            if progress is not None and progress["numInputRows"] and progress["batchId"] != batch:
                batch = progress["batchId"]
                self._process.ledger.write("progress", batch=batch, rows=progress["numInputRows"])
        query.stop()

    # -- the query -----------------------------------------------------------------------------------------------------

    def _writer(self) -> DataStreamWriter:
        process = self._process
        loaded = self._spark.readStream.format("headrace").options(**self._source()).load()
        if process.kind in SINKS:
            place = "concat(partition, '/', offset, '/', cast(value as string)) as value"
            writer = loaded.selectExpr("key", place).writeStream.format("headrace").options(**self._sink())
        elif process.kind in FILES:
            text = loaded.selectExpr("partition", "offset", "cast(value as string) as value")
            writer = text.writeStream.format("json").option("path", str(self._directory / "out"))
        else:
            writer = loaded.writeStream.foreachBatch(self._note)
        return writer.option("checkpointLocation", str(self._directory / "checkpoint")).trigger(processingTime=_TRIGGER)

    def _source(self) -> dict[str, str]:
        process = self._process
        options = {**self._brokers, "subscribe": process.topic, "maxOffsetsPerTrigger": "3000"}
        if process.kind == "spark_share":
            options["share.group.id"] = process.group
        else:
            options["startingOffsets"] = "earliest"
        if process.kind not in (*SINKS, "spark_share"):
            options["kafka.group.id"] = process.group
        return options | _KINDS[process.kind]

    def _sink(self) -> dict[str, str]:
        options = {**self._brokers, "topic": self._process.target}
        if self._process.kind == "spark_sink_once":
            options |= {"exactlyOnce": "true", "sinkId": self._process.group}
        return options

    def _note(self, batch: DataFrame, number: int) -> None:
        """Called by Spark on a thread of its own, again for a batch that was interrupted."""
        typed = self._process.kind == "spark_typed"
        columns = ["value.identity", "value.number"] if typed else ["cast(value as string) as identity"]
        has_lanes = self._process.kind == "spark_lanes"
        columns += ["lane"] if has_lanes else []
        rows = batch.selectExpr("partition", "offset", *columns).collect()
        if not rows:
            self._process.ledger.write("received", batch=number, runs=[], lane=None)
        for lane, found in groupby(rows, lambda row: row["lane"] if has_lanes else None):
            runs = to_runs(_seen(row, typed) for row in found)
            self._process.ledger.write("received", batch=number, runs=runs, lane=lane)


def _seen(row: Row, typed: bool) -> Seen:
    identity = parse_identity(row["identity"])
    if typed:
        identity = identity._replace(number=row["number"])
    return Seen(row["partition"], row["offset"], identity)


def main() -> None:
    process = start()
    Driver(process).run()
    process.closed()


if __name__ == "__main__":
    main()
