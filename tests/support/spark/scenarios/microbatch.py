"""KafkaMicroBatchSourceSuite, and the streaming part of KafkaDontFailOnDataLossSuite."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import functions as F

from support.brokers.admin import unique
from support.brokers.produce import Outgoing, Writer, write

from .world import FAILS, Query, Suite, World, by_partition, values

SUITE = Suite()


@SUITE.scenario("Trigger.AvailableNow", [3, list(range(15))])
def _(world: World) -> Any:
    topic = world.topic(5)
    world.send(topic, range(15))
    query = world.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=5).run()
    return [len([each for each in query.progress if each["numInputRows"]]), query.values()]


def _changed_during_available_now(partitions: int, count: int, world: World) -> Any:
    topic = world.topic(5)
    world.send(topic, range(15))
    frame = world.read_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=5)

    def recreate(_frame: Any, number: int) -> None:
        if number == 0:
            world.admin.remove(topic, again=partitions)
            world.send(topic, range(count))

    def run() -> str:
        writer = frame.writeStream.foreachBatch(recreate).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(world.directory / unique("checkpoint"))).start()
        return "ends" if query.awaitTermination(150) else "hangs"

    return world.fails(run)


_UNAVAILABLE = "Query with Trigger.AvailableNow should throw error when {} got unavailable during subsequent batches"
SUITE.add(
    _UNAVAILABLE.format("topic partitions"), FAILS, lambda world: _changed_during_available_now(3, 15, world), core=True
)
SUITE.add(
    _UNAVAILABLE.format("offset(s) in planned topic partitions"),
    FAILS,
    # The recreated log ends at 10, and the next batch would end there as well: Spark looks at the end of the batch.
    lambda world: _changed_during_available_now(5, 8, world),
)


@SUITE.scenario(
    "SPARK-26718 Rate limit set to Long.Max should not overflow integer during end offset calculation", [5, 6]
)
def _(world: World) -> Any:
    topic = world.topic()
    world.send(topic, range(5))
    start = by_partition(topic, [5])
    query = world.stream(subscribe=topic, startingOffsets=start, maxOffsetsPerTrigger=2**63 - 1).start().process()
    world.send(topic, [5, 6])
    return query.process().stop().values()


def _three_partitions(world: World, large: range, middle: range) -> str:
    topic = world.topic(3)
    for partition, numbers in enumerate((large, middle, range(1, 2))):
        world.send(topic, numbers, partition)
    return topic


def _first_batches(world: World, count: int, **options: Any) -> list[list[int]]:
    """The end offsets of the partitions after each of the first batches."""
    topic = _three_partitions(world, range(100, 201), range(10, 21))
    query = world.stream(subscribe=topic, startingOffsets="earliest", **options).run()
    return [[each[topic][str(number)] for number in range(3)] for each in query.ends()[:count]]


_PROPORTIONAL = [[8, 1, 1], [17, 2, 1], [26, 3, 1], [35, 4, 1]]
SUITE.add("maxOffsetsPerTrigger", _PROPORTIONAL, lambda world: _first_batches(world, 4, maxOffsetsPerTrigger=10))
SUITE.add(
    "maxOffsetsPerTrigger, in proportion",
    _PROPORTIONAL,
    lambda world: _first_batches(world, 4, maxOffsetsPerTrigger=10, maxOffsetsPerTriggerShares="proportional"),
    core=True,
)


@SUITE.scenario("maxOffsetsPerTrigger: Trigger.Once() ignores the read limit", [[113, 1], [124, 1]], core=True)
def _(world: World) -> Any:
    topic = _three_partitions(world, range(100, 201), range(10, 21))
    query = world.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    query.run(once=True)
    found = [[len(query.values()), len(query.progress)]]
    world.send(topic, range(1000, 1011))
    query.run(once=True)
    return [*found, [len(query.values()), len(query.progress)]]


@SUITE.scenario("minOffsetsPerTrigger", [16, 16, 34])
def _(world: World) -> Any:
    """The first batch is always processed, the second one waits for more records."""
    topic = _three_partitions(world, range(100, 110), range(10, 15))
    options = {"minOffsetsPerTrigger": 15, "maxTriggerDelay": "10m", "startingOffsets": "earliest"}
    query = world.stream(subscribe=topic, **options).start().process()
    found = [len(query.values())]
    world.send(topic, range(15, 21), 1)
    found.append(len(query.process().values()))
    world.send(topic, range(110, 122), 0)
    found.append(len(query.process().values()))
    query.stop()
    return found


@SUITE.scenario("compositeReadLimit", [[12, 6, 1], [23, 11, 1]])
def _(world: World) -> Any:
    """minOffsetsPerTrigger and maxOffsetsPerTrigger. The first batch has 20 of 33 offsets at most, the rest waits."""
    topic = _three_partitions(world, range(100, 121), range(10, 21))
    limits = {"minOffsetsPerTrigger": 15, "maxOffsetsPerTrigger": 20, "maxTriggerDelay": "10m"}
    shares = {"maxOffsetsPerTriggerShares": "proportional", "startingOffsets": "earliest"}
    query = world.stream(subscribe=topic, **limits, **shares).start().process()
    world.send(topic, [1, 2], 0)
    query.process().stop()
    return [[each[topic][str(number)] for number in range(3)] for each in query.ends()]


@SUITE.scenario("input row metrics", 3)
def _(world: World) -> Any:
    topic = world.topic(5)
    world.send(topic, [-1])
    query = world.stream(subscribe=topic).start(processingTime="1 millisecond").process()
    world.send(topic, [1, 2, 3])
    query.process().stop()
    return sum(each["numInputRows"] for each in query.progress)


@SUITE.scenario("subscribing topic by pattern with topic deletions", [[1, 2, 3], [1, 2, 3, 4, 5, 6]], core=True)
def _(world: World) -> Any:
    prefix = world.name()
    topic = world.topic(5, name=f"{prefix}-seems")
    world.send(topic, [-1])
    query = world.stream(subscribePattern=f"{prefix}-.*", failOnDataLoss="false").start().process()
    world.send(topic, [1, 2, 3])
    found = [query.process().values()]
    world.admin.remove(topic)
    other = world.topic(5, name=f"{prefix}-bad")
    world.send(other, [4, 5, 6])
    return [*found, query.process().stop().values()]


@SUITE.scenario("SPARK-41375: empty partitions should not record to latest offset", True, core=True)
def _(world: World) -> Any:
    prefix = world.name()
    topic = world.topic(5, name=f"{prefix}-good")
    query = world.stream(subscribePattern=f"{prefix}-.*", failOnDataLoss="false").start().process()
    world.send(topic, [1, 2, 3])
    query.process()
    world.admin.remove(topic)
    return all(query.process().stop().ends())


@SUITE.scenario("subscribe topic by pattern with topic recreation between batches", [[1, 2, 3, 4], FAILS])
def _(world: World) -> Any:
    prefix = world.name()
    for name, numbers in (("good", (1, 3)), ("bad", (2, 4))):
        world.send(world.topic(name=f"{prefix}-{name}"), numbers)
    query = world.stream(subscribePattern=f"{prefix}-.*", startingOffsets="earliest").run()
    found = [query.values()]
    world.admin.remove(f"{prefix}-bad", again=1)
    world.send(f"{prefix}-bad", [6])
    return [*found, world.fails(lambda: query.run().values())]


@SUITE.scenario("ensure that initial offset are written with an extra byte in the beginning (SPARK-19517)", [0, 118])
def _(world: World) -> Any:
    query = world.stream(subscribe=world.topic(), startingOffsets="earliest").run()
    files = list((query.where / "checkpoint" / "sources").glob("0/0"))
    return list(files[0].read_bytes()[:2]) if files else "no file"


@SUITE.scenario("deserialization of initial offset written by Spark 2.1.0 (SPARK-19517)", [0, 1, 2, 10, 20, 200, 1000])
def _(world: World) -> Any:
    topic = world.topic(3)
    for partition, numbers in enumerate(((0, 1, 2), (0, 10, 20), (0, 100, 200))):
        world.send(topic, numbers, partition)
    query = world.stream(subscribe=topic)
    file = query.where / "checkpoint" / "sources" / "0" / "0"
    file.parent.mkdir(parents=True)
    # Without the first line, which later versions have.
    file.write_bytes(b"\0" + by_partition(topic, (0, 1, 2)).encode())
    query.start().process()
    world.send(topic, [1000])
    return query.process().stop().values()


@SUITE.scenario("deserialization of initial offset written by future version", FAILS)
def _(world: World) -> Any:
    query = world.stream(subscribe=world.topic(3))
    file = query.where / "checkpoint" / "sources" / "0" / "0"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\0v99999\n{}")
    return world.fails(lambda: query.run().values())


@SUITE.scenario("KafkaSource with watermark", [[1]])
def _(world: World) -> Any:
    topic = world.topic()
    world.send(topic, [1])
    frame = world.read_stream(subscribe=topic, startingOffsets="earliest").withWatermark("timestamp", "10 seconds")
    name = unique("watermark").replace("-", "_")
    counted = frame.groupBy(F.window("timestamp", "5 seconds")).count()
    query = counted.writeStream.format("memory").outputMode("complete").queryName(name).start()
    query.processAllAvailable()
    query.stop()
    return [[row["count"]] for row in world.spark.table(name).collect()]


@SUITE.scenario("delete a topic when a Spark job is running", "runs")
def _(world: World) -> Any:
    topic = world.topic()
    world.send(topic, range(1, 11))
    options = {"startingOffsets": "earliest", "failOnDataLoss": "false", "kafkaConsumer.pollTimeoutMs": "1000"}
    frame = world.read_stream(subscribe=topic, **options)

    def batch(found: Any, _number: int) -> None:
        world.admin.remove(topic, again=1)
        found.count()

    query = frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(world.directory / "deleted")).start()
    query.processAllAvailable()
    failed = query.exception()
    query.stop()
    return "runs" if failed is None else FAILS


@SUITE.scenario("SPARK-22956: currentPartitionOffsets should be set when no new data comes in", [[10, 10, 5], 110])
def _(world: World) -> Any:
    """A union of two sources. The smaller topic has nothing new in the third batch."""
    topics = [world.topic(), world.topic()]
    world.send(topics[0], range(10))
    world.send(topics[1], range(100, 200))
    one, other = (world.read_stream(subscribe=it, startingOffsets="earliest", maxOffsetsPerTrigger=5) for it in topics)
    query = world.stream(one.union(other)).run()
    sizes = [each["numInputRows"] for each in query.progress if each["numInputRows"]]
    return [sizes[:3], len(query.values())]


@SUITE.scenario("allow group.id override", list(range(1, 31)))
def _(world: World) -> Any:
    """The offset reader of both uses no group by default: the option must not matter."""
    topic = world.topic(3)
    for number in range(3):
        world.send(topic, range(10 * number + 1, 10 * number + 11), number)
    given = {"kafka.group.id": world.name(), "groupIdPrefix": "prefix"}
    return world.stream(subscribe=topic, startingOffsets="earliest", **given).run().values()


@SUITE.scenario("ensure stream-stream self-join generates only one offset in log and correct metrics", [6, 1])
def _(world: World) -> Any:
    topic = world.topic(2)
    frame = world.read_stream(subscribe=topic).selectExpr("cast(cast(value as string) as int) as value")
    keyed = frame.selectExpr("value", "value % 5 as key")
    joined = keyed.join(keyed, "key").toDF("key", "value", "other").selectExpr("cast(value as string) as value")
    query = world.stream(joined).start().process()
    for numbers in ((1, 2), (6, 3)):
        world.send(topic, numbers)
        query.process()
    query.stop()
    return [len(query.values()), len(query.progress[-1]["sources"])]


def _transactions(level: str, world: World) -> Any:
    topic = world.topic()
    options = {"kafka.isolation.level": level, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 3}
    query = world.stream(subscribe=topic, **options).start().process()
    writer = Writer(world.servers, transactional_id=unique("tx"))
    found = []
    end = 0
    for numbers, commits in ((range(5), True), (range(5, 10), False), (range(10, 15), True)):
        writer.producer.begin_transaction()
        writer.send(topic, [Outgoing(b"%d" % n) for n in numbers])
        writer.flush()
        writer.producer.commit_transaction(30) if commits else writer.producer.abort_transaction(30)
        end += 6
        world.admin.wait_end(topic, end)
        found.append(len(query.process().values()))
    query.stop()
    return found


for _level, _counts in (("read_committed", [5, 5, 10]), ("read_uncommitted", [5, 10, 15])):
    SUITE.add(
        f"read Kafka transactional messages: {_level}: microbatch",
        _counts,
        lambda world, level=_level: _transactions(level, world),
    )


@SUITE.scenario("SPARK-25495: FetchedData.reset should reset all fields", list(range(5)))
def _(world: World) -> Any:
    """A batch that has only aborted records, after one with committed ones."""
    topic = world.topic()
    writer = Writer(world.servers, transactional_id=unique("tx"))
    for numbers, commits in ((range(5), True), (range(10, 30), False)):
        writer.producer.begin_transaction()
        writer.send(topic, [Outgoing(b"%d" % n) for n in numbers])
        writer.flush()
        writer.producer.commit_transaction(30) if commits else writer.producer.abort_transaction(30)
    world.admin.wait_end(topic, 27)
    given = {"kafka.isolation.level": "read_committed", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 8}
    return world.stream(subscribe=topic, **given).run().values()


@SUITE.scenario(
    "SPARK-27494: read kafka record containing null key/values.", [[None, None], ["key", None], [None, "1"]]
)
def _(world: World) -> Any:
    topic = world.topic()
    write(world.servers, topic, [Outgoing(None), Outgoing(None, b"key"), Outgoing(b"1")])
    frame = world.read_stream(subscribe=topic, startingOffsets="earliest")
    query = world.stream(frame.selectExpr("offset", "cast(key as string)", "cast(value as string)")).run()
    rows = world.spark.read.parquet(str(query.where / "out")).orderBy("offset").collect()
    return [[row.key, row.value] for row in rows]


@SUITE.scenario("SPARK-30656: minPartitions: microbatch", [7, list(range(21))])
def _(world: World) -> Any:
    topic = world.topic(3)
    for partition, numbers in enumerate((range(10), range(10, 20), [20])):
        world.send(topic, numbers, partition)
    frame = world.read_stream(subscribe=topic, startingOffsets="earliest", minPartitions="6")
    found: list[Any] = []

    def batch(rows: Any, _number: int) -> None:
        if not found:
            found.extend([rows.rdd.getNumPartitions(), values(rows)])

    where = str(world.directory / "min-partitions")
    query = frame.writeStream.foreachBatch(batch).option("checkpointLocation", where).trigger(availableNow=True).start()
    query.awaitTermination(150)
    return found


@SUITE.scenario("SPARK-56243: malformed record timestamp throws detailed error", FAILS, core=True)
def _(world: World) -> Any:
    """Nanoseconds instead of milliseconds."""
    topic = world.topic()
    world.send(topic, [1], timestamp=1_712_345_678_123_456_789)
    return world.fails(lambda: world.stream(subscribe=topic, startingOffsets="earliest").run().values())


@SUITE.scenario("default config of includeHeader doesn't break existing query from Spark 2.4", [1, 2])
def _(world: World) -> Any:
    topic = world.topic()
    write(world.servers, topic, [Outgoing(b"1", headers=[("a", b"b")])])
    query = world.stream(subscribe=topic, startingOffsets="earliest").run()
    write(world.servers, topic, [Outgoing(b"2", headers=[("a", b"b")])])
    return query.run().values()


@SUITE.scenario(
    "test custom metrics - with rate limit",
    ["avgOffsetsBehindLatest", "maxOffsetsBehindLatest", "minOffsetsBehindLatest"],
)
def _(world: World) -> Any:
    topic = world.topic()
    world.send(topic, range(10))
    query = world.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=5).run()
    return sorted(query.progress[-1]["sources"][0].get("metrics") or {})


@SUITE.scenario("test custom metrics - with rate limit: the latest offset", 10)
def _(world: World) -> Any:
    topic = world.topic()
    world.send(topic, range(10))
    query = world.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=5).run()
    latest = query.progress[0]["sources"][0]["latestOffset"]
    return (json.loads(latest) if isinstance(latest, str) else latest)[topic]["0"]


@SUITE.scenario("cannot stop Kafka stream", "stopped")
def _(world: World) -> Any:
    topic = world.topic(5)
    world.send(topic, range(101, 106))
    world.stream(subscribePattern=f"{topic}.*").start().stop()
    return "stopped"


@SUITE.scenario(
    "SPARK-53560: no crash looping during uncommitted batch retry in AvailableNow trigger", [FAILS, FAILS, 6]
)
def _(world: World) -> Any:
    """A partition is added before the failed batch is repeated."""
    topic = world.topic()
    world.send(topic, range(1, 8))
    frame = world.read_stream(subscribe=topic, startingOffsets="earliest")
    number = "cast(cast(value as string) as int)"
    checked = frame.selectExpr(f"cast(if({number} = 7, raise_error('error for 7'), {number}) as string) as value")
    query = world.stream(checked)
    found = [world.fails(query.run)]
    world.admin.add_partitions(topic, 2)
    found.append(world.fails(query.run))
    passing = Query(world, frame.where(f"{number} != 7"))
    passing.where = query.where
    return [*found, len(passing.run().values())]


@SUITE.scenario("Kafka column types", [None, b"1".decode(), 0, 0, True, 0, [["a", "b"], ["c", "d"]]])
def _(world: World) -> Any:
    topic = world.topic()
    write(world.servers, topic, [Outgoing(b"1", headers=[("a", b"b"), ("c", b"d")], timestamp=1_700_000_000_123)])
    query = world.stream(subscribe=topic, startingOffsets="earliest", includeHeaders="true").run()
    row = world.spark.read.parquet(str(query.where / "out")).collect()[0]
    exact = row.timestamp.timestamp() == 1_700_000_000.123 and row.topic == topic
    headers = [[each.key, each.value.decode()] for each in row.headers]
    return [row.key, row.value.decode(), row.partition, row.offset, exact, row.timestampType, headers]


@SUITE.scenario("async progress tracking", list(range(20)))
def _(world: World) -> Any:
    """The sink is that of the same format."""
    source, target = world.topic(), world.topic()
    frame = world.read_stream(subscribe=source, startingOffsets="earliest").select("value")
    writer = frame.writeStream.format(world.source).options(**world.options({"topic": target}))
    where = str(world.directory / "async")

    def run() -> Any:
        query = writer.option("checkpointLocation", where).option("asyncProgressTrackingEnabled", "true").start()
        for numbers in (range(10), range(10, 20)):
            world.send(source, numbers)
            query.processAllAvailable()
        query.stop()
        return values(world.read(subscribe=target))

    return world.fails(run)


@SUITE.scenario("failOnDataLoss=false should not return duplicated records: continuous processing", list(range(10)))
def _(world: World) -> Any:
    topic = world.topic()
    world.send(topic, range(10))
    frame = world.read_stream(subscribe=topic, startingOffsets="earliest")
    name = unique("continuous").replace("-", "_")

    def run() -> Any:
        query = frame.writeStream.format("memory").queryName(name).trigger(continuous="1 second").start()
        while query.isActive and world.spark.table(name).count() < 10:
            query.awaitTermination(0.2)
        query.stop()
        if (error := query.exception()) is not None:
            raise error
        return values(world.spark.table(name))

    return world.fails(run)


@SUITE.scenario("failOnDataLoss=false should not return duplicated records: microbatch v2", list(range(20, 50)))
def _(world: World) -> Any:
    topic = world.topic()
    world.send(topic, range(50))
    world.admin.delete_records(topic, 20)
    start = by_partition(topic, [0])
    return world.stream(subscribe=topic, startingOffsets=start, failOnDataLoss="false").run().values()


# -- not in Spark's suites: found by using both sources --------------------------------------------------------------


@SUITE.scenario("a first batch that failed is repeated after retention", [FAILS, FAILS])
def _(world: World) -> Any:
    topic = world.topic()
    world.send(topic, range(10))
    frame = world.read_stream(subscribe=topic, startingOffsets=by_partition(topic, [-2]))
    failing = world.stream(frame.selectExpr("cast(raise_error('broken off') as string) as value"))
    found = [world.fails(failing.run)]
    world.admin.delete_records(topic, 6)
    again = Query(world, frame)
    again.where = failing.where
    return [*found, world.fails(lambda: again.run().values())]


@SUITE.scenario("a checkpoint with the start of headrace is resumed by both", [[4, 5, 6, 7, 8, 9], list(range(4, 12))])
def _(world: World) -> Any:
    """headrace writes the first batch, and the source of the scenario the second one."""
    topic = world.topic()
    world.send(topic, range(10))
    options = world.options({"subscribe": topic, "startingOffsets": by_partition(topic, [4])})
    query = world.stream(world.spark.readStream.format("headrace").options(**options).load()).run()
    found = [query.values()]
    world.send(topic, [10, 11])
    other = world.stream(subscribe=topic, startingOffsets=by_partition(topic, [4]))
    other.where = query.where
    return [*found, other.run().values()]


@SUITE.scenario("a partition that was removed from assign", FAILS)
def _(world: World) -> Any:
    topic = world.topic(2)
    query = world.stream(assign=json.dumps({topic: [0, 1]}), startingOffsets="earliest").run()
    other = world.stream(assign=json.dumps({topic: [0]}), startingOffsets="earliest")
    other.where = query.where
    return world.fails(lambda: other.run().values())
