"""KafkaSinkSuite: batch and streaming writes. (Update mode is a limit of Spark's Python sinks: docs/spark.md.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from .world import FAILS, Query, Suite, World, values

SUITE = Suite()


def _write_stream(world: World, target: str, columns: list[str], **options: Any) -> Any:
    """The values of the target, after each of two micro-batches. The rows are those of a stream of another topic."""
    source = world.topic()
    rows = world.read_stream(subscribe=source, startingOffsets="earliest").selectExpr("cast(value as string) as value")
    writer = rows.selectExpr(*columns).writeStream.format(world.source).options(**world.options(options))

    def run() -> Any:
        query = writer.option("checkpointLocation", str(world.directory / "sink")).start()
        found = []
        for numbers in (range(1, 6), range(6, 11)):
            world.send(source, numbers)
            query.processAllAvailable()
            found.append(values(world.read(subscribe=target)) if target else [])
        query.stop()
        return found

    return world.fails(run)


_BOTH = [list(range(1, 6)), list(range(1, 11))]


def _streaming(columns: Callable[[str], list[str]], option: bool, world: World) -> Any:
    topic = world.topic()
    more = {"topic": topic} if option else {}
    return _write_stream(world, topic, columns(topic), **more, **{"kafka.max.block.ms": "5000"})


STREAMS: dict[str, tuple[Callable[[str], list[str]], bool, Any]] = {
    "streaming - write to kafka with topic field": (lambda topic: [f"'{topic}' as topic", "value"], False, _BOTH),
    "streaming - write w/o topic field, with topic option": (lambda topic: ["value"], True, _BOTH),
    "streaming - topic field and topic option": (lambda topic: ["'foo' as topic", "value"], True, _BOTH),
    "streaming - write data with bad schema: no topic": (lambda topic: ["value as key", "value"], False, FAILS),
    "streaming - write data with bad schema: no value": (
        lambda topic: [f"'{topic}' as topic", "value as key"],
        *(False, FAILS),
    ),
    "streaming - write data with valid schema but wrong types: topic": (
        lambda topic: ["cast('1' as int) as topic", "value"],
        *(False, FAILS),
    ),
    "streaming - write data with valid schema but wrong types: value": (
        lambda topic: [f"'{topic}' as topic", "cast(value as int) as value"],
        *(False, FAILS),
    ),
    "streaming - write data with valid schema but wrong types: key": (
        lambda topic: [f"'{topic}' as topic", "cast(value as int) as key", "value"],
        *(False, FAILS),
    ),
    "streaming - write data with valid schema but wrong types: partition": (
        lambda topic: [f"'{topic}' as topic", "value", "value as partition"],
        *(False, FAILS),
    ),
    # The brokers of the tests create topics with legal names.
    "streaming - write to non-existing topic": (lambda topic: ["'not/there' as topic", "value"], False, FAILS),
}
for _name, (_columns, _option, _expected) in STREAMS.items():
    SUITE.add(
        _name,
        _expected,
        lambda world, columns=_columns, option=_option: _streaming(columns, option, world),
        core=_name == "streaming - topic field and topic option",
    )
for _serializer in ("key", "value"):
    SUITE.add(
        f"streaming - exception on config serializer: {_serializer}",
        FAILS,
        lambda world, name=f"kafka.{_serializer}.serializer": _write_stream(
            world, "", ["value"], topic="any", **{name: "foo"}
        ),
    )


def _save(world: World, frame: DataFrame, mode: str = "append", **options: Any) -> None:
    frame.write.format(world.source).options(**world.options(options)).mode(mode).save()


@SUITE.scenario(
    "batch - write to kafka",
    [
        ["1", [["a", "b"]]],
        ["2", [["c", "d"], ["e", "f"]]],
        ["3", [["g", "h"], ["g", "i"]]],
        ["4", None],
        ["5", [["j", "k"], ["j", "l"], ["m", "n"]]],
    ],
    core=True,
)
def _(world: World) -> Any:
    topic = world.topic()
    headers: list[list[tuple[str, bytes]] | None] = [
        [("a", b"b")],
        [("c", b"d"), ("e", b"f")],
        [("g", b"h"), ("g", b"i")],
        None,
        [("j", b"k"), ("j", b"l"), ("m", b"n")],
    ]
    rows = [(topic, str(number + 1), each) for number, each in enumerate(headers)]
    schema = "topic string, value string, headers array<struct<key: string, value: binary>>"
    _save(world, world.spark.createDataFrame(rows, schema), topic=topic)
    found = world.read(subscribe=topic, includeHeaders="true").collect()
    return sorted(
        [row.value.decode(), None if row.headers is None else [[each.key, each.value.decode()] for each in row.headers]]
        for row in found
    )


def _partitions(world: World, partition: str | None, **options: Any) -> list[int]:
    topic = world.topic(4)
    columns = ["cast(id as string) as key", "cast(id as string) as value"]
    frame = world.spark.range(0, 5, 1, 1).selectExpr(*columns, *([f"{partition} as partition"] if partition else []))
    _save(world, frame, topic=topic, **options)
    return sorted({row.partition for row in world.read(subscribe=topic).select("partition").collect()})


@SUITE.scenario("batch - partition column and partitioner priorities", [True, [2], True])
def _(world: World) -> Any:
    default = _partitions(world, None)
    return [len(default) > 1, _partitions(world, "2"), _partitions(world, "cast(null as int)") == default]


@SUITE.scenario("batch - null topic field value, and no topic option", FAILS)
def _(world: World) -> Any:
    frame = world.spark.sql("select cast(null as string) as topic, '1' as value")
    return world.fails(lambda: _save(world, frame))


for _mode in ("overwrite", "ignore"):
    SUITE.add(
        f"batch - unsupported save modes: {_mode}",
        FAILS,
        lambda world, mode=_mode: world.fails(
            lambda: _save(world, world.spark.sql("select '1' as value"), mode, topic=world.topic())
        ),
    )


@SUITE.scenario("SPARK-20496: batch - enforce analyzed plans", 999)
def _(world: World) -> Any:
    topic = world.topic()
    _save(world, world.spark.range(1, 1000).selectExpr("to_json(struct(*)) as value"), topic=topic)
    return world.read(subscribe=topic).count()


@SUITE.scenario("generic - write big data with small producer buffer", 200)
def _(world: World) -> Any:
    topic = world.topic()
    frame = world.spark.range(0, 200, 1, 1).selectExpr("repeat('x', 15000) as value")
    _save(world, frame, topic=topic, **{"kafka.buffer.memory": "20000", "kafka.batch.size": "16384"})
    return world.read(subscribe=topic).count()


@SUITE.scenario("streaming - sink progress is produced", True)
def _(world: World) -> Any:
    """Update mode, as Spark's test has it."""
    source, target = world.topic(), world.topic()
    world.send(source, [1, 2, 3])
    rows = world.read_stream(subscribe=source, startingOffsets="earliest").select("value")
    query = Query(world, rows)

    def run() -> Any:
        writer = rows.writeStream.format(world.source).options(**world.options({"topic": target})).outputMode("update")
        running = writer.option("checkpointLocation", str(query.where)).trigger(availableNow=True).start()
        running.awaitTermination(150)
        return any(each["sink"]["numOutputRows"] == 3 for each in running.recentProgress)

    return world.fails(run)
