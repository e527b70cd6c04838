"""Both sources in one Spark session: a program for the environment of `benchmarks.spark_peer` that prints JSON.

    python spark_compare.py '{"servers": …, "jars": …, "directory": …, "reads": …, …}'

Results are texts: "the same, 123 rows", or the difference.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from headrace.spark.options.source import OptionError, SourceOptions
from support.spark.peer_session import quiet_session
from support.spark.streams import DEADLINE, started

SOURCES = ("kafka", "headrace")
Options = dict[str, str]


class Comparison:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.spark = quiet_session(job["jars"])

    def found(self) -> dict[str, Any]:
        job = self.job
        return {
            "version": self.spark.version,
            "reads": {name: self.read(options) for name, options in job["reads"].items()},
            "streams": {name: self.stream(name, options) for name, options in job["streams"].items()},
            "refusals": {name: self.refuse(options) for name, options in job["refusals"].items()},
            "handovers": self.hand_over(),
            "reuse": {source: self.reuse(source) for source in SOURCES},
        }

    # -- batch -----------------------------------------------------------------------------------------------------

    def read(self, options: Options) -> str:
        theirs, ours = (self._reader(source, options) for source in SOURCES)
        if theirs.schema != ours.schema:
            return f"the schemas differ: {theirs.schema.simpleString()}, {ours.schema.simpleString()}"
        if "minPartitions" in options:
            tasks = theirs.rdd.getNumPartitions(), ours.rdd.getNumPartitions()
            if tasks[0] != tasks[1]:
                return f"{tasks[0]} tasks, {tasks[1]} tasks"
        return _difference(_rows(theirs), _rows(ours))

    def _reader(self, source: str, options: Options) -> DataFrame:
        return self.spark.read.format(source).options(**self._with_servers(options)).load()

    def _with_servers(self, options: Options) -> Options:
        return {"kafka.bootstrap.servers": self.job["servers"], **options}

    def refuse(self, options: Options) -> list[bool]:
        """Whether each source rejects these options."""
        return [self._refuses(source, options) for source in SOURCES]

    def _refuses(self, source: str, options: Options) -> bool:
        try:
            if source == "headrace":  # measured mostly without the way to a Python worker
                SourceOptions.parse(self._with_servers(options), streaming=False)
            self._reader(source, options).count()
        except (PySparkException, Py4JJavaError, OptionError):
            return True
        return False

    def reuse(self, source: str) -> dict[str, list[int]]:
        """The row counts of one DataFrame in several uses: 100 at first, then after 50 more records were written."""
        topic = self.job["reused"][source]
        self._write(topic, 0, 100)
        frame = self._reader(source, {"subscribe": topic})
        frame.createOrReplaceTempView("reused")
        filtered, same = frame.where("offset >= 0"), frame.select("offset")
        uses = {
            "count": frame.count,
            "filter": filtered.count,
            "same plan": lambda: len(same.collect()),
            "view": lambda: self.spark.sql("select count(*) as rows from reused").collect()[0].rows,
            "union": lambda: frame.where("partition = 0").union(frame.where("partition = 1")).count(),
        }
        before = {name: use() for name, use in uses.items()}
        self._write(topic, 100, 150)
        return {name: [before[name], use()] for name, use in uses.items()}

    # -- streaming -------------------------------------------------------------------------------------------------

    def stream(self, name: str, options: Options) -> str:
        """Compare rows and batches."""
        plans, rows = [], []
        for source in SOURCES:
            where = Path(self.job["directory"]) / f"{name}-{source}"
            self._run(source, options, where)
            plans.append(_plan(where))
            rows.append(_rows(self.spark.read.parquet(str(where / "out"))))
        if plans[0] != plans[1]:
            return f"the batches differ: {plans[0]}, {plans[1]}"
        return f"{_difference(*rows)}, {len(plans[0])} batches"

    def _run(self, source: str, options: Options, where: Path) -> None:
        frame = self.spark.readStream.format(source).options(**self._with_servers(options)).load()
        writer = frame.writeStream.format("parquet").option("path", str(where / "out"))
        query = started(writer.option("checkpointLocation", str(where / "checkpoint")).trigger(availableNow=True).start)
        if not query.awaitTermination(DEADLINE):
            raise TimeoutError(f"{source} did not end in {DEADLINE} s")

    # -- a checkpoint of the one, resumed by the other ---------------------------------------------------------------

    def hand_over(self) -> str:
        """Resume one checkpoint with both sources in turn. Each also runs a batch that the other has planned but not
        completed, as after a crash."""
        topic = self.job["handover"]
        where = Path(self.job["directory"]) / topic
        options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
        turns = ("kafka", "headrace", "kafka", "headrace")
        for number, source in enumerate(turns):
            self._write(topic, 50 * number, 50 * (number + 1))
            self._run(source, options, where)
            if number in (1, 2):
                _forget_last_batch(where)
        found = self.spark.read.parquet(str(where / "out")).select(F.col("value").cast("string")).collect()
        numbers = sorted(int(row.value) for row in found)
        return "every record once" if numbers == list(range(200)) else f"{len(numbers)} records: {numbers}"

    def _write(self, topic: str, first: int, last: int) -> None:
        frame = self.spark.range(first, last, numPartitions=1).select(F.col("id").cast("string").alias("value"))
        frame.write.format("kafka").options(**self._with_servers({"topic": topic})).save()


def _rows(frame: DataFrame) -> list[Row]:
    return frame.orderBy("topic", "partition", "offset").collect()


def _difference(theirs: list[Row], ours: list[Row]) -> str:
    for one, other in zip(theirs, ours, strict=False):
        if one != other:
            return f"Spark's has {one}, ours {other}"
    if len(theirs) != len(ours):
        return f"Spark's has {len(theirs)} rows, ours {len(ours)}"
    return f"the same, {len(ours)} rows"


def _plan(where: Path) -> list[Any]:
    """The end offsets of each batch."""
    files = sorted((where / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return [json.loads(file.read_text().splitlines()[2]) for file in files]


def _forget_last_batch(where: Path) -> None:
    """As if the driver had died in the batch: the checkpoint has its offsets but no commit, and the sink no rows."""
    commits = where / "checkpoint" / "commits"
    last = max(int(file.name) for file in commits.glob("[0-9]*"))
    for directory in (commits, where / "out" / "_spark_metadata"):
        (directory / str(last)).unlink()
        (directory / f".{last}.crc").unlink(missing_ok=True)


if __name__ == "__main__":
    print(json.dumps(Comparison(json.loads(sys.argv[1])).found()))
