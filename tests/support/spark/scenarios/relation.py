"""KafkaRelationSuite: batch queries."""

from __future__ import annotations

from typing import Any

from support.brokers.admin import unique
from support.brokers.produce import Outgoing, Writer, write

from .world import FAILS, Suite, World, by_partition, values

SUITE = Suite()
FIRST, SECOND, THIRD = 1_700_000_000_000, 1_700_000_001_000, 1_700_000_002_000
NEVER = 2**63 - 1


def three_partitions(world: World) -> str:
    topic = world.topic(3)
    world.send(topic, range(10), 0)
    world.send(topic, range(10, 20), 1)
    world.send(topic, [20], 2)
    return topic


def timed(world: World) -> str:
    """0 to 9 at the first time, 10 to 19 at the second, 20 to 29 at the third. The partition is the number modulo 3."""
    topic = world.topic(3)
    for start, time in ((0, FIRST), (10, SECOND), (20, THIRD)):
        for partition in range(3):
            world.send(topic, [n for n in range(start, start + 10) if n % 3 == partition], partition, time)
    return topic


@SUITE.scenario("explicit earliest to latest offsets", [list(range(21)), list(range(30))], core=True)
def _(world: World) -> Any:
    topic = three_partitions(world)
    frame = world.read(subscribe=topic, startingOffsets="earliest", endingOffsets="latest")
    before = values(frame)
    world.send(topic, range(21, 30), 2)
    return [before, values(frame)]


@SUITE.scenario("default starting and ending offsets", list(range(21)))
def _(world: World) -> Any:
    return values(world.read(subscribe=three_partitions(world)))


@SUITE.scenario("explicit offsets", [list(range(21)), list(range(21)), list(range(31))], core=True)
def _(world: World) -> Any:
    topic = three_partitions(world)
    frame = world.read(
        subscribe=topic,
        startingOffsets=by_partition(topic, (-2, -2, 0)),
        endingOffsets=by_partition(topic, (-1, -1, 1)),
    )
    found = [values(frame)]
    for number, partition in ((range(31, 40), 2), (range(21, 31), 1)):
        world.send(topic, number, partition)
        found.append(values(frame))
    return found


@SUITE.scenario(
    "default starting and ending offsets with headers",
    [["1", None], ["2", [["a", "b"], ["c", "d"]]], ["3", [["e", "f"], ["e", "g"]]]],
    core=True,
)
def _(world: World) -> Any:
    topic = world.topic(3)
    headers = [(), (("a", b"b"), ("c", b"d")), (("e", b"f"), ("e", b"g"))]
    write(world.servers, topic, [Outgoing(b"%d" % (n + 1), None, n, 0, each) for n, each in enumerate(headers)])
    rows = world.read(subscribe=topic, includeHeaders="true").collect()
    found = {
        row.value.decode(): None if row.headers is None else [[each.key, each.value.decode()] for each in row.headers]
        for row in rows
    }
    return [[value, found[value]] for value in sorted(found)]


def _three(time: int) -> tuple[int, int, int]:
    return time, time, time


# The options have a form of (name, offsets or timestamps of each partition, or a text); the values that are read.
TIMES: dict[str, tuple[dict[str, Any], Any]] = {
    "timestamp provided for starting and ending": (
        {"startingOffsetsByTimestamp": _three(SECOND), "endingOffsetsByTimestamp": _three(THIRD)},
        list(range(10, 20)),
    ),
    "timestamp provided for starting, offset provided for ending": (
        {"startingOffsetsByTimestamp": _three(FIRST), "endingOffsets": (-1, -1, 1)},
        [0, 1, 2, *(n for n in range(3, 30) if n % 3 != 2)],
    ),
    "timestamp provided for ending, offset provided for starting": (
        {"startingOffsets": (-2, -2, 0), "endingOffsetsByTimestamp": _three(THIRD)},
        list(range(20)),
    ),
    "timestamp provided for starting, ending not provided": (
        {"startingOffsetsByTimestamp": _three(SECOND)},
        list(range(10, 30)),
    ),
    "timestamp provided for ending, starting not provided": (
        {"endingOffsetsByTimestamp": _three(THIRD)},
        list(range(20)),
    ),
    "global timestamp provided for starting and ending": (
        {"startingTimestamp": SECOND, "endingTimestamp": THIRD},
        list(range(10, 20)),
    ),
    "no matched offset for timestamp - startingOffsets": (
        {"startingOffsetsByTimestamp": (SECOND, SECOND, NEVER)},
        FAILS,
    ),
    "no matched offset for timestamp - endingOffsets": (
        {"endingOffsetsByTimestamp": (SECOND, SECOND, NEVER)},
        [*range(10), *(n for n in range(10, 30) if n % 3 == 2)],
    ),
    "preferences on offset related options: global timestamp": (
        {"startingTimestamp": THIRD, "startingOffsetsByTimestamp": _three(SECOND), "startingOffsets": "earliest"},
        list(range(20, 30)),
    ),
    "preferences on offset related options: timestamp for partition": (
        {"startingOffsetsByTimestamp": _three(SECOND), "startingOffsets": "earliest"},
        list(range(10, 30)),
    ),
    "topic-partition for start offset and end offset must match": (
        {"startingOffsets": (1, 1, 1), "endingOffsets": (0, 0)},
        FAILS,
    ),
    "unresolved start offset greater than end offset": (
        {"startingOffsets": (1, 1, 1), "endingOffsets": (0, 0, 0)},
        FAILS,
    ),
    "resolved start offset greater than end offset (without latest)": (
        {"startingOffsets": (3, 3, 3), "endingOffsetsByTimestamp": _three(FIRST)},
        FAILS,
    ),
    # Not in Spark's suite.
    "global timestamps with the end before the start": (
        {"startingTimestamp": THIRD, "endingTimestamp": SECOND},
        FAILS,
    ),
}


def _timed(options: dict[str, Any], world: World) -> Any:
    topic = timed(world)
    given = {name: by_partition(topic, each) if isinstance(each, tuple) else each for name, each in options.items()}
    return world.fails(lambda: values(world.read(subscribe=topic, **given)))


for _name, (_options, _expected) in TIMES.items():
    SUITE.add(_name, _expected, lambda world, options=_options: _timed(options, world), core="resolved" in _name)


@SUITE.scenario("resolved start offset greater than end offset (with latest)", FAILS)
def _(world: World) -> Any:
    topic = world.topic(3)
    return world.fails(lambda: values(world.read(subscribe=topic, startingOffsets=by_partition(topic, (1, 1, 1)))))


@SUITE.scenario("reuse same dataframe in query", sorted([*range(11), *range(11)]), core=True)
def _(world: World) -> Any:
    topic = world.topic()
    world.send(topic, range(11))
    frame = world.read(subscribe=topic, startingOffsets="earliest", endingOffsets="latest")
    return values(frame.union(frame))


@SUITE.scenario("test late binding start offsets", [list(range(10)), list(range(10, 20))])
def _(world: World) -> Any:
    topic = world.topic()
    world.send(topic, range(10))
    frame = world.read(subscribe=topic, startingOffsets="earliest", endingOffsets="latest")
    before = values(frame)
    world.admin.delete_records(topic, 10)
    world.send(topic, range(10, 20))
    return [before, values(frame)]


def _transactions(level: str, world: World) -> Any:
    """After the first transaction has sent, has committed, the second has aborted, and the third has committed."""
    topic = world.topic()
    frame = world.read(subscribe=topic, **{"kafka.isolation.level": level})
    writer = Writer(world.servers, transactional_id=unique("tx"))

    def send(numbers: range) -> None:
        writer.producer.begin_transaction()
        writer.send(topic, [Outgoing(b"%d" % n) for n in numbers])
        writer.flush()

    send(range(1, 6))
    found = [values(frame)]
    writer.producer.commit_transaction(30)
    world.admin.wait_end(topic, 6)
    found.append(values(frame))
    send(range(6, 11))
    writer.producer.abort_transaction(30)
    world.admin.wait_end(topic, 12)
    found.append(values(frame))
    send(range(11, 16))
    writer.producer.commit_transaction(30)
    world.admin.wait_end(topic, 18)
    return [*found, values(frame)]


_FIRST, _LAST = list(range(1, 6)), list(range(11, 16))
SUITE.add(
    "read Kafka transactional messages: read_committed",
    [[], _FIRST, _FIRST, _FIRST + _LAST],
    lambda world: _transactions("read_committed", world),
)
SUITE.add(
    "read Kafka transactional messages: read_uncommitted",
    [_FIRST, _FIRST, list(range(1, 11)), list(range(1, 16))],
    lambda world: _transactions("read_uncommitted", world),
)


@SUITE.scenario("SPARK-30656: minPartitions", [7, list(range(21)), list(range(31))])
def _(world: World) -> Any:
    topic = three_partitions(world)
    frame = world.read(subscribe=topic, minPartitions="6")
    tasks, before = frame.rdd.getNumPartitions(), values(frame)
    world.send(topic, range(21, 31))
    return [tasks, before, values(frame)]


@SUITE.scenario("failOnDataLoss=false should not return duplicated records: batch v2", list(range(20, 50)))
def _(world: World) -> Any:
    """Of KafkaDontFailOnDataLossSuite."""
    topic = world.topic()
    world.send(topic, range(50))
    world.admin.delete_records(topic, 20)
    start = by_partition(topic, [0])
    return values(world.read(subscribe=topic, startingOffsets=start, failOnDataLoss="false"))
