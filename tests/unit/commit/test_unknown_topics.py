"""Commits of topics the coordinator does not know: deleted, recreated, just created, or misspelt."""

from __future__ import annotations

import threading
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import OffsetAndMetadata, TopicPartition
from headrace._aio.commit.committer import time_before_revoke
from headrace._aio.commit.offset_requests import OffsetRequests
from headrace._aio.group.coordinator import Coordinator
from headrace._machines.cluster import Cluster
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.fetch.partition import Position
from headrace._machines.lanes.lanes import Lanes, LaneStart
from headrace._protocol.messages import OFFSET_COMMIT
from headrace.config.consumer import ConsumerConfig
from headrace.errors import CommitFailedError, KafkaError
from support.brokers.fake_broker import run
from support.harness.machine_inputs import T1, T2, TP, cluster_of, metadata, partition, topic
from support.harness.two_lanes_in_memory import TP as LANED
from support.harness.two_lanes_in_memory import TwoLaneDriver, two_lane_consumer

U = TopicPartition("u", 0)
T3 = uuid.UUID(int=3)
KNOWN = topic(partition())
DELETED = topic(code=3, id=None)
RECREATED = topic(partition(), id=T3)


class Client:
    """The coordinator responds with `codes`, other brokers with `answers` as metadata, repeating the last one."""

    def __init__(self, codes: dict[TopicPartition, int], *answers: dict[str, Any]) -> None:
        self.config = ConsumerConfig.parse(bootstrap_servers="b:1", group_id="g")
        self.lock = threading.Lock()
        self.retries = SimpleNamespace(pause=lambda failures: 0.01 * failures)
        self.cluster: Cluster = cluster_of(KNOWN, topic(partition(), name="u", id=T2))
        self.codes = codes
        self.answers = list(answers)
        self.asked: list[tuple[frozenset[str], bool]] = []
        self.versions: list[int | None] = []

    async def fetch_metadata(self, names: Any, *, may_create: bool) -> None:
        self.asked.append((frozenset(names), may_create))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.cluster.apply(metadata(answer), names=names)

    async def call(self, node: int, api: Any, fields: Any, *, highest: int | None, **_: Any) -> Any:
        self.versions.append(highest)
        asked = fields["topics"] if api is OFFSET_COMMIT else fields["groups"][0]["topics"]
        topics = [self._topic(each, api, highest) for each in asked]
        group = SimpleNamespace(error_code=0, topics=topics)
        return SimpleNamespace(body=SimpleNamespace(topics=topics, groups=[group]))

    def _topic(self, each: dict[str, Any], api: Any, highest: int | None) -> Any:
        name, codes = each["name"], self.codes
        if api is OFFSET_COMMIT:
            numbers = [item["partition_index"] for item in each["partitions"]]
        else:
            numbers = each["partition_indexes"]
            codes = self.codes if highest is None else {}  # looked up by name, the topic need not exist
        partitions = [
            SimpleNamespace(
                partition_index=number,
                error_code=codes.get(TopicPartition(name, number), 0),
                committed_offset=7,
                committed_leader_epoch=-1,
                metadata="",
            )
            for number in numbers
        ]
        key = {"topic_id": each["topic_id"]} if highest is None else {"name": name}
        return SimpleNamespace(partitions=partitions, **key)


def requests(client: Client) -> OffsetRequests:
    coordinator = Coordinator(client, "g")  # type: ignore[arg-type]
    coordinator._node = 1
    return OffsetRequests(client, coordinator)  # type: ignore[arg-type]


def refusal(client: Client, *, before: uuid.UUID | None = T1, tp: TopicPartition = TP) -> KafkaError:
    offsets = {tp: OffsetAndMetadata(5), U: OffsetAndMetadata(6)}
    with pytest.raises(KafkaError) as refused:
        run(requests(client).commit(offsets, {tp.topic: before, "u": T2}))
    return refused.value


@pytest.mark.parametrize("code", [3, 100])
class TestCommits:
    def test_a_deleted_topic_is_told_apart_from_the_others_of_its_commit(self, code: int) -> None:
        client = Client({TP: code}, DELETED)
        error = refusal(client)
        assert isinstance(error, CommitFailedError)
        assert (error.partitions, error.retriable, error.code) == (frozenset({TP}), False, code)
        assert len(client.asked) == 3, "three metadata responses are enough"
        assert set(client.asked) == {(frozenset({"t"}), False)}, "a metadata request must not create the topic"

    def test_a_commit_of_a_topic_that_is_known_elsewhere_is_tried_again(self, code: int) -> None:
        """It was just created, and the coordinator does not know it yet."""
        error = refusal(Client({TP: code}, KNOWN))
        assert not isinstance(error, CommitFailedError)
        assert error.retriable

    def test_one_broker_that_does_not_know_a_topic_proves_nothing(self, code: int) -> None:
        error = refusal(Client({TP: code}, DELETED, DELETED, KNOWN))
        assert error.retriable

    def test_a_commit_of_a_topic_that_was_created_again_fails(self, code: int) -> None:
        error = refusal(Client({TP: code}, RECREATED))
        assert isinstance(error, CommitFailedError)
        assert "recreated" in str(error)
        assert error.partitions == {TP}

    def test_a_commit_of_a_topic_that_was_never_seen_is_retriable_for_a_while(
        self, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace._aio.commit.offset_requests._PROPAGATION", 30.0)
        new = TopicPartition("new", 0)
        unknown, known = topic(name="new", id=None, code=3), topic(partition(), name="new", id=T3)
        error = refusal(Client({new: code}, *[unknown] * 9, known), before=None, tp=new)
        assert error.retriable
        monkeypatch.setattr("headrace._aio.commit.offset_requests._PROPAGATION", 0.05)
        error = refusal(Client({new: code}, unknown), before=None, tp=new)
        assert isinstance(error, CommitFailedError)
        assert error.partitions == {new}

    def test_what_the_coordinator_says_of_the_membership_comes_first(self, code: int) -> None:
        client = Client({TP: code, U: 25}, DELETED)
        error = refusal(client)
        assert isinstance(error, CommitFailedError)
        assert (error.partitions, error.code) == (frozenset(), 25)


def test_the_topic_of_the_offsets_and_not_the_one_that_has_its_name_now() -> None:
    client = Client({}, RECREATED)
    client.cluster.apply(metadata(RECREATED))
    error = refusal(client)
    assert isinstance(error, CommitFailedError)
    assert error.partitions == {TP}
    assert client.versions == [None], "the other topic is committed by its id"


def test_a_topic_that_the_cluster_view_has_dropped_is_committed_by_its_id() -> None:
    """By name, the coordinator would commit the offset for a topic that was created since."""
    client = Client({TP: 100}, DELETED)
    for _ in range(3):
        client.cluster.apply(metadata(DELETED), names=frozenset({"t"}))
    assert client.cluster.topic_id("t") is None
    error = refusal(client)
    assert isinstance(error, CommitFailedError)
    assert (error.partitions, client.versions) == (frozenset({TP}), [None])


def test_deleted_and_recreated_topics_of_one_commit_are_all_told() -> None:
    gone = TopicPartition("gone", 0)
    client = Client({gone: 3}, topic(name="gone", id=None, code=3))
    client.cluster.apply(metadata(RECREATED))
    offsets = {TP: OffsetAndMetadata(5), gone: OffsetAndMetadata(6), U: OffsetAndMetadata(7)}
    with pytest.raises(CommitFailedError) as refused:
        run(requests(client).commit(offsets, {"t": T1, "gone": T3, "u": T2}))
    assert refused.value.partitions == {TP, gone}


class TestQuestions:
    def test_one_unknown_topic_does_not_hide_the_commits_of_others(self) -> None:
        found = run(requests(Client({TP: 100}, DELETED)).committed([TP, U]))
        assert found[U] == OffsetAndMetadata(7)
        error = found[TP]
        assert isinstance(error, KafkaError)
        assert error.retriable

    def test_a_committed_offset_can_be_asked_for_by_the_name_of_a_topic_that_is_gone(self) -> None:
        found = run(requests(Client({TP: 100}, DELETED)).committed([TP], by_name=True))
        assert found == {TP: OffsetAndMetadata(7)}


class TestCommitLogs:
    """Commits of the other partitions are recorded in both logs."""

    OTHER = TopicPartition("t", 1)

    def other(self, driver: TwoLaneDriver) -> Lanes:
        driver.consumer.assign([LANED, self.OTHER])
        state = driver.buffer.assignment.state(self.OTHER)
        state.seek(Position(130))
        lanes = Lanes("token", LaneStart(120, OffsetSet(120), ((70, 120),)))
        with driver.buffer.lock:
            driver.backlog.open(state, lanes)
            driver.backlog.assignment.state(self.OTHER).position = Position(120)
            lanes.handed_out(120)
        return lanes

    def test_commits_of_a_deleted_topic_go_to_neither_log(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                other = self.other(driver)
                driver.read(125, 85)
                driver.first.deleted = driver.second.deleted = {LANED}
                with driver.buffer.lock:
                    driver.buffer.cluster.topic_errors["t"] = 3
                for _ in range(3):
                    await driver.consumer.commit()
                assert driver.lanes.progress == OffsetSet(70)
                assert driver.lanes.first.offset == 120
                assert other.is_closed
                assert driver.first.has[self.OTHER] == OffsetAndMetadata(130)
                with pytest.raises(CommitFailedError) as refused:
                    await driver.consumer.commit({LANED: 80, self.OTHER: 131})
                assert refused.value.partitions == {LANED}
                assert driver.first.has[self.OTHER] == OffsetAndMetadata(131)
                await driver.consumer._parts.committer.final_commit(driver.engine, 5.0)

        run(main())
        assert len([each for each in caplog.messages if "deleted" in each]) == 1, "logged once"

    def test_a_topic_that_is_back_is_committed_again(self) -> None:
        async def main() -> None:
            async with two_lane_consumer() as driver:
                driver.read(125, 120)
                driver.first.deleted = driver.second.deleted = {LANED}
                with driver.buffer.lock:
                    driver.buffer.cluster.topic_errors["t"] = 3
                await driver.consumer.commit()
                driver.first.deleted = driver.second.deleted = set()
                await driver.consumer.commit()
                assert driver.mark.token, "left out"
                with driver.buffer.lock:
                    driver.buffer.cluster.topic_errors.clear()
                await driver.consumer.commit()
                assert driver.first.has[LANED] == OffsetAndMetadata(125)

        run(main())


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 15.0),
        ({"max_poll_interval_ms": 8_000, "session_timeout_ms": 6_000}, 2.0),
        ({"default_api_timeout_ms": 5_000}, 5.0),
    ],
)
def test_how_long_a_poll_waits_for_the_commit_before_a_revoke(settings: dict[str, Any], seconds: float) -> None:
    config = ConsumerConfig.parse(bootstrap_servers="b:1", group_id="g", **settings)
    assert time_before_revoke(config) == seconds
