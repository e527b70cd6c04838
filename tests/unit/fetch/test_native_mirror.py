"""The native copy of a stream's request (`RepeatedFetch`, `direct_fetch.rs`) never differs from what Python plans."""

from __future__ import annotations

import socket
import uuid
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._aio.fetch.repetition import RepeatedFetch
from headrace._machines.cluster import TopicIdPartition
from headrace._machines.fetch.partition import Phase, Position
from headrace._machines.fetch.session import FetchSession, PartitionRequest
from headrace._machines.fetch.standing_fetch import FetchPlan, StandingFetch
from headrace._net._kernel import DirectResponse, FrameReceiver
from headrace._protocol.messages import FETCH
from headrace.records import decode, next_offset
from support.brokers.fake_broker import answer, frame, read_request
from support.brokers.record_batches import Entry, encode_batch
from support.harness.fetch_planner import FetchPlannerDriver
from support.harness.machine_inputs import metadata, partition, topic

PARTITIONS = 4
SESSION = 9
VERSION = 17
SIZE = 90  # of a record's value


class Stream:
    """What `_FetchStream` and `Connection` do with one request after the other, and the broker's view of it."""

    def __init__(self, driver: FetchPlannerDriver, *, keeps: bool) -> None:
        self.driver = driver
        self.fetch = StandingFetch(1, keeps=keeps)
        self.session = FetchSession()
        self.repetition = RepeatedFetch(driver.config, None)
        self.plan: FetchPlan | None = None
        self.last_id = 0
        self.is_armed = False
        self.epoch = 0
        self.believed: dict[TopicIdPartition, PartitionRequest] = {}  # by the broker
        self.connect()

    def connect(self) -> None:
        self.close()
        self.ours, self.peer = socket.socketpair()
        self.receiver = FrameReceiver(self.ours.fileno(), 0.0)

    def close(self) -> None:
        if hasattr(self, "ours"):
            self.ours.close()
            self.peer.close()

    def look(self, now: float, *, may_repeat: bool, is_lost: bool) -> None:
        if self.plan is not None:
            return
        plan = self.driver.fetching.plan(self.fetch, now)
        if plan is None:
            return
        self.plan = plan
        if is_lost:  # while connecting, or as `_unsent`
            self.fail()
            return
        request = self.session.request(plan.wants, plan.changed)
        self.repetition.planned(plan)
        self.last_id += 1
        self.note(request.epoch, request.send, request.forget)
        may_repeat = may_repeat and self.driver.fetching.has_room
        if self.fetch.keeps and plan.parked and may_repeat and request.epoch > 0:
            room = self.driver.fetching.room_for_repetition
            self.repetition.prepare(plan, request, version=VERSION, max_wait_ms=7, room=room)
            self.receiver.arm(self.repetition.fetch, self.last_id)
            self.is_armed = True

    def note(self, epoch: int, send: Any, forget: Any = ()) -> None:
        assert self.plan is not None
        if epoch == 0:
            self.believed.clear()
        else:
            assert epoch == self.epoch + 1
        self.epoch = epoch
        self.believed.update(send)
        for tip in forget:
            del self.believed[tip]
        assert self.believed == self.plan.wants

    def fail(self) -> None:
        if self.plan is not None:
            assert self.receiver.disarm() == (self.last_id if self.is_armed else None)
            self.is_armed = False
            self.driver.fetching.failed(self.plan)
            self.session.broken()
            self.plan = None
            self.connect()

    def answer(self, now: float, numbers: list[int], *, has_records: bool, is_usual: bool, has_ended: bool) -> None:
        if self.plan is None:
            return
        topics: dict[uuid.UUID, list[dict[str, Any]]] = {}
        for tip, want in self.believed.items():
            if tip.partition in numbers:
                value = f"{tip.topic_id.int}-{tip.partition}".encode().ljust(SIZE)
                records = encode_batch([Entry(value=value)] * 2, base_offset=want.offset) if has_records else None
                end = want.offset + 2 * has_records
                topics.setdefault(tip.topic_id, []).append(
                    {
                        "partition_index": tip.partition,
                        "error_code": 0,
                        "high_watermark": end if is_usual else end + 1,
                        "last_stable_offset": end,
                        "log_start_offset": 0,
                        "aborted_transactions": None,
                        "records": records,
                    }
                )
        responses = [{"topic_id": id, "partitions": items} for id, items in topics.items()]
        body = answer(FETCH, VERSION, throttle_time=0, error_code=0, session_id=SESSION, responses=responses)
        if self.is_armed:
            sent = frame(self.last_id, body)
            self.peer.sendall(sent)
            received = self.receiver.receive()
            if isinstance(received, DirectResponse):
                assert is_usual or not topics
                self.repeated(received, now, has_ended=has_ended)
                return
            assert received == (len(sent) - 4, sent[4:])
            assert (not is_usual and topics) or has_records, "no room is no reason without records"
            self.is_armed = False
            assert self.receiver.disarm() is None
        plan, self.plan = self.plan, None
        fetching = self.driver.fetching
        found, _, _ = fetching.answered(plan, body, now)
        self.session.answered(0, SESSION)
        for asked, item in found:
            arrival = fetching.arrived(asked, item, next_offset(item.records, asked.offset))
            batch = decode(item.records, topic=asked.tp.topic, partition=asked.tp.partition, position=asked.offset)
            state = self.driver.assignment.state(asked.tp)
            state.decoded(arrival.offset, arrival.room, batch, arrival.next_offset)

    def repeated(self, response: DirectResponse, now: float, *, has_ended: bool) -> None:
        assert self.plan is not None
        raw = self.peer.recv(65536)
        request = read_request(raw[4:])
        self.last_id += 1
        assert (request.correlation_id, response.correlation_id) == (self.last_id, self.last_id)
        found = self.driver.fetching.repeated(self.plan, response.partitions, now)
        assert found is not None
        self.plan = found.plan
        self.session.repeated(found.sent)
        named = {
            TopicIdPartition(each.topic_id, item.partition): PartitionRequest(
                item.fetch_offset, item.current_leader_epoch, item.partition_max_bytes
            )
            for each in request.body.topics
            for item in each.partitions
        }
        assert named == found.sent
        assert (request.body.session_id, request.body.max_bytes) == (SESSION, self.plan.max_bytes)
        self.note(request.body.session_epoch, named)
        if has_ended or not found.may_continue:
            assert self.receiver.disarm() == self.last_id
            self.is_armed = False


STEP = st.tuples(
    st.sampled_from(
        ["look"] * 5
        + ["answer"] * 10
        + ["unusual", "look behind", "answer behind", "fail", "take", "take", "pause", "resume"]
        + ["seek", "lead", "assign", "recreate", "wait"]
    ),
    st.integers(0, PARTITIONS - 1),
    st.integers(0, 15),
)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.lists(STEP, min_size=10, max_size=80), st.sampled_from([1_500, 5_000, 100_000]))
def test_the_request_that_is_repeated_is_the_one_that_python_knows(
    steps: list[tuple[str, int, int]], budget: int
) -> None:
    """Whatever happens between responses: the broker's session has what the plan wants, the native requests are those
    that Python notes, and polls return each offset once, in order, of the topic that is assigned."""
    driver = FetchPlannerDriver(
        [1] * PARTITIONS, max_partition_fetch_bytes=300, fetch_max_bytes=5_000, queued_max_bytes=budget
    )
    ahead, behind = Stream(driver, keeps=True), Stream(driver, keeps=False)
    now, epoch, topic_id = 0.0, 5, 1
    try:
        for what, one, other in [("look", 0, 2), ("answer", 1, 0), ("look", 0, 2), *steps]:  # then a fetch is repeated
            subset = [number for number in range(PARTITIONS) if other >> number & 1]
            if what == "look":
                ahead.look(now, may_repeat=other > 1, is_lost=other == 3)
            elif what == "answer":
                ahead.answer(now, subset, has_records=one > 0, is_usual=True, has_ended=other == 9 and one == 1)
            elif what == "unusual":
                ahead.answer(now, subset, has_records=one > 0, is_usual=False, has_ended=False)
            elif what == "look behind" and ahead.plan is not None and ahead.plan.parked:
                behind.look(now, may_repeat=False, is_lost=other == 3)
            elif what == "answer behind":
                behind.answer(now, subset, has_records=one > 0, is_usual=True, has_ended=False)
            elif what == "fail":
                (behind if one == 1 else ahead).fail()
            elif what == "take":
                take(driver, other, topic_id)
            elif what in ("lead", "recreate"):
                epoch += 1
                topic_id += what == "recreate"
                leaders = [partition(n, leader=2 if n == one and other % 2 else 1, epoch=epoch) for n in range(4)]
                driver.cluster.apply(metadata(topic(*leaders, id=uuid.UUID(int=topic_id)), brokers=(1, 2)))
                driver.assignment.follow(driver.cluster)
                for each in driver.assignment:
                    if each.phase is Phase.VALIDATE:
                        each.validated(epoch)
                    elif each.phase is not Phase.READY:
                        each.seek(Position(0))
            elif what == "wait":
                now += 0.3
            else:
                driver.user_step(what, one, other)
        for stream in (ahead, behind):
            stream.fail()
        assert driver.fetching._reserved == 0
    finally:
        ahead.close()
        behind.close()


def take(driver: FetchPlannerDriver, limit: int, topic_id: int) -> None:
    positions = {state.tp: state.position for state in driver.assignment}
    for chunk in driver.assignment.take(limit, []):
        for record in chunk:  # type: ignore[attr-defined]
            tp = driver.partitions[record.partition]
            position = positions[tp]
            assert position is not None
            assert record.offset == position.offset
            assert record.value.strip() == f"{topic_id}-{record.partition}".encode()
            positions[tp] = Position(record.offset + 1)
