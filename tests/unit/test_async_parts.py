"""What the tasks, the gate and the commits promise to each other, without a real broker."""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import threading
import time
import uuid
from types import SimpleNamespace

import pytest

from headrace import AsyncConsumer, Consumer, TopicPartition
from headrace.aio.calls import Gate
from headrace.aio.decoder import Decoder, Delivery
from headrace.aio.intake import Intake
from headrace.aio.log_offsets import EpochEnd
from headrace.aio.positions import Positions, _timestamp
from headrace.config import ConsumerConfig
from headrace.errors import (
    AuthorizationError,
    ClosedError,
    CorruptRecordError,
    HeadraceError,
    KafkaError,
    LogTruncationError,
    NetworkError,
    OffsetOutOfRangeError,
    WakeupError,
)
from headrace.machines.cluster import Leader, Partition, Topic
from headrace.machines.partition import Phase, Position
from headrace.offsets import LAST_OFFSET, OffsetSet
from headrace.protocol.codes import kafka_error
from headrace.protocol.messages import API_VERSIONS, FETCH, METADATA
from headrace.records import decode
from headrace.types import Node
from support.batches import Entry, encode_batch
from support.fake_broker import FakeBroker, answer, api_versions, run

TP = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID(int=1)


def intake() -> Intake:
    made = Intake(ConsumerConfig.parse(bootstrap_servers="b:1"))
    made.assignment.assign([TP])
    return made


def batch(start: int, end: int, epoch: int):
    data = encode_batch([Entry(value=b"x") for _ in range(end - start)], base_offset=start, leader_epoch=epoch)
    return decode(data, topic=TP.topic, partition=TP.partition, position=start)


def test_a_wakeup_that_was_taken_does_not_cancel_a_later_task():
    async def main():
        gate = Gate()
        gate.wakeup()
        with pytest.raises(WakeupError):
            async with gate.interruptible():
                pass
        gate.wakeup()
        await asyncio.sleep(0)  # a cancellation would arrive here
        with pytest.raises(WakeupError):
            gate.consume_wakeup()

    run(main())


def test_wakeup_in_a_signal_handler_ends_the_poll_that_it_interrupts():
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")
    consumer.assign([TP])
    before = signal.signal(signal.SIGALRM, lambda *_: consumer.wakeup())
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        began = time.monotonic()
        woken = 0
        while time.monotonic() < began + 1.0 or woken <= 10:
            assert time.monotonic() < began + 60
            try:
                consumer.poll(0.0001)
            except WakeupError:
                woken += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        consumer.close()


def test_a_call_after_close_starts_no_thread():
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")
    consumer.close()
    before = threading.active_count()
    with pytest.raises(ClosedError):
        consumer.list_topics()
    assert threading.active_count() <= before
    consumer.close()


@pytest.mark.parametrize(
    "error",
    [
        CorruptRecordError("m", TP, 5),
        KafkaError(1, "X", False, "m"),
        OffsetOutOfRangeError("m", {TP: 5}),
        LogTruncationError("m", {TP: None}),
        NetworkError("m"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_all_denied_topics_are_in_one_error_which_is_not_raised_again_at_once():
    shared = intake()
    state = shared.assignment.state(TP)
    state.seek(Position(0))
    state.refuse(kafka_error(29, f"Fetch of {TP} at offset 0"), time.monotonic())
    shared.denied = frozenset({"b", "a"})
    with pytest.raises(AuthorizationError, match=r"topics a, b, t: TOPIC_AUTHORIZATION_FAILED \(29\)") as caught:
        shared.take(10)
    assert caught.value.topics == {"a", "b", "t"}
    assert shared.take(10) is None
    shared.denied = frozenset({"a", "b", "news"})
    with pytest.raises(AuthorizationError, match="news"):
        shared.take(10)
    assert shared.take(10) is None


def test_an_epoch_that_moved_while_its_end_was_asked_for_is_asked_again():
    """Else the end of the older epoch, which lies below the position, would be taken for a truncation."""
    shared = intake()
    shared.cluster.brokers[1] = Node(1, "b", 1)
    partition = Partition(Leader(1, 3), (1,), (1,), ())
    shared.cluster.topics["t"] = Topic("t", TOPIC_ID, False, {0: partition})
    state = shared.assignment.state(TP)
    state.seek(Position(0))
    state.arrived(100, 100)
    state.decoded(0, 100, batch(0, 100, epoch=1), 100)
    state.arrived(100, 200)
    shared.assignment.follow(shared.cluster)
    assert state.phase is Phase.VALIDATE

    class Offsets:
        async def epoch_ends(self, epochs):
            assert epochs == {TP: 1}
            state.decoded(100, 100, batch(100, 200, epoch=2), 200)
            state.take(150)
            return {TP: EpochEnd(1, 100)}

    async def main():
        positions = Positions(None, shared, Offsets(), None)
        assert await positions._by_epoch({TP: state.continuity}) is None
        assert positions._wanted.is_set()

    run(main())
    assert state.position.offset == 150
    assert state.phase is Phase.VALIDATE


@pytest.mark.parametrize(
    ("known", "stop", "still"),
    [
        (OffsetSet(300, [(120, 130), (210, 220)]), LAST_OFFSET, OffsetSet(170, [(120, 130)])),
        (OffsetSet(LAST_OFFSET, [(0, 200)]), 200, OffsetSet(LAST_OFFSET, [(0, 200)])),
        (None, LAST_OFFSET, None),
    ],
    ids=["done beyond the position", "a range with an end", "nothing"],
)
def test_a_log_cut_off_behind_the_position_keeps_what_is_known_before(known, stop, still):
    shared = intake()
    state = shared.assignment.state(TP)
    state.seek(Position(100))
    state.known, state.stop = known, stop
    state.arrived(100, 180)
    positions = Positions(None, shared, None, None)
    positions._judge(state, EpochEnd(1, 170), 2)
    assert (state.position, state.fetch_offset, state.known, state.stop) == (Position(100), 100, still, stop)


def test_a_duration_from_before_1970_is_the_beginning():
    assert _timestamp("by_duration:p30000d") == 0


def test_commits_arrive_in_the_order_in_which_they_were_asked_for():
    arrived = []

    async def commit(offsets, _):
        await asyncio.sleep(0)
        arrived.append(offsets[TP].offset)

    async def main():
        async with AsyncConsumer(bootstrap_servers="127.0.0.1:1", group_id="g", enable_auto_commit=False) as consumer:
            consumer._start().coordinator.commit = commit
            consumer.commit_async({TP: 1})
            consumer.commit_async({TP: 2})
            await consumer.commit({TP: 3})

    run(main())
    assert arrived == [1, 2, 3]


def test_a_task_that_ends_by_a_bug_of_ours_is_told_by_poll(caplog):
    async def main():
        async with AsyncConsumer(bootstrap_servers="127.0.0.1:1") as consumer:
            consumer.assign([TP])
            engine = consumer._start()

            async def broken():
                raise TypeError("nobody thought of this")

            engine.positions._round = broken
            with pytest.raises(HeadraceError, match="nobody thought of this"):
                await consumer.poll(50.0)

    run(main())


def delivered(made: Intake, start: int, end: int) -> list[int]:
    """What a poll returns when these were fetched."""
    state = made.assignment.state(TP)
    if state.position is None:
        state.seek(Position(start))
    state.arrived(100, end)
    state.decoded(start, 100, batch(start, end, 0), end)
    made.poll_begins()
    records = made.take(500)
    made.handover.is_confirmed = True
    assert records is not None
    return [record.offset for record in records]


def position_of(made: Intake) -> int:
    position = made.assignment.state(TP).position
    assert position is not None
    return position.offset


def test_records_can_be_taken_back_after_their_buffer_was_dropped():
    """As that of a paused partition is if others need the room."""
    made = intake()
    delivered(made, 0, 10)
    made.assignment.state(TP).refetch()
    made.take_back()
    assert position_of(made) == 0


def test_the_last_record_of_an_iteration_can_be_taken_back_after_its_buffer_was_dropped():
    made = intake()
    state = made.assignment.state(TP)
    state.seek(Position(0))
    state.arrived(100, 10)
    state.decoded(0, 100, batch(0, 10, 0), 10)
    made.poll_begins()
    walk = made.one_by_one(made.take(500))
    assert [next(walk).offset for _ in range(3)] == [0, 1, 2]
    state.refetch()
    made.take_back()
    assert position_of(made) == 2


def test_records_are_not_taken_back_after_a_seek():
    made = intake()
    delivered(made, 0, 10)
    made.move([TP], lambda state: state.seek(Position(50)))
    made.take_back()
    assert position_of(made) == 50


def test_a_commit_finishes_only_what_was_delivered_before_it():
    """Another task polls while one waits for the answer to a commit."""
    made = intake()
    delivered(made, 0, 10)
    first = made.last_delivery
    delivered(made, 10, 20)
    made.finished(None, first)
    made.take_back()
    assert position_of(made) == 10
    delivered(made, 10, 20)
    made.finished(None, made.last_delivery)
    made.take_back()
    assert position_of(made) == 20


def test_auto_commit_after_unsubscribe_does_not_use_the_loop_of_before():
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", auto_commit_interval_ms=1) as consumer:
        consumer.assign([TP])
        consumer.poll(0.0)
        consumer.unsubscribe()
        consumer.assign([TP])
        consumer.seek(TP, 5)
        time.sleep(0.005)  # an auto-commit is due by then
        assert not consumer.poll(0.0)


def test_a_consumer_belongs_to_no_loop_of_the_user():
    consumer = AsyncConsumer(bootstrap_servers="127.0.0.1:1")
    consumer.assign([TP])
    assert len(asyncio.run(consumer.poll(0.0))) == 0
    assert len(asyncio.run(consumer.poll(0.0))) == 0
    asyncio.run(consumer.close())


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_a_consumer_that_is_dropped_without_close_warns_and_ends_its_threads(kind):
    consumer = kind(bootstrap_servers="127.0.0.1:1")
    consumer.assign([TP])
    records = consumer.poll(0.0) if kind is Consumer else asyncio.run(consumer.poll(0.0))
    assert len(records) == 0
    inner = consumer if kind is AsyncConsumer else consumer._aio
    thread = inner._portal._server.thread
    assert thread.is_alive()
    last = [consumer]
    del inner, consumer
    with pytest.warns(ResourceWarning, match=rf"^unclosed {kind.__name__}: .* Call close\(\)"):
        last.clear()  # without a cycle that only the garbage collector would find
    thread.join(60)
    assert not thread.is_alive()


def test_a_consumer_that_was_closed_or_never_used_does_not_warn(recwarn):
    for is_used in (False, True):
        consumer = Consumer(bootstrap_servers="127.0.0.1:1")
        consumer.assign([TP])
        if is_used:
            consumer.poll(0.0)
            consumer.close()
        del consumer
    gc.collect()
    assert not [each for each in recwarn if each.category is ResourceWarning]


class ScriptedCluster:
    """One broker that leads two partitions of `t`. What it does with a fetch is up to the test."""

    def __init__(self, on_fetch) -> None:
        self._on_fetch = on_fetch
        self._broker = FakeBroker()

    async def __aenter__(self):
        await self._broker.__aenter__()
        self._server = asyncio.create_task(self._accept())
        return self._broker.name

    async def __aexit__(self, *problem) -> None:
        self._server.cancel()
        await asyncio.gather(self._server, return_exceptions=True)
        await self._broker.__aexit__(*problem)

    async def _accept(self) -> None:
        async with asyncio.TaskGroup() as links:
            while True:
                links.create_task(self._serve(await self._broker.accept()))

    async def _serve(self, link) -> None:
        while True:
            request = await link.receive()
            if request.api_key == API_VERSIONS.key:
                await link.reply(request, api_versions(request.version))
            elif request.api_key == METADATA.key:
                await link.reply(request, answer(METADATA, request.version, **self._metadata()))
            elif request.api_key == FETCH.key:
                await self._on_fetch(link, request)

    def _metadata(self):
        partitions = [
            {
                "error_code": 0,
                "partition_index": number,
                "leader_id": 1,
                "leader_epoch": 1,
                "replica_nodes": (1,),
                "isr_nodes": (1,),
                "offline_replicas": (),
            }
            for number in range(2)
        ]
        return {
            "throttle_time": 0,
            "brokers": [{"node_id": 1, "host": self._broker.host, "port": self._broker.port, "rack": None}],
            "cluster_id": "c",
            "controller_id": 1,
            "error_code": 0,
            "topics": [
                {"error_code": 0, "name": "t", "topic_id": TOPIC_ID, "is_internal": False, "partitions": partitions}
            ],
        }


def test_records_of_a_throttled_answer_do_not_wait_for_the_throttle():
    records = encode_batch([Entry(value=b"x" * 100) for _ in range(1000)], base_offset=0, leader_epoch=1)
    fetched = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 5000,
        "last_stable_offset": 5000,
        "aborted_transactions": None,
        "records": records,
    }

    async def on_fetch(link, request):
        topics = [{"topic_id": TOPIC_ID, "partitions": [fetched]}]
        fields = {"throttle_time": 60_000, "error_code": 0, "session_id": 0, "responses": topics}
        await link.reply(request, answer(FETCH, request.version, **fields))

    async def main():
        async with ScriptedCluster(on_fetch) as servers, AsyncConsumer(bootstrap_servers=servers) as consumer:
            consumer.assign([TP])
            consumer.seek(TP, 0)
            assert len(await consumer.poll(50.0)) == 500

    run(main())


def test_a_fetch_beside_one_that_waits_at_the_broker_waits_only_shortly_itself():
    """Both could lie there else, with nobody left to ask for a third partition."""
    asked = asyncio.Queue()

    async def on_fetch(link, request):
        partitions = [item.partition for topic in request.body.topics for item in topic.partitions]
        await asked.put((partitions, request.body.max_wait.total_seconds()))  # and never answer

    async def main():
        async with ScriptedCluster(on_fetch) as servers, AsyncConsumer(bootstrap_servers=servers) as consumer:
            consumer.assign([TP])
            consumer.seek(TP, 0)
            await consumer.poll(0.0)
            assert await asyncio.wait_for(asked.get(), 50) == ([0], 0.5)
            consumer.assign([TP, TopicPartition("t", 1)])
            consumer.seek(TopicPartition("t", 1), 0)
            assert await asyncio.wait_for(asked.get(), 50) == ([1], 0.02)

    run(main())


def test_a_frame_goes_back_once_when_nobody_wants_its_records_any_more():
    class Receiving:
        def __init__(self):
            self.given = []

        def recycle(self, frame):
            self.given.append(frame)

    connection, reply = Receiving(), SimpleNamespace(frame=bytearray(10))
    decoder = Decoder(ConsumerConfig.parse(bootstrap_servers="b:1"), intake(), lambda: None)
    decoder.submit(Delivery(reply, connection, []))
    decoder.close()
    assert connection.given == [reply.frame]
