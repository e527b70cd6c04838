"""The program for PySpark 4.2: one session, the readers in turns. `python -m benchmarks.spark_formats_session <job>`.

The job is that of `spark_formats`. Results are printed as JSON lines `{"what", "reader", …}`, one per run. A run is
timed from the action to its end, including planning. All readers must return the same rows: that is checked first.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from .spark_session import Session

TYPED, CONNECTOR, BYTES, CONNECTOR_BYTES = "headrace, typed", "kafka + from_…", "headrace, bytes", "kafka, bytes"
_FRAMING_BYTES = 5
_WARM_UPS = 1


def main(job: dict[str, Any]) -> None:
    session = Session({**job, "batch": [], "streams": []})
    try:
        for name in job["topics"]:
            readers = _readers(session, name)
            _check(readers)
            for number in range(-_WARM_UPS, job["repeat"]):
                for reader, load in readers.items():
                    found = _measure(session, load, job["records"])
                    if number >= 0:
                        print(json.dumps({"what": name, "reader": reader, **found}), flush=True)
    finally:
        session.spark.stop()


def _readers(session: Session, name: str) -> dict[str, Callable[[], DataFrame]]:
    job = session.job
    given = {"kafka.bootstrap.servers": job["servers"], "subscribe": job["topics"][name]}

    def load(source: str, **options: str) -> DataFrame:
        return session.spark.read.format(source).options(**given, **options).load()

    def connector() -> DataFrame:
        raw = load("kafka")
        if name == "json":
            value = F.from_json(F.col("value").cast("string"), job["ddl"])
        else:
            value = from_avro(F.expr(f"substring(value, {_FRAMING_BYTES + 1})"), job["avro"])
        return raw.select(value.alias("it")).select("it.*")

    own = {"value.schema": job["ddl"]} if name == "json" else {"schema.registry.url": job["registry"]}
    fields = "sensor,road,at,speed,limit,occupancy"
    return {
        CONNECTOR: connector,
        TYPED: lambda: load("headrace", **{"value.format": name, "value.flatten": "true", "columns": fields}, **own),
        CONNECTOR_BYTES: lambda: load("kafka").select("value"),
        BYTES: lambda: load("headrace", columns="value"),
    }


def _check(readers: dict[str, Callable[[], DataFrame]]) -> None:
    """The same rows, by their hashes."""
    found = {
        name: readers[name]().agg(F.count("*"), F.sum(F.xxhash64("*").cast("decimal(38,0)"))).collect()[0]
        for name in (CONNECTOR, TYPED)
    }
    if found[CONNECTOR] != found[TYPED]:
        raise ValueError(f"the readers return different rows: {found}")


def _measure(session: Session, load: Callable[[], DataFrame], records: int) -> dict[str, float]:
    frame = load()
    before, began = session.cpu_seconds(), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - began
    return {"rate": records / seconds, "cpu": (session.cpu_seconds() - before) / records * 1e6}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
