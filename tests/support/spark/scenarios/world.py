"""What a scenario works with. Spark's suites send texts of numbers, so the values here are integers."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, write
from support.spark.streams import DEADLINE, started

FAILS = "fails"
Options = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    run: Callable[[World], Any]
    expected: Any
    is_core: bool


class Suite:
    """The scenarios of a module, in order."""

    def __init__(self) -> None:
        self.scenarios: list[Scenario] = []

    def add(self, name: str, expected: Any, run: Callable[[World], Any], *, core: bool = False) -> None:
        self.scenarios.append(Scenario(name, run, json.loads(json.dumps(expected)), core))

    def scenario(
        self, name: str, expected: Any, *, core: bool = False
    ) -> Callable[[Callable[[World], Any]], Callable[[World], Any]]:
        def register(run: Callable[[World], Any]) -> Callable[[World], Any]:
            self.add(name, expected, run, core=core)
            return run

        return register


class World:
    def __init__(self, spark: SparkSession, source: str, admin: Admin, directory: Path) -> None:
        self.spark = spark
        self.source = source
        self.admin = admin
        self.servers = admin.bootstrap_servers
        self.directory = directory

    def observe(self, scenario: Scenario) -> Any:
        """What the scenario observes, as JSON. An error that it does not expect is an observation, too."""
        try:
            found = scenario.run(self)
        except Exception as error:  # noqa: BLE001  # compared with what is expected
            found = f"{type(error).__name__}: {str(error)[:600]}"
        finally:
            for query in self.spark.streams.active:
                query.stop()
            shutil.rmtree(self.directory, ignore_errors=True)
        return json.loads(json.dumps(found))

    # -- topics ----------------------------------------------------------------------------------------------------

    def topic(self, partitions: int = 1, name: str | None = None, **config: object) -> str:
        given = {"retention_ms": -1, "message_timestamp_after_max_ms": 2**63 - 1, **config}
        return self.admin.create("scenario", partitions, name=name, **given)

    def name(self) -> str:
        return unique("scenario")

    def send(self, topic: str, values: Iterable[int], partition: int = 0, timestamp: int = 0) -> None:
        write(self.servers, topic, [Outgoing(b"%d" % n, None, partition, timestamp) for n in values])

    # -- queries ---------------------------------------------------------------------------------------------------

    def options(self, options: Options) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.servers, "kafka.metadata.max.age.ms": "1", **options}
        return {name: str(value) for name, value in given.items() if value is not None}

    def read(self, **options: Any) -> DataFrame:
        return self.spark.read.format(self.source).options(**self.options(options)).load()

    def read_stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.format(self.source).options(**self.options(options)).load()

    def stream(self, frame: DataFrame | None = None, **options: Any) -> Query:
        return Query(self, self.read_stream(**options) if frame is None else frame)

    def fails(self, action: Callable[[], Any]) -> Any:
        """FAILS, or what the action returns."""
        try:
            return action()
        except (PySparkException, Py4JJavaError):
            return FAILS


class Query:
    """A streaming query that writes to files. It can be stopped, and started again from its checkpoint."""

    def __init__(self, world: World, frame: DataFrame) -> None:
        self._world = world
        self._frame = frame
        self.where = world.directory / unique("query")
        self._query: StreamingQuery | None = None
        self.progress: list[Any] = []

    def start(self, **trigger: Any) -> Query:
        writer = self._frame.writeStream.format("parquet").option("path", str(self.where / "out"))
        writer = writer.option("checkpointLocation", str(self.where / "checkpoint"))
        self._query = started((writer.trigger(**trigger) if trigger else writer).start)
        return self

    def process(self) -> Query:
        assert self._query is not None
        self._query.processAllAvailable()
        return self

    def stop(self) -> Query:
        assert self._query is not None
        self.progress = list(self._query.recentProgress)
        self._query.stop()
        return self

    def run(self, **trigger: Any) -> Query:
        """Until it ends by itself. Raises its error."""
        self.start(**(trigger or {"availableNow": True}))
        assert self._query is not None
        if not self._query.awaitTermination(DEADLINE):
            raise TimeoutError("the query does not end")
        self.progress = list(self._query.recentProgress)
        return self

    def values(self) -> list[int]:
        return values(self._world.spark.read.parquet(str(self.where / "out")))

    def ends(self) -> list[dict[str, dict[str, int]]]:
        """The end offsets of its batches, without what headrace adds to the first one."""
        folder = self.where / "checkpoint" / "offsets"
        files = sorted(folder.glob("[0-9]*"), key=lambda file: int(file.name))
        found = [json.loads(file.read_text().splitlines()[2]) for file in files]
        return [{topic: each for topic, each in end.items() if ":" not in topic} for end in found]


def values(frame: DataFrame) -> list[int]:
    column = "cast(cast(value as string) as int) as value"
    return sorted(row.value for row in frame.selectExpr(column).collect())


def by_partition(topic: str, numbers: Iterable[int]) -> str:
    """Offsets or timestamps of the partitions 0, 1, … as JSON."""
    return json.dumps({topic: {str(partition): number for partition, number in enumerate(numbers)}})
