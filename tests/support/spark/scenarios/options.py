"""Options: "bad source options", "bad batch query options", "unsupported kafka configs" and similar tests."""

from __future__ import annotations

import json
from typing import Any

from .world import FAILS, Suite, World, by_partition, values

SUITE = Suite()


def _given(options: dict[str, Any], topic: str) -> dict[str, Any]:
    return {name: str(value).replace("TOPIC", topic) for name, value in options.items()}


def _stream(options: dict[str, Any], world: World) -> Any:
    topic = world.topic()
    world.send(topic, [1])
    return world.fails(lambda: world.stream(**_given({"startingOffsets": "earliest", **options}, topic)).run().values())


def _batch(options: dict[str, Any], world: World) -> Any:
    topic = world.topic()
    world.send(topic, [1])
    return world.fails(lambda: values(world.read(**_given(options, topic))))


NAMED = {"subscribe": "TOPIC"}
# The options of a streaming query with one record, and the values that it reads.
STREAMS: dict[str, tuple[dict[str, Any], Any]] = {
    "bad source options: endingOffsets": ({**NAMED, "endingOffsets": "latest"}, FAILS),
    "bad source options: endingOffsetsByTimestamp": (
        {**NAMED, "endingOffsetsByTimestamp": '{"TOPIC":{"0":1000}}'},
        FAILS,
    ),
    "bad source options: no strategy": ({}, FAILS),
    "bad source options: two strategies": ({**NAMED, "subscribePattern": "TOPIC.*"}, FAILS),
    "bad source options: subscribe and assign": ({**NAMED, "assign": '{"a":[0]}'}, FAILS),
    "bad source options: empty assign": ({"assign": ""}, FAILS),
    "bad source options: empty subscribe": ({"subscribe": ""}, FAILS),
    "bad source options: empty pattern": ({"subscribePattern": ""}, FAILS),
    "bad source options: minOffsetsPerTrigger above maxOffsetsPerTrigger": (
        {**NAMED, "minOffsetsPerTrigger": 20, "maxOffsetsPerTrigger": 15},
        FAILS,
    ),
    **{
        f"unsupported kafka configs: {name}": ({**NAMED, f"kafka.{name}": "someValue"}, FAILS)
        for name in (
            "auto.offset.reset",
            "enable.auto.commit",
            "interceptor.classes",
            "key.deserializer",
            "value.deserializer",
        )
    },
    **{
        f"unsupported kafka configs: auto.offset.reset={value}": ({**NAMED, "kafka.auto.offset.reset": value}, FAILS)
        for value in ("none", "earliest", "latest")
    },
    "get offsets from case insensitive parameters": ({"SUBSCRIBE": "TOPIC", "startingoffsets": "earLiEst"}, [1]),
    "micro-batch mode - options should be handled as case-insensitive": (
        {**NAMED, "KAFKACONSUMER.POLLTIMEOUTMS": "1000", "MAXOFFSETSPERTRIGGER": "1"},
        [1],
    ),
    "minPartitions is supported: 1": ({**NAMED, "minPartitions": "1"}, [1]),
    "minPartitions is supported: 4": ({**NAMED, "minPartitions": "4"}, [1]),
    "minPartitions is supported: a": ({**NAMED, "minPartitions": "a"}, FAILS),
    "minPartitions is supported: -1": ({**NAMED, "minPartitions": "-1"}, FAILS),
    "isolationLevel must throw exception when invalid isolation level set": (
        {**NAMED, "kafka.isolation.level": "intentionally_invalid"},
        FAILS,
    ),
    "parsing partitions": ({"assign": '{"TOPIC":[0]}'}, [1]),
    "parsing partitions: no list": ({"assign": '{"TOPIC":0}'}, FAILS),
    "parsing partitionOffsets: no number": ({**NAMED, "startingOffsets": '{"TOPIC":{"0":"x"}}'}, FAILS),
    "AssignStrategy.assignedTopicPartitions must skip invalid partitions": ({"assign": '{"TOPIC":[0,1]}'}, [1]),
    # Not in Spark's suites.
    "maxOffsetsPerTrigger: abc": ({**NAMED, "maxOffsetsPerTrigger": "abc"}, FAILS),
    "maxOffsetsPerTrigger: a number between spaces": ({**NAMED, "maxOffsetsPerTrigger": " 4 "}, FAILS),
    "minPartitions: a number between spaces": ({**NAMED, "minPartitions": " 4 "}, FAILS),
    "startingTimestamp: a number between spaces": ({**NAMED, "startingTimestamp": " 4 "}, [1]),
    "a consumer setting of headrace behind the prefix": ({**NAMED, "kafka.enable.parallel.rebalance": "true"}, [1]),
}
BATCHES: dict[str, tuple[dict[str, Any], Any]] = {
    "bad batch query options: startingOffsets=latest": ({**NAMED, "startingOffsets": "latest"}, FAILS),
    "bad batch query options: -1 as a start": ({**NAMED, "startingOffsets": '{"TOPIC":{"0":-1}}'}, FAILS),
    "bad batch query options: endingOffsets=earliest": ({**NAMED, "endingOffsets": "earliest"}, FAILS),
    "bad batch query options: -2 as an end": ({**NAMED, "endingOffsets": '{"TOPIC":{"0":-2}}'}, FAILS),
    "bad batch query options: no strategy": ({}, FAILS),
    "bad batch query options: two strategies": ({**NAMED, "subscribePattern": "TOPIC.*"}, FAILS),
    "bad batch query options: subscribe and assign": ({**NAMED, "assign": '{"a":[0]}'}, FAILS),
    "bad batch query options: empty assign": ({"assign": ""}, FAILS),
    "bad batch query options: empty subscribe": ({"subscribe": ""}, FAILS),
    "bad batch query options: empty pattern": ({"subscribePattern": ""}, FAILS),
    "batch mode - options should be handled as case-insensitive": ({"SubScribe": "TOPIC", "MINPARTITIONS": "2"}, [1]),
    "SubscribeStrategy.assignedTopicPartitions must give back all assigned": ({"subscribe": " TOPIC , TOPIC"}, [1]),
    "maxOffsetsPerTrigger: abc, in a batch query": ({**NAMED, "maxOffsetsPerTrigger": "abc"}, [1]),
}
for _name, (_options, _expected) in STREAMS.items():
    SUITE.add(_name, _expected, lambda world, options=_options: _stream(options, world))
for _name, (_options, _expected) in BATCHES.items():
    SUITE.add(_name, _expected, lambda world, options=_options: _batch(options, world), core="prefix" in _name)


@SUITE.scenario("AssignStrategy.assignedTopicPartitions must give back all assigned", [0, 2])
def _(world: World) -> Any:
    topic = world.topic(3)
    for number in range(3):
        world.send(topic, [number], number)
    return values(world.read(assign=json.dumps({topic: [0, 2]})))


@SUITE.scenario("SubscribePatternStrategy.assignedTopicPartitions must give back all assigned", [0, 1])
def _(world: World) -> Any:
    topics = [world.topic(2) for _ in range(3)]
    for number, topic in enumerate(topics):
        world.send(topic, [number])
    return values(world.read(subscribePattern=f"{topics[0]}|{topics[1]}"))


@SUITE.scenario("parsing partitionOffsets", [2, 3])
def _(world: World) -> Any:
    topic = world.topic(2)
    world.send(topic, range(4))
    world.send(topic, [9], 1)
    query = world.stream(subscribe=topic, startingOffsets=by_partition(topic, (2, -1)))
    return query.run().values()
