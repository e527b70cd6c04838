"""What is fetched from whom, within which budget, and what answers mean."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.config import ConsumerConfig
from headrace.errors import KafkaError
from headrace.machines.assignment import Assignment
from headrace.machines.cluster import Cluster, Leader
from headrace.machines.fetching import Asked, Fetching, Plan
from headrace.machines.partition import OutOfRange, PartitionState, Phase, Position, PreferredReplica
from headrace.machines.session import Slot, Want
from headrace.protocol.messages import FETCH
from headrace.types import Node, TopicPartition
from support.fake_broker import answer
from support.machines import FakeChunk, cluster_of, metadata, partition, topic

TOPIC = uuid.UUID(int=1)
KB = 1024


class Scene:
    """Some partitions of one topic, each led by the broker of that number, read from offset 0."""

    def __init__(self, leaders: list[int], **settings: Any) -> None:
        config = {"max_partition_fetch_bytes": 100 * KB, "fetch_max_bytes": 1000 * KB, "queued_max_bytes": 6000 * KB}
        self.config = ConsumerConfig.parse(bootstrap_servers="b:1", **{**config, **settings})
        nodes = tuple({*leaders, 1, 2})
        self.cluster: Cluster = cluster_of(
            topic(*(partition(number, leader=leader) for number, leader in enumerate(leaders))), brokers=nodes
        )
        self.partitions = [TopicPartition("t", number) for number in range(len(leaders))]
        self.assignment = Assignment("latest", "fair", 2 * self.config.max_partition_fetch_bytes)
        self.assignment.assign(self.partitions)
        for state in self.assignment:
            state.seek(Position(0))
        self.assignment.follow(self.cluster)
        self.fetching = Fetching(self.config, self.assignment, self.cluster)

    def state(self, number: int = 0) -> PartitionState:
        return self.assignment.state(self.partitions[number])

    def plan(self, node: int = 1, now: float = 0.0) -> Plan:
        plan = self.fetching.plan(node, now)
        assert plan is not None
        return plan

    def asked(self, node: int = 1, now: float = 0.0) -> list[int]:
        """The partitions in the next fetch, in their order; an empty list if there is none."""
        plan = self.fetching.plan(node, now)
        return [] if plan is None else [slot.partition for slot in plan.wants]

    def answered(self, plan: Plan, *items: dict[str, Any], node: int = 1, now: float = 0.0, **rest: Any) -> Any:
        return self.fetching.answered(node, plan, fetched(*items, **rest), now)


def data(number: int = 0, code: int = 0, records: bytes | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "partition_index": number,
        "error_code": code,
        "high_watermark": 50,
        "last_stable_offset": 40,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "records": records,
        **fields,
    }


def fetched(*items: dict[str, Any], node_endpoints: Any = (), version: int = 18) -> Any:
    responses = [{"topic_id": TOPIC, "partitions": items}]
    return answer(
        FETCH, version, throttle_time=0, error_code=0, session_id=0, responses=responses, node_endpoints=node_endpoints
    )


# -- who is asked for --------------------------------------------------------------------------------------------


def test_each_broker_is_asked_for_what_it_leads() -> None:
    scene = Scene([1, 2, 1])
    assert scene.fetching.nodes(0.0) == {1, 2}
    plan = scene.plan(1)
    assert plan.wants == {Slot(TOPIC, 0): Want(0, 5, 100 * KB), Slot(TOPIC, 2): Want(0, 5, 100 * KB)}
    assert plan.asked[Slot(TOPIC, 2)] == Asked(scene.partitions[2], scene.state(2).continuity, 0)
    assert scene.asked(2) == [1]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda state: setattr(state, "phase", Phase.VALIDATE), id="not ready"),
        pytest.param(lambda state: setattr(state, "in_flight", True), id="in flight"),
        pytest.param(lambda state: setattr(state, "paused", True), id="paused"),
        pytest.param(lambda state: setattr(state, "fault", OutOfRange(0)), id="at fault"),
        pytest.param(lambda state: setattr(state, "topic_id", None), id="of an unknown topic"),
        pytest.param(lambda state: setattr(state, "backoff_until", 1.0), id="waiting out a backoff"),
        pytest.param(lambda state: setattr(state, "retained", 200 * KB), id="well filled"),
        pytest.param(lambda state: setattr(state, "undecoded", 200 * KB), id="being decoded"),
    ],
)
def test_who_is_not_asked_for(change: Any) -> None:
    scene = Scene([1, 1])
    change(scene.state(0))
    assert scene.asked() == [1], "and it does not stop the other"


def test_the_backoff_ends() -> None:
    scene = Scene([1])
    scene.state().backoff_until = 1.5
    assert scene.asked(now=1.0) == []
    assert scene.fetching.next_wake(1.0) == 1.5
    assert scene.asked(now=1.5) == [0]
    assert scene.fetching.next_wake(1.5) is None


def test_nobody_leads() -> None:
    scene = Scene([1])
    scene.cluster.apply(metadata(topic(partition(0, leader=-1, epoch=6)), brokers=(1,)))
    assert scene.fetching.nodes(0.0) == set()
    assert scene.asked() == []


def test_who_waited_longest_comes_first() -> None:
    scene = Scene([1, 1, 1])
    plan = scene.plan()
    scene.answered(plan, data(1, records=b"x"), data(0, records=b"x"))
    assert scene.asked() == [2, 1, 0]


def test_at_most_one_fetch_at_a_time() -> None:
    scene = Scene([1])
    plan = scene.plan()
    assert scene.asked() == []
    scene.answered(plan)
    assert scene.asked() == [0], "an answer that leaves it out has no news of it"


def test_whether_the_answer_will_come_at_once() -> None:
    scene = Scene([1, 1])
    plan = scene.plan()
    assert plan.parked, "nothing is known of the log's end"
    scene.answered(plan, data(0))
    assert not scene.plan().parked, "partition 0 is at 0 of 50"


# -- the budget --------------------------------------------------------------------------------------------------


def test_a_fetch_asks_for_what_its_partitions_can_use() -> None:
    assert Scene([1, 1]).plan().max_bytes == 200 * KB
    assert Scene([1] * 30).plan().max_bytes <= 1000 * KB


def test_what_is_held_and_reserved_comes_off() -> None:
    scene = Scene([1, 1, 2], queued_max_bytes=600 * KB)
    scene.state(0).retained = 150 * KB
    scene.state(1).undecoded = 50 * KB  # it will take three times as much, as far as is known
    scene.state(2).readable_end = 9
    assert scene.plan(2).max_bytes == 100 * KB
    assert scene.fetching.plan(1, 0.0) is None, "(600 - 150 - 3 * 50 - 3 * 100) / 3 are left"
    assert scene.fetching.is_starved


def test_expansion_is_measured() -> None:
    scene = Scene([1, 1], queued_max_bytes=300 * KB)
    assert scene.plan().max_bytes == 100 * KB
    scene = Scene([1, 1], queued_max_bytes=300 * KB)
    for _ in range(50):
        scene.fetching.measured(10 * KB, 10 * KB)
    scene.state(0).readable_end = 9
    assert scene.plan().max_bytes == 200 * KB
    scene.fetching.measured(100, 100_000)  # too small to say anything
    assert scene.fetching._expansion == pytest.approx(1.0, abs=0.01)


def test_one_fetch_goes_out_however_small_the_budget() -> None:
    scene = Scene([1, 2], queued_max_bytes=10)
    plan = scene.plan(1)
    assert plan.max_bytes == 10
    assert scene.fetching.plan(2, 0.0) is None
    scene.fetching.failed(plan)
    assert scene.plan(2).max_bytes == 10


def test_paused_partitions_make_room_when_nothing_else_is_left() -> None:
    scene = Scene([1, 1], queued_max_bytes=300 * KB)
    feed(scene.state(0), 300 * KB)
    scene.state(0).paused = True
    assert scene.asked() == [1]
    assert (scene.state(0).retained, scene.state(0).position) == (0, (0, -1)), "it is fetched again when it is resumed"


def feed(state: PartitionState, size: int) -> None:
    start = state.fetch_offset
    state.arrived(size, start + 1)
    state.decoded(start, size, FakeChunk((start,), start + 1, -1, size), start + 1)


def test_idle_partitions_of_one_broker_do_not_keep_another_from_its_share() -> None:
    """A fetch of partitions without news lies at the broker, is answered with nothing and sent again at once: it
    always holds what it has reserved."""
    scene = Scene([1] * 40 + [2], queued_max_bytes=3000 * KB)
    idle = scene.plan(1)
    assert idle.parked
    assert scene.asked(2) == [40]


def test_who_was_held_back_comes_before_who_had_its_turn() -> None:
    scene = Scene([1, 2, 2], queued_max_bytes=500 * KB)
    first = scene.plan(1)
    assert scene.fetching.plan(2, 0.0) is None
    assert scene.fetching.is_starved
    scene.answered(first)
    assert scene.fetching.plan(1, 0.0) is None, "it would take what broker 2 waits for"
    assert scene.asked(2) == [1, 2]
    assert scene.fetching.is_starved, "and now broker 1 waits"


def test_who_wants_nothing_any_more_does_not_stand_in_line() -> None:
    scene = Scene([1, 2], queued_max_bytes=400 * KB)
    first = scene.plan(1)
    assert scene.asked(2) == []
    scene.answered(first)
    scene.state(1).paused = True
    assert scene.asked(2) == []
    assert not scene.fetching.is_starved
    assert scene.asked(1) == [0]


STEP = st.tuples(
    st.sampled_from(["plan", "plan", "answer", "fail", "decode", "take", "pause", "seek"]),
    st.integers(1, 3),
    st.integers(0, 11),
    st.floats(0, 1),
)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.integers(1, 2000), st.lists(STEP, max_size=60))
def test_the_budget_holds_whatever_happens(budget_kb: int, steps: list[tuple[str, int, int, float]]) -> None:
    """What is buffered and what may still arrive, at the expansion that is measured (here the true one, 1), never
    passes the budget, but for the one fetch that goes out when there is nothing else."""
    scene = Scene([1, 2, 3] * 4, queued_max_bytes=budget_kb * KB)
    scene.fetching._expansion = 1.0
    flying: list[tuple[int, Plan]] = []
    decoding: list[tuple[PartitionState, int, int, int, int]] = []

    def held() -> int:
        return sum(state.retained + state.undecoded for state in scene.assignment)

    for what, node, number, fraction in steps:
        state = scene.state(number)
        if what == "plan":
            nothing_else = not flying and held() == 0 and not scene.fetching.is_starved
            hungry = [
                each
                for each in list(scene.assignment)
                if each.tp.partition % 3 == node - 1 and not each.paused and not each.in_flight
            ]
            plan = scene.fetching.plan(node, 0.0)
            assert plan is not None or not hungry or not nothing_else, "one fetch has to go out"
            if plan is not None:
                flying.append((node, plan))
                assert held() + sum(plan.max_bytes for _, plan in flying) <= budget_kb * KB
                assert 0 < plan.max_bytes <= 1000 * KB
        elif what in ("answer", "fail") and flying:
            node, plan = flying.pop(number % len(flying))
            if what == "fail":
                scene.fetching.failed(plan)
                continue
            each = int(fraction * plan.max_bytes / len(plan.asked))
            numbers = [slot.partition for slot in plan.wants]
            body = fetched(*(data(number, records=bytes(min(each, 100 * KB))) for number in numbers))
            with_records, _ = scene.fetching.answered(node, plan, body, 0.0)
            for asked, item in with_records:
                arrival = scene.fetching.arrived(asked, item, asked.offset + 1)
                target = scene.assignment.state(asked.tp)
                decoding.append((target, asked.continuity, asked.offset, len(arrival.records), asked.offset + 1))
        elif what == "decode" and decoding:
            target, continuity, start, size, end = decoding.pop(number % len(decoding))
            if target.continuity == continuity:
                target.decoded(start, size, FakeChunk((start,), end, -1, size), end)
        elif what == "take":
            scene.assignment.take(1 + number)
        elif what == "pause":
            state.paused = not state.paused
        elif what == "seek":
            state.seek(Position(int(fraction * 100)))
        assert scene.fetching._reserved == sum(plan.max_bytes for _, plan in flying)
        assert scene.fetching._reserved >= 0
    for _, plan in flying:
        scene.fetching.failed(plan)
    assert scene.fetching._reserved == 0
    # Whatever happened, polls empty the buffer, and then every broker gets its turn.
    for target, continuity, start, size, end in decoding:
        if target.continuity == continuity:
            target.decoded(start, size, FakeChunk((start,), end, -1, size), end)
    for state in scene.assignment:
        state.paused = False
        state.seek(Position(0))
    asked: set[int] = set()
    for _ in range(4):
        for node in (1, 2, 3):
            if (plan := scene.fetching.plan(node, 0.0)) is not None:
                asked.add(node)
                scene.fetching.failed(plan)
    assert asked == {1, 2, 3}


# -- answers -----------------------------------------------------------------------------------------------------


def test_records_go_to_be_decoded_and_what_follows_can_be_asked_for() -> None:
    scene = Scene([1])
    plan = scene.plan()
    aborted = [{"producer_id": 7, "first_offset": 3}]
    ((asked, item),), stale = scene.answered(plan, data(records=b"x" * 99, aborted_transactions=aborted))
    assert not stale
    arrival = scene.fetching.arrived(asked, item, next_offset=12)
    assert (arrival.tp, arrival.offset, arrival.next_offset) == (scene.partitions[0], 0, 12)
    assert (arrival.records, arrival.aborted) == (b"x" * 99, ((7, 3),))
    assert (scene.state().undecoded, scene.state().fetch_offset) == (99, 12)
    assert scene.plan().wants[Slot(TOPIC, 0)].offset == 12


@pytest.mark.parametrize(("level", "lag"), [("read_uncommitted", 50), ("read_committed", 40)])
def test_the_end_that_can_be_read(level: str, lag: int) -> None:
    scene = Scene([1], isolation_level=level)
    scene.answered(scene.plan(), data())
    assert scene.state().lag == lag


@pytest.mark.parametrize("records", [None, b""], ids=["null", "empty"])
def test_no_records_no_arrival(records: bytes | None) -> None:
    scene = Scene([1])
    assert scene.answered(scene.plan(), data(records=records)) == ([], False)


def test_a_closer_replica() -> None:
    now = 10.0
    scene = Scene([1], metadata_max_age_ms=60_000)
    arrivals, stale = scene.answered(scene.plan(), data(preferred_read_replica=2), now=now)
    assert (arrivals, stale) == ([], False)
    assert scene.asked(1, now) == []
    assert scene.fetching.nodes(now) == {2}
    assert scene.asked(2, now) == [0]


@pytest.mark.parametrize("why", ["too old", "offline", "broken connection"])
def test_back_to_the_leader(why: str) -> None:
    scene = Scene([1])
    scene.state().preferred = PreferredReplica(2, 60.0)
    if why == "offline":
        scene.cluster.apply(metadata(topic(partition(0, leader=1, offline=(2,)))))
    elif why == "broken connection":
        scene.fetching.failed(scene.plan(2))
    assert scene.asked(1, now=60.0 if why == "too old" else 0.0) == [0]


def test_out_of_range_on_a_follower_is_the_leader_s_to_tell() -> None:
    scene = Scene([1])
    scene.state().preferred = PreferredReplica(2, 60.0)
    plan = scene.plan(2)
    assert scene.answered(plan, data(code=ErrorCode.offset_out_of_range), node=2) == ([], False)
    assert (scene.state().fault, scene.asked(1)) == (None, [0])


def test_out_of_range_on_a_follower_whose_time_was_up_meanwhile() -> None:
    scene = Scene([1])
    scene.state().preferred = PreferredReplica(2, 60.0)
    plan = scene.plan(2)
    assert scene.fetching.nodes(99.0) == {1}
    scene.answered(plan, data(code=ErrorCode.offset_out_of_range), node=2, now=99.0)
    assert scene.state().fault is None


def test_out_of_range_on_the_leader_is_a_fault() -> None:
    scene = Scene([1])
    assert scene.answered(scene.plan(), data(code=ErrorCode.offset_out_of_range)) == ([], False)
    assert scene.state().fault == OutOfRange(0)
    assert scene.fetching.was_refused
    assert scene.asked() == []


REFRESH = [
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.replica_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.offset_not_available,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
]


@pytest.mark.parametrize(
    ("code", "stale"),
    [(code, True) for code in REFRESH]
    + [(ErrorCode.unknown_leader_epoch, False), (ErrorCode.unknown_server_error, False)],
)
def test_errors_that_pass(code: ErrorCode, stale: bool) -> None:
    scene = Scene([1, 1], retry_backoff_ms=100)
    plan = scene.plan(now=5.0)
    assert scene.answered(plan, data(code=code), data(1), now=5.0) == ([], stale)
    assert scene.state().fault is None
    assert scene.asked(now=5.0) == [1], "the other one goes on"
    assert scene.asked(now=5.1) == [0]


def test_errors_that_do_not_pass_are_waited_out_for_longer_and_longer() -> None:
    scene = Scene([1], retry_backoff_ms=100, retry_backoff_max_ms=1000)
    now, pauses = 0.0, []
    for _ in range(6):
        scene.answered(scene.plan(now=now), data(code=ErrorCode.kafka_storage_error), now=now)
        pauses.append(round(scene.state().backoff_until - now, 3))
        now = scene.state().backoff_until
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    scene.answered(scene.plan(now=now), data(), now=now)
    assert scene.state().failures == 0


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (ErrorCode.topic_authorization_failed, "TOPIC_AUTHORIZATION_FAILED"),
        (ErrorCode.corrupt_message, "CORRUPT_MESSAGE"),
        (999, "UNKNOWN_ERROR_999"),
    ],
)
def test_errors_for_the_user(code: int, name: str) -> None:
    scene = Scene([1])
    assert scene.answered(scene.plan(), data(code=code), now=3.0) == ([], False)
    error = scene.state().fault
    assert isinstance(error, KafkaError)
    assert (error.code, error.name) == (code, name)
    assert f"Fetch of t-0 at offset 0: {name} ({int(code)})" in str(error)
    assert scene.state().backoff_until > 3.0


@pytest.mark.parametrize("code", [ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch])
def test_a_leader_hint_is_followed_at_once(code: ErrorCode) -> None:
    scene = Scene([1])
    hint = {"leader_id": 7, "leader_epoch": 6}
    endpoints = [{"node_id": 7, "host": "b7", "port": 1, "rack": None}]
    arrivals, stale = scene.answered(scene.plan(), data(code=code, current_leader=hint), node_endpoints=endpoints)
    assert (arrivals, stale) == ([], True)
    assert scene.cluster.leader(scene.partitions[0]) == Leader(7, 6)
    assert scene.cluster.brokers[7] == Node(7, "b7", 1)
    assert scene.plan(7).wants == {Slot(TOPIC, 0): Want(0, 6, 100 * KB)}


@pytest.mark.parametrize(
    "hint",
    [
        pytest.param({"leader_id": -1, "leader_epoch": 9}, id="no leader"),
        pytest.param({"leader_id": 2, "leader_epoch": 5}, id="no news"),
        pytest.param({"leader_id": 9, "leader_epoch": 9}, id="nobody knows where"),
    ],
)
def test_a_hint_that_does_not_help(hint: dict[str, int]) -> None:
    scene = Scene([1])
    scene.answered(scene.plan(), data(code=ErrorCode.not_leader_or_follower, current_leader=hint))
    assert scene.asked() == []
    assert scene.asked(now=1.0) == [0]


def test_a_hint_under_which_read_records_have_to_be_checked() -> None:
    scene = Scene([1])
    scene.state().fetch_epoch = 5
    hint = {"leader_id": 2, "leader_epoch": 6}
    scene.answered(scene.plan(), data(code=ErrorCode.fenced_leader_epoch, current_leader=hint))
    assert (scene.state().phase, scene.asked(2)) == (Phase.VALIDATE, [])


@pytest.mark.parametrize("code", [0, ErrorCode.offset_out_of_range, ErrorCode.topic_authorization_failed])
def test_an_answer_for_what_the_user_has_left_means_nothing(code: int) -> None:
    scene = Scene([1])
    plan = scene.plan()
    scene.state().seek(Position(33))
    assert scene.answered(plan, data(code=code, records=b"x")) == ([], False)
    assert (scene.state().fault, scene.state().fetch_offset, scene.state().readable_end) == (None, 33, -1)
    assert scene.asked() == [0]


def test_a_partition_that_was_given_up_and_one_that_nobody_asked_for() -> None:
    scene = Scene([1, 1])
    plan = scene.plan()
    scene.assignment.assign([scene.partitions[1]])
    (arrival,), _ = scene.answered(plan, data(0, records=b"x"), data(1, records=b"x"), data(2, records=b"x"))
    assert arrival[0].tp == scene.partitions[1]


def test_a_partition_that_is_answered_twice() -> None:
    scene = Scene([1])
    arrivals, _ = scene.answered(scene.plan(), data(records=b"x"), data(records=b"y"))
    assert [item.records for _, item in arrivals] == [b"x"]


def test_a_new_leader_is_asked_although_the_old_one_has_not_answered() -> None:
    """Its machine may be gone: then the fetch ends only with its deadline."""
    scene = Scene([1])
    old = scene.plan(1)
    scene.cluster.apply(metadata(topic(partition(0, leader=2, epoch=6))))
    scene.assignment.follow(scene.cluster)
    new = scene.plan(2)
    ((asked, item),), _ = scene.answered(new, data(records=b"new"), node=2)
    scene.fetching.arrived(asked, item, next_offset=12)
    assert scene.answered(old, data(records=b"old"), node=1) == ([], False), "the new one was faster"
    assert (scene.state().fetch_offset, scene.fetching._reserved) == (12, 0)


def test_an_old_leader_that_answers_after_all_is_welcome() -> None:
    scene = Scene([1])
    old = scene.plan(1)
    scene.cluster.apply(metadata(topic(partition(0, leader=2, epoch=6))))
    scene.assignment.follow(scene.cluster)
    new = scene.plan(2)
    ((asked, item),), _ = scene.answered(old, data(records=b"old"), node=1)
    scene.fetching.arrived(asked, item, next_offset=12)
    assert scene.answered(new, data(records=b"new"), node=2) == ([], False)


def test_a_failed_fetch_is_asked_for_again() -> None:
    scene = Scene([1, 1])
    plan = scene.plan()
    scene.state(1).seek(Position(5))
    second = scene.plan()
    assert list(second.wants) == [Slot(TOPIC, 1)]
    scene.fetching.failed(plan)
    assert scene.asked() == [0], "the other one is in flight again, under another continuity"
