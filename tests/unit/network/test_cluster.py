"""The cluster view: brokers, topics and leaders from metadata and leader hints."""

from __future__ import annotations

import dataclasses
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.cluster import Cluster, Leader
from headrace.types import Node, PartitionInfo, TopicPartition
from support.harness.machine_inputs import T1, T2, TP, cluster_of, metadata, partition, topic


@pytest.mark.parametrize("version", [12, 13])
def test_a_metadata_response_tells_brokers_topics_and_leaders(version: int) -> None:
    cluster = Cluster()
    cluster.apply(metadata(topic(partition(1, leader=2), partition(0)), version=version))
    assert cluster.cluster_id == "c"
    assert cluster.brokers == {1: Node(1, "b1", 9092), 2: Node(2, "b2", 9092)}
    assert (cluster.topic_id("t"), cluster.topic_name(T1)) == (T1, "t")
    assert cluster.leader(TP) == Leader(1, 5)
    assert cluster.partition_infos("t") == [
        PartitionInfo("t", 0, Node(1, "b1", 9092), (1, 2), (1,), ()),
        PartitionInfo("t", 1, Node(2, "b2", 9092), (1, 2), (1,), ()),
    ]


FORGED = "evil\n2026-01-01 CRITICAL root: all is lost \x1b[31m"


@pytest.mark.parametrize(
    ("host", "kept"),
    [
        (FORGED, "evil 2026-01-01 CRITICAL root: all is lost  [31m"),
        ("h" * 30_000, "h" * 255 + " …"),
        ("bücher.example", "bücher.example"),
        ("::1", "::1"),
    ],
)
def test_addresses_are_legible(host: str, kept: str) -> None:
    cluster = Cluster()
    answer = metadata(topic(partition(leader=2)))
    there, broker = answer.brokers
    cluster.apply(dataclasses.replace(answer, brokers=(dataclasses.replace(there, host=host), broker)))
    assert cluster.brokers == {1: Node(1, kept, 9092), 2: Node(2, "b2", 9092)}
    assert cluster.hint(TP, Leader(3, 9), [Node(3, host, 9, "r")])
    assert cluster.brokers[3] == Node(3, kept, 9, "r")


def test_topics_that_nobody_asked_for_are_not_kept() -> None:
    answer = metadata(
        topic(partition()),
        topic(partition(), name="u", id=T2),
        topic(partition(), name="v", id=uuid.UUID(int=3)),
        topic(name="w", id=uuid.UUID(int=4), code=3),
    )
    cluster = Cluster()
    cluster.apply(answer, names=["t"], ids=[T2])
    assert set(cluster.topics) == {"t", "u"}
    assert cluster.topic_names() == {T1: "t", T2: "u"}
    assert cluster.topic_errors == {}
    cluster.apply(answer, names=["w"])
    assert set(cluster.topics) == {"t", "u"}
    assert cluster.topic_errors == {"w": 3}
    cluster.apply(answer)
    assert set(cluster.topics) == {"t", "u", "v"}


def test_an_unknown_topic_has_no_leader() -> None:
    cluster = Cluster()
    assert cluster.leader(TP) is None
    assert cluster.topic_id("t") is None
    assert cluster.topic_name(None) is None
    assert cluster.partition_infos("t") == []
    assert cluster.leader(TP) is None
    assert not cluster.is_online(TP, 1)


@pytest.mark.parametrize("leader", [-1, 9], ids=["no leader", "a broker that is not listed"])
def test_a_partition_without_a_live_leader_has_none(leader: int) -> None:
    cluster = cluster_of(topic(partition(leader=leader)))
    assert cluster.leader(TP) is None
    assert cluster.leader(TP) is None
    assert cluster.partition_infos("t")[0].leader is None


def test_an_answer_replaces_the_brokers_but_only_the_topics_that_it_lists() -> None:
    cluster = cluster_of(topic(partition()), topic(partition(), name="u", id=T2))
    cluster.apply(metadata(topic(partition(leader=3, epoch=6)), brokers=(3,)))
    assert set(cluster.brokers) == {3}
    assert cluster.leader(TP) == Leader(3, 6)
    assert cluster.topic_id("u") == T2
    assert cluster.leader(TopicPartition("u", 0)) is None, "its leader is not in the cluster any more"


@pytest.mark.parametrize(
    ("epoch", "leader"), [(4, Leader(1, 5)), (5, Leader(2, 5)), (6, Leader(2, 6))], ids=["older", "same", "newer"]
)
def test_a_broker_that_lags_behind_does_not_turn_back_the_epoch(epoch: int, leader: Leader) -> None:
    cluster = cluster_of(topic(partition(leader=1, epoch=5)))
    cluster.apply(metadata(topic(partition(leader=2, epoch=epoch))))
    assert cluster.leader(TP) == leader


def test_a_topic_made_again_is_another_one_even_with_a_lower_epoch() -> None:
    cluster = cluster_of(topic(partition(leader=1, epoch=5)))
    cluster.apply(metadata(topic(partition(leader=2, epoch=0), id=T2)))
    assert cluster.leader(TP) == Leader(2, 0)
    assert (cluster.topic_id("t"), cluster.topic_name(T2), cluster.topic_name(T1)) == (T2, "t", None)


def test_an_error_keeps_what_is_known() -> None:
    cluster = cluster_of(topic(partition()))
    cluster.apply(metadata(topic(code=3, id=None)))
    assert cluster.topic_errors == {"t": 3}
    assert cluster.leader(TP) == Leader(1, 5)
    cluster.apply(metadata(topic(partition())))
    assert cluster.topic_errors == {}


def test_a_topic_that_three_answers_in_a_row_do_not_know_was_deleted() -> None:
    cluster = cluster_of(topic(partition()), topic(partition(), name="u", id=T2))
    unknown = metadata(topic(code=3, id=None))
    for _ in range(2):
        cluster.apply(unknown)
        cluster.apply(unknown)
        assert cluster.is_unknown("t")
        assert cluster.leader(TP) == Leader(1, 5)
        cluster.apply(metadata(topic(partition())))
        assert not cluster.is_unknown("t")
    for _ in range(3):
        cluster.apply(metadata(topic(code=5, id=None)))
    assert "t" in cluster.topics, "it has no leader, but it exists"
    for _ in range(3):
        cluster.apply(unknown)
    assert set(cluster.topics) == {"u"}
    assert cluster.topic_names() == {T2: "u"}
    assert cluster.is_unknown("t")


def test_an_error_code_from_a_newer_broker() -> None:
    cluster = Cluster()
    cluster.apply(metadata(topic(code=999)))
    assert cluster.topic_errors == {"t": 999}


def test_a_topic_asked_for_by_id_alone() -> None:
    cluster = cluster_of(topic(partition()))
    cluster.apply(metadata(topic(name=None, code=100)))
    assert cluster.topic_errors == {"t": 100}
    cluster.apply(metadata(topic(name=None, id=T2, code=100)))
    assert cluster.topic_errors == {"t": 100}, "the id of an unknown topic is ignored"


def test_a_topic_can_be_forgotten() -> None:
    cluster = cluster_of(topic(partition()))
    cluster.forget("t")
    cluster.forget("t")
    assert (cluster.topic_id("t"), cluster.topic_name(T1)) == (None, None)


def test_only_replicas_of_live_brokers_are_online() -> None:
    cluster = cluster_of(topic(partition(offline=(2,))))
    assert cluster.is_online(TP, 1)
    assert not cluster.is_online(TP, 2), "the replica is offline"
    assert not cluster.is_online(TP, 3), "there is no such broker"


@pytest.mark.parametrize(
    ("hint", "endpoints", "news", "leader"),
    [
        pytest.param(Leader(2, 6), [], True, Leader(2, 6), id="newer, a known broker"),
        pytest.param(Leader(3, 6), [Node(3, "b3", 1)], True, Leader(3, 6), id="newer, a broker in the endpoints"),
        pytest.param(Leader(3, 6), [], False, Leader(1, 5), id="newer, an unknown broker"),
        pytest.param(Leader(2, 5), [], False, Leader(1, 5), id="the same epoch"),
        pytest.param(Leader(2, 4), [], False, Leader(1, 5), id="older"),
    ],
)
def test_leader_hints_count_if_their_epoch_is_newer(
    hint: Leader, endpoints: list[Node], news: bool, leader: Leader
) -> None:
    cluster = cluster_of(topic(partition(leader=1, epoch=5)))
    assert cluster.hint(TP, hint, endpoints) is news
    assert cluster.leader(TP) == leader


def test_a_hint_can_move_a_broker() -> None:
    cluster = cluster_of(topic(partition(leader=1, epoch=5)))
    assert cluster.hint(TP, Leader(2, 6), [Node(2, "elsewhere", 7)])
    assert cluster.brokers[2] == Node(2, "elsewhere", 7)


def test_a_leader_hint_for_an_unknown_partition_is_ignored() -> None:
    assert not Cluster().hint(TP, Leader(1, 1), [Node(1, "b1", 1)])


EVENT = st.tuples(st.sampled_from(["answer", "hint"]), st.integers(0, 3), st.integers(0, 8), st.sampled_from([T1, T2]))


@settings(deadline=None, derandomize=True)
@given(st.lists(EVENT, max_size=20))
def test_epochs_only_grow_while_the_topic_is_the_same(events: list[tuple[str, int, int, uuid.UUID]]) -> None:
    cluster = cluster_of(topic(partition(epoch=0)), brokers=(0, 1, 2, 3))
    for kind, leader, epoch, id in events:
        before, id_before = cluster.leader(TP), cluster.topic_id("t")
        if kind == "hint":
            cluster.hint(TP, Leader(leader, epoch), [])
        else:
            cluster.apply(metadata(topic(partition(leader=leader, epoch=epoch), id=id), brokers=(0, 1, 2, 3)))
        after = cluster.leader(TP)
        assert before is not None
        assert after is not None
        if cluster.topic_id("t") == id_before:
            assert after.epoch == max(before.epoch, epoch)
            if epoch < before.epoch:
                assert after == before
        else:
            assert after == Leader(leader, epoch)
