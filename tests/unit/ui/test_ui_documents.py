"""What the pages show, by a view of a cluster."""

from __future__ import annotations

import dataclasses
import json

import pytest

from headrace import TopicPartition
from headrace.monitor.model import (
    BrokerView,
    ClusterView,
    GroupHistory,
    GroupView,
    LogView,
    MemberView,
    PartitionView,
    Rebalance,
    TopicView,
    Trend,
    WatchStatus,
)
from headrace.ui.documents import (
    drawn_ranges,
    group_document,
    groups_document,
    member_labels,
    status_head,
    topic_document,
    topics_document,
)
from headrace.ui.patches import Points
from headrace.ui.sparklines import Sparkline

TP = TopicPartition("orders", 0)
LANES = (
    PartitionView(TP, "live", 900, 900, 0, 1000, 100, 2.04, ((900, 1000),), owner="b@h", member="m-1"),
    PartitionView(
        TP,
        "backlog",
        900,
        100,
        0,
        600,
        500,
        61.4,
        ((100, 600),),
        lost=50,
        lost_ranges=((50, 100),),
        owner="b@h",
        member="m-1",
    ),
)
BILLING = GroupView("billing", "consumer", "Stable", (MemberView("m-1", "b", "h", None, frozenset({TP})),), LANES)
HISTORY = GroupHistory((), Trend(12.34, 56.78, 99.6, -44.4), (Rebalance(10.0, 12.5, ("b@h",), (), 3, 2, 1.26),))
VIEW = ClusterView(
    1000.04,
    0.1,
    "abc",
    (BrokerView(1, "h", 9092), BrokerView(2, "h", 9093, error="no answer")),
    {"orders": TopicView("orders", (LogView(0, 1, (1,), (1,), begin=0, end=1000, size=2048),), rate=12.34)},
    (BILLING, GroupView("billing", "spark", "", (), (PartitionView(TP, next=1000, begin=0, end=1000, lag=0),))),
    ("groups of broker 2 are missing",),
)


def test_both_lanes_are_one_row_with_their_open_and_lost_ranges() -> None:
    (row,) = group_document(BILLING, HISTORY, None).rows.values()
    assert (row["lag"], row["seconds"], row["lost"], row["end"]) == (600, 61.0, 50, 1000)
    assert row["lost_ranges"] == [[50, 100]]
    assert [(it["lane"], it["lag"], it["open"]) for it in row["lanes"]] == [
        ("live", 100, [[900, 1000]]),
        ("backlog", 500, [[100, 600]]),
    ]


def test_a_group_has_its_trend_members_and_rebalances() -> None:
    head = group_document(BILLING, HISTORY, None).head
    assert head["trend"] == {
        "written": 12.3,
        "read": 56.8,
        "outlook": "catching up",
        "caught_up": 100.0,
        "growth": None,
        "grows": False,
    }
    assert [(it["label"], it["partitions"]) for it in head["list"]] == [("b@h", 1)]
    (rebalance,) = head["rebalances"]
    assert (rebalance["at"], rebalance["until"], rebalance["unowned"], rebalance["unowned_seconds"]) == (
        10.0,
        12.5,
        2,
        1.3,
    )


def test_a_group_that_reads_records_soon_keeps_up_whatever_its_trend() -> None:
    part = PartitionView(TP, next=5, begin=0, end=15, lag=10, seconds=0.4, owner="b@h")
    group = GroupView("g", "consumer", "Stable", BILLING.members, (part,))
    history = GroupHistory((), Trend(100.0, 90.0, None, 10.0), ())
    trend = group_document(group, history, None).head["trend"]
    assert (trend["outlook"], trend["caught_up"], trend["grows"]) == ("keeping up", None, False)


def test_a_group_that_falls_behind_has_one_growth_in_its_row() -> None:
    """Commits come in steps, so the growth is not always what was written without what was read."""
    part = PartitionView(TP, next=5, begin=0, end=5000, lag=4995, seconds=47.0, owner="b@h")
    group = GroupView("g", "consumer", "Stable", BILLING.members, (part,))
    head = group_document(group, GroupHistory((), Trend(400.0, 420.0, None, 51.0), ()), None).head
    assert head["reasons"] == ["falling behind by 51 records/s"]
    assert (head["trend"]["outlook"], head["trend"]["growth"]) == ("falling behind", 51.0)


def test_a_checkpoint_with_the_name_of_a_group_is_a_row_of_its_own() -> None:
    drawing = Sparkline(1, Points(1, ()))
    document = groups_document(VIEW, {BILLING.key: HISTORY}, {BILLING.key: drawing})
    assert list(document.rows) == ["group:billing", "checkpoint:billing"]
    assert [row["trend"] is None for row in document.rows.values()] == [False, True]
    assert [row["history"] for row in document.rows.values()] == [drawing.points, None]
    assert (document.head["groups"], document.head["lag"], document.head["attention"]) == (2, 600, 1)


def test_a_lag_that_cannot_be_read_is_marked_with_the_time_of_its_value() -> None:
    (live, backlog) = (dataclasses.replace(it, stale_since=940.04, error="the partition has no leader") for it in LANES)
    document = group_document(dataclasses.replace(BILLING, partitions=(live, backlog)), HISTORY, None)
    assert (document.head["lag"], document.head["unread"], document.head["since"]) == (600, 1, 940.0)
    assert document.head["trend"]["outlook"] == "unknown"
    (row,) = document.rows.values()
    assert (row["lag"], row["since"], row["problem"]) == (600, 940.0, "no leader")


def test_all_brokers_are_shown_with_what_they_lead_and_lack() -> None:
    logs = (LogView(0, 1, (1, 3), (1,)), LogView(1, 1, (1, 2), (1, 2)), LogView(2, None, (3,), (3,), (3,)))
    missing = BrokerView(3, "", 0, error="it is down", is_missing=True)
    view = dataclasses.replace(VIEW, brokers=(*VIEW.brokers, missing), topics={"orders": TopicView("orders", logs)})
    nodes = groups_document(view, {}, {}).head["nodes"]
    assert [(it["id"], it["address"], it["leads"], it["behind"], it["problem"]) for it in nodes] == [
        (1, "h:9092", 2, 0, None),
        (2, "h:9093", 0, 0, "no answer"),
        (3, None, 0, 1, "it is down"),
    ]
    assert status_head(WatchStatus(view), 2.0)["problems"][-1] == "broker 3: it is down"


def test_a_cluster_that_is_away_keeps_its_last_data_and_says_since_when() -> None:
    head = status_head(WatchStatus(VIEW, "no broker answers", 1010.0), 2.0)
    assert head["away"] == {"error": "no broker answers", "since": 1010.0, "final": False}
    assert (head["at"], head["cluster"], head["brokers"]) == (1000.0, "abc", 1)
    assert head["problems"] == ["groups of broker 2 are missing", "broker 2 (h:9093): no answer"]


def test_a_cluster_that_was_never_reached_has_no_data() -> None:
    head = status_head(WatchStatus(None, "refused", 5.0), 2.0)
    assert (head["at"], head["away"]["error"]) == (None, "refused")


def test_a_topic_says_who_reads_it_and_how_far() -> None:
    document = topic_document(VIEW.topics["orders"], VIEW.groups)
    assert [(it["name"], it["kind"], it["lag"], it["done"]) for it in document.head["reading"]] == [
        ("billing", "consumer", 600, 0.4),
        ("billing", "spark", 0, 1.0),
    ]
    assert document.rows["0"]["size"] == 2048


@pytest.mark.parametrize(
    ("logs", "records"),
    [
        ([], 0),
        ([LogView(0, 1, begin=0, end=10), LogView(1, 1, begin=5, end=10)], 15),
        # Records were deleted after the end was read.
        ([LogView(0, 1, begin=0, end=10), LogView(1, 1, begin=1000, end=10)], 10),
        ([LogView(0, 1, begin=0, end=10), LogView(1, None, error="no leader")], 10),
        ([LogView(0, None, error="no leader")], None),
    ],
)
def test_the_records_of_a_topic_are_never_negative_and_may_be_unknown(logs: list[LogView], records: int | None) -> None:
    topic = TopicView("t", tuple(logs))
    assert topic.records == records
    assert topic_document(topic, []).head["records"] == records


def test_topics_have_their_totals() -> None:
    document = topics_document(VIEW)
    shown = {name: document.head[name] for name in ("topics", "partitions", "rate", "size")}
    assert shown == {"topics": 1, "partitions": 1, "rate": 12.3, "size": 2048}
    assert document.rows["orders"]["readers"] == 2  # a group and a checkpoint


def test_what_could_not_be_read_is_unknown_and_not_zero() -> None:
    part = PartitionView(TP, error="denied")
    group = GroupView("g", "classic", "Stable", (), (part,), error="denied")
    row = next(iter(group_document(group, None, None).rows.values()))
    assert (row["lag"], row["end"], row["problem"]) == (None, None, "denied")
    assert group_document(group, None, None).head["lag"] is None


def test_documents_are_json() -> None:
    for document in (groups_document(VIEW, {}, {}), group_document(BILLING, HISTORY, None), topics_document(VIEW)):
        assert json.loads(json.dumps(document.head)) == document.head
        assert json.loads(json.dumps(document.rows)) == document.rows


@pytest.mark.parametrize(
    ("ranges", "most", "drawn"),
    [
        ([], 3, []),
        ([(0, 1), (5, 6)], 3, [[0, 1], [5, 6]]),
        ([(0, 1), (2, 3), (10, 11), (30, 31)], 3, [[0, 3], [10, 11], [30, 31]]),
        ([(0, 1), (2, 3), (10, 11), (30, 31)], 1, [[0, 31]]),
    ],
)
def test_many_ranges_are_drawn_without_their_smallest_gaps(
    ranges: list[tuple[int, int]], most: int, drawn: list[list[int]]
) -> None:
    assert drawn_ranges(ranges, most) == drawn


def test_partitions_that_a_member_still_has_but_should_not_have_are_pending_revokes() -> None:
    member = MemberView("m-1", "b", "h", None, frozenset({TP}), target=frozenset())
    document = group_document(GroupView("g", "consumer", "Reconciling", (member,), LANES[:1]), None, None)
    assert document.rows["orders-0"]["revoking"] is True
    assert document.head["list"][0]["revoking"] == 1


def test_members_with_the_same_client_and_host_have_different_labels() -> None:
    none: frozenset[TopicPartition] = frozenset()
    found = member_labels(
        [
            MemberView("c-11112222x", "c", "h", None, none),
            MemberView("c-33334444y", "c", "h", None, none),
            MemberView("z", "z", "h", None, none),
        ]
    )
    assert list(found.values()) == ["c@h 11112222", "c@h 33334444", "z@h"]
