"""KafkaMicroBatchSourceSuite: where queries start, that they resume, and that they read new partitions."""

from __future__ import annotations

import json
from typing import Any

from .world import FAILS, Suite, World, by_partition

SUITE = Suite()
FIRST, SECOND = 1_700_000_000_000, 1_700_000_001_000

HOW = {
    "assign": lambda topic: {"assign": json.dumps({topic: list(range(5))})},
    "subscribing topic by name": lambda topic: {"subscribe": topic},
    "subscribing topic by pattern": lambda topic: {"subscribePattern": f"{topic}.*"},
}


def _run(world: World, topic: str, how: str, options: dict[str, Any]) -> list[list[int]]:
    """What is read at first, after a restart with records that were written meanwhile, and after that from new
    partitions (not with assign)."""
    query = world.stream(**HOW[how](topic), **options).start().process()
    world.send(topic, [100, 101], 1)
    found = [query.process().stop().values()]
    world.send(topic, [200, 201], 2)
    query.start().process()
    if how != "assign":
        world.admin.add_partitions(topic, 7)
        world.send(topic, [300], 6)
    world.send(topic, [301], 0)
    return [*found, query.process().stop().values()]


def _expected(how: str, first: list[int]) -> list[list[int]]:
    added = [] if how == "assign" else [300]
    start = [*first, 100, 101]
    return [sorted(start), sorted([*start, 200, 201, *added, 301])]


def _offsets_topic(world: World) -> str:
    topic = world.topic(5)
    for partition, numbers in enumerate(((-20, -21, -22), (-10, -11, -12), (0, 1, 2), (10, 11, 12), (20, 21, 22))):
        world.send(topic, numbers, partition)
    return topic


def _timed_topic(world: World, *, complete: bool) -> str:
    """Partition 4 has a record of the second time only if the topic is complete."""
    topic = world.topic(5)
    for partition, numbers in enumerate(((-20,), (-10,), (0, 1), (10, 11), (20, 21, 22))):
        world.send(topic, numbers, partition, FIRST)
    for partition, more in enumerate(((-21, -22), (-11, -12), (2,), (12,))):
        world.send(topic, more, partition, SECOND)
    if complete:
        world.send(topic, (23, 24), 4, SECOND)
    return topic


def _from_latest(world: World, how: str, options: dict[str, Any]) -> Any:
    topic = world.topic(5)
    world.send(topic, [-1])
    return _run(world, topic, how, {**options, "startingOffsets": "latest"})


def _from_earliest(world: World, how: str, options: dict[str, Any]) -> Any:
    topic = world.topic(5)
    world.send(topic, range(1, 4))
    return _run(world, topic, how, {**options, "startingOffsets": "earliest"})


def _from_offsets(world: World, how: str, options: dict[str, Any]) -> Any:
    topic = _offsets_topic(world)
    return _run(world, topic, how, {**options, "startingOffsets": by_partition(topic, (-2, -1, 0, 1, 2))})


def _from_timestamps(world: World, how: str, options: dict[str, Any]) -> Any:
    topic = _timed_topic(world, complete=False)
    times = by_partition(topic, (SECOND, SECOND, SECOND, SECOND, FIRST))
    return _run(world, topic, how, {**options, "startingOffsetsByTimestamp": times})


def _from_global_timestamp(world: World, how: str, options: dict[str, Any]) -> Any:
    return _run(world, _timed_topic(world, complete=True), how, {**options, "startingTimestamp": SECOND})


SECOND_ONES = [-22, -21, -12, -11, 2, 12]
STARTS = {
    "latest offsets": (_from_latest, []),
    "earliest offsets": (_from_earliest, [1, 2, 3]),
    "specific offsets": (_from_offsets, [-22, -21, -20, 0, 1, 2, 11, 12, 22]),
    "specific timestamps": (_from_timestamps, [*SECOND_ONES, 20, 21, 22]),
    "global timestamp per topic": (_from_global_timestamp, [*SECOND_ONES, 23, 24]),
}
for _how in HOW:
    for _what, (_start, _first) in STARTS.items():
        for _fails in ("true", "false"):
            SUITE.add(
                f"{_how} from {_what} (failOnDataLoss: {_fails})",
                _expected(_how, _first),
                lambda world, start=_start, how=_how, fails=_fails: start(world, how, {"failOnDataLoss": fails}),
                core=(_how, _fails) == ("subscribing topic by name", "true") and "timestamp" not in _what,
            )


def _non_matching(world: World, how: str, name: str) -> Any:
    """Without a strategy, with "error", and with "latest"."""
    topic = _timed_topic(world, complete=False)
    given = {name: SECOND if name == "startingTimestamp" else by_partition(topic, (SECOND,) * 5)}
    strategy = "startingOffsetsByTimestampStrategy"

    def run(**more: str) -> Any:
        return world.fails(lambda: world.stream(**HOW[how](topic), **given, **more).run().values())

    return [run(), run(**{strategy: "error"}), run(**{strategy: "latest"})]


for _how in ("subscribing topic by name", "subscribing topic by pattern"):
    for _what, _name in (
        ("specific timestamps", "startingOffsetsByTimestamp"),
        ("global timestamp per topic", "startingTimestamp"),
    ):
        SUITE.add(
            f"{_how} from {_what} with non-matching starting offset",
            [FAILS, FAILS, SECOND_ONES],
            lambda world, how=_how, name=_name: _non_matching(world, how, name),
        )


@SUITE.scenario("(de)serialization of initial offsets", [[], [1]])
def _(world: World) -> Any:
    topic = world.topic(5)
    query = world.stream(subscribe=topic).start().process().stop()
    found = [query.values()]
    world.send(topic, [1])
    return [*found, query.start().process().stop().values()]
