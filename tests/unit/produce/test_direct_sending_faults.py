"""Records that the caller's thread sends itself: interrupts, cancellation, and everything at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop
from kio.schema.errors import ErrorCode

from headrace import AsyncProducer, Producer
from headrace._aio.produce import direct
from headrace._protocol.messages import INIT_PRODUCER_ID
from support.brokers.produce_broker import Act, ProduceBroker
from support.harness.direct_sending import QUICK, direct_count, warmed_up
from support.harness.interrupts import Interrupter, interrupted_everywhere, skip_if_locks_stay_held
from support.harness.waiting import Rounds, wait_for

pytestmark = pytest.mark.timeout(120)

SEEDS = 150 if os.environ.get("SOAK") else 12


@pytest.fixture
def broker() -> Iterator[ProduceBroker]:
    with ProduceBroker() as started:
        yield started


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are lent after each single record, also where threads take turns."""
    monkeypatch.setattr(direct, "_MOST_ALONE", 1)


async def awaited(delivery: Any) -> Any:
    async with asyncio.timeout(20):
        return await delivery


# -- interrupts --------------------------------------------------------------------------------------------------------


def test_a_direct_record_that_is_interrupted_anywhere_is_delivered_once(broker: ProduceBroker) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        accepted = []

        def scenario(at: int) -> bool:
            warmed_up(producer)
            before = direct_count(producer)
            value = b"%d" % at
            with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
                delivery = producer.send("t", value, partition=0)
                accepted.append((value, delivery))
                delivery.result(20)
            wait_for("nothing pending", lambda: producer.metrics()["batches_pending"] == 0)
            assert all(each.is_done for _, each in accepted)
            assert direct_count(producer) > before or interrupter.has_raised
            return interrupter.has_raised

        interrupted_everywhere(scenario, more_than=5)
    found = broker.values()
    assert all(found[each.offset] == value for value, each in accepted)
    assert len([each for each in found if each != b"first"]) == len({each for each in found if each != b"first"})


class Interrupted(BaseException):
    pass


def test_signals_while_a_thread_waits_for_a_direct_record_lose_nothing(broker: ProduceBroker) -> None:
    skip_if_locks_stay_held()

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    dice, accepted, rounds = random.Random(5), [], Rounds("interrupts", 100, at_least=1500)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
            broker.plan = lambda: Act(delay=dice.choice([0, 0.001]))
            warmed_up(producer)
            interrupted = 0
            for number in rounds:
                try:
                    signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, 0.002))
                    accepted.append((b"%d" % number, producer.send("t", b"%d" % number, partition=0)))
                    accepted[-1][1].result(20)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    interrupted += 1
                rounds.met = interrupted if direct_count(producer) > 20 else 0  # a busy machine lends less often
            signal.setitimer(signal.ITIMER_REAL, 0)
            producer.flush(timeout=20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    found = broker.values()
    numbers = [int(each) for each in found[1:]]
    assert numbers == sorted(set(numbers)), "duplicated or out of order"
    assert all(found[each.offset] == value for value, each in accepted)


# -- asyncio -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_direct_records_areawaited(broker: ProduceBroker, runs: Any) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=broker.servers, **QUICK) as producer:
            rounds = Rounds("direct records", 20, at_least=50)
            for number in rounds:
                delivery = await producer.send("t", b"%d" % number, partition=0)
                if number % 5 == 0:  # several tasks
                    await asyncio.gather(*(awaited(delivery) for _ in range(3)))
                elif number % 7 == 0:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.0001):
                            await delivery
                assert (await awaited(delivery)).offset == number
                rounds.met = direct_count(producer)

    runs(main())
    found = broker.values()
    assert found == [b"%d" % number for number in range(len(found))]


# -- everything at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_record_is_appended_once_and_in_order_whatever_happens(seed: int) -> None:
    dice = random.Random(seed)
    chances = {
        Act(is_lost=True, is_cut=True): 0.01,
        Act(is_cut=True): 0.02,
        Act(code=ErrorCode.not_leader_or_follower): 0.01,
        Act(code=ErrorCode.not_enough_replicas): 0.01,
        Act(delay=0.008): 0.02,
        Act(pieces=3): 0.05,
        Act(throttle_ms=3): 0.02,
    }

    def plan() -> Act:
        (act,) = dice.choices([*chances, Act()], [*chances.values(), 1 - sum(chances.values())])
        return act

    threads, records = dice.choice([(1, 150), (2, 100), (3, 60)]), []
    errors: list[BaseException] = []
    with ProduceBroker(partitions=2) as broker:
        broker.plan = plan
        with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:

            def send(name: int) -> None:
                own = random.Random(f"{seed} {name}")
                try:
                    for number in range(threads[1]):
                        partition = own.randrange(2)
                        value = b"%d %d" % (name, number)
                        delivery = producer.send("t", value, partition=partition)
                        records.append((value, partition, delivery))
                        match own.randrange(8):
                            case 0:
                                producer.flush(timeout=30)
                            case 1 | 2:
                                pass
                            case 3:
                                time.sleep(own.uniform(0, 0.01))
                            case _:
                                delivery.result(30)
                except BaseException as error:  # noqa: BLE001  # the test fails with it
                    errors.append(error)

            working = [threading.Thread(target=send, args=(name,)) for name in range(threads[0])]
            for thread in working:
                thread.start()
            for thread in working:
                thread.join()
            producer.flush(timeout=30)
            metrics = producer.metrics()
            assert metrics["buffered_bytes"] == metrics["batches_pending"] == 0
        assert not errors, errors[0]
        for value, partition, delivery in records:
            assert broker.values(partition)[delivery.offset] == value
        for partition in range(2):
            found = broker.values(partition)
            assert len(found) == len(set(found)) == sum(1 for each in records if each[1] == partition)
            for name in range(threads[0]):
                numbers = [int(each.split()[1]) for each in found if each.startswith(b"%d " % name)]
                assert numbers == sorted(numbers), "out of order"
    assert broker.count(INIT_PRODUCER_ID.key) == 1
