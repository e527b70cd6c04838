"""Idempotent producers: each acknowledged record is in the log once, at its offset, in the order of `send`."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from headrace._record_batch import Delivery
from headrace.errors import HeadraceError

from .client import SimulatedProducer
from .world import Outcome, World, simulate

KIND = "idempotence"
TOPICS = {"t": 3}


@dataclasses.dataclass(eq=False)
class Sent:
    number: int
    partition: int
    value: bytes
    delivery: Delivery


class Program:
    """Sends numbered records to partitions at random, until it is killed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        dice = world.dice
        settings: dict[str, Any] = {
            "batch_size": dice.choice((0, 120, 1000)),
            "linger_ms": dice.choice((0, 5, 50)),
            "max_in_flight_requests_per_connection": dice.choice((1, 2, 5, 5)),
            "max_request_size": dice.choice((600, 100_000)),
            "request_timeout_ms": dice.choice((500, 5000)),
            "max_block_ms": 600_000,
        }
        settings["delivery_timeout_ms"] = settings["request_timeout_ms"] + dice.choice((100, 3000, 300_000))
        self.producer = SimulatedProducer(world.network, name, **settings)
        self.sent: list[Sent] = []
        self.must_be_delivered = settings["delivery_timeout_ms"] > 300_000

    async def run(self, count: int) -> None:
        dice = self.world.dice
        for number in range(count):
            partition = dice.randrange(TOPICS["t"])
            value = f"{self.name} {number:05}".encode() + b"." * dice.choice((0, 0, 60))
            delivery = await self.producer.send("t", value, partition=partition)
            self.sent.append(Sent(number, partition, value, delivery))
            self.world.records += 1
            if dice.random() < 0.2:
                await self.world.pause(0.0, 0.01, 0.5)
        await self.producer.flush()


def check(world: World, program: Program) -> None:
    for number in range(TOPICS["t"]):
        own = program.name.encode() + b" "
        log = dict(world.brokers.log("t", number).records())
        found = [value for value in log.values() if value.startswith(own)]
        sent = [each for each in program.sent if each.partition == number]
        values = [each.value for each in sent]
        world.check(len(set(found)) == len(found), f"{program.name}: a record is in partition {number} twice")
        world.check(found == [each for each in values if each in set(found)], f"{program.name}: out of order")
        for each in sent:
            offset = each.delivery.offset
            if each.delivery.is_done and each.delivery.error is None:
                world.check(offset is not None and log.get(offset) == each.value, f"{each.value!r} is lost")
            elif program.must_be_delivered and not program.producer.is_dead:
                raise world.violated(f"{each.value!r} was not delivered: {each.delivery.error}")


async def scenario(world: World) -> None:
    dice = world.dice
    if dice.random() < 0.3:
        world.brokers.largest_batch = 250
    programs = [Program(world, f"p{number}") for number in range(dice.choice((1, 1, 2)))]
    world.begin_trouble()
    tasks = [asyncio.create_task(each.run(dice.choice((10, 40, 100)))) for each in programs]
    if dice.random() < 0.2:
        await world.pause(0.5, 5.0)
        world.kills += 1
        world.note("kill", programs[0].name)
        tasks[0].cancel()
        await programs[0].producer.kill()
    await world.pause(1.0, 10.0, 60.0)
    world.calm()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception) and not isinstance(result, HeadraceError):
            raise result
    for program in programs:
        world.check(not program.producer.accumulator.not_done() or program.producer.is_dead, "a batch is stuck")
        await program.producer.close()
        check(world, program)


def run(seed: int) -> Outcome:
    return simulate(KIND, seed, TOPICS, 2, scenario)
