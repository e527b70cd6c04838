"""Both sinks in one Spark session: a program for the environment of `benchmarks.spark_peer` that prints JSON.

python spark_compare_sinks.py '{"servers": …, "jars": …, "directory": …, "topics": {"kafka": …, "headrace": …}, …}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from support.spark.peer_session import quiet_session
from support.spark.streams import DEADLINE, started

SINKS = ("kafka", "headrace")
COLUMNS = {
    "keys of both types": ("cast(id as string) as key", "cast(cast(id as string) as binary) as value"),
    "binary keys": ("cast(cast(id as string) as binary) as key", "concat('v', id) as value"),
    "nulls": (
        "if(id % 2 = 0, null, 'k') as key",
        "if(id % 3 = 0, null, cast(id as string)) as value",
        "0 as partition",
    ),
    "partitions": ("cast(id as string) as value", "cast(id % 3 as int) as partition"),
    "headers": (
        "cast(id as string) as key",
        "'v' as value",
        "array(struct('a' as key, cast('1' as binary) as value), struct('a' as key, cast(null as binary) as value))"
        " as headers",
    ),
    "other columns": ("cast(id as string) as key", "'v' as value", "id as offset", "current_timestamp() as timestamp"),
}
"""The columns to write with both sinks."""
REFUSED: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "no value": (("'k' as key",), {}),
    "no topic": (("'v' as value",), {"topic": ""}),
    "a number as value": (("id as value",), {}),
    "a number as key": (("id as key", "'v' as value"), {}),
    "a long as partition": (("'v' as value", "id as partition"), {}),
    "text as headers": (("'v' as value", "'h' as headers"), {}),
    "a null topic": (("'v' as value", "cast(null as string) as topic"), {"topic": ""}),
    "a serializer": (("'v' as value",), {"kafka.value.serializer": "x"}),
    "no server": (("'v' as value",), {"kafka.bootstrap.servers": ""}),
    "a partition that is not there": (("'v' as value", "99 as partition"), {"kafka.max.block.ms": "2000"}),
    "a record that is too large": (("repeat('x', 2000000) as value",), {}),
}


class SinkComparison:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.spark = quiet_session(job["jars"])

    def run(self) -> dict[str, Any]:
        for sink in SINKS:
            for columns in COLUMNS.values():
                self._save(sink, self.spark.range(0, 300, 1, 2).selectExpr(*columns), {})
            self._stream(sink)
        return {
            "refusals": {name: [self._refuses(sink, *wrong) for sink in SINKS] for name, wrong in REFUSED.items()},
        }

    def _options(self, sink: str, options: dict[str, str]) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.job["servers"], "topic": self.job["topics"][sink], **options}
        return {name: value for name, value in given.items() if value}

    def _save(self, sink: str, data: DataFrame, options: dict[str, str]) -> None:
        data.write.format(sink).options(**self._options(sink, options)).mode("append").save()

    def _stream(self, sink: str) -> None:
        """Copy the records of a topic with their headers."""
        source = {"subscribe": self.job["source"], "startingOffsets": "earliest", "includeHeaders": "true"}
        loaded = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.job["servers"])
        loaded = loaded.options(**source).load().select("key", "value", "headers", "partition")
        writer = loaded.writeStream.format(sink).options(**self._options(sink, {}))
        where = str(Path(self.job["directory"]) / sink)
        query = started(writer.option("checkpointLocation", where).trigger(availableNow=True).start)
        if not query.awaitTermination(DEADLINE):
            raise TimeoutError(f"{sink} did not end in {DEADLINE} s")

    def _refuses(self, sink: str, columns: tuple[str, ...], options: dict[str, str]) -> bool:
        try:
            self._save(sink, self.spark.range(1).selectExpr(*columns), options)
        except (PySparkException, Py4JJavaError):
            return True
        return False


if __name__ == "__main__":
    print(json.dumps(SinkComparison(json.loads(sys.argv[1])).run()))
