"""Prometheus text: the values of a view, and the rules of the format."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.monitor.exposition import FAMILIES, escape, render, render_own
from headrace.monitor.model import (
    BrokerView,
    ClusterView,
    GroupView,
    LogView,
    MemberView,
    PartitionView,
    TopicView,
    WatchStatus,
)
from headrace.types import TopicPartition
from support.harness.metrics_text import Series, check_format, series

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana-dashboard.json"
KEPT = TopicPartition("kept", 0)
ODD = 'odd "name" \\ with\na line'


def row(number: int, lag: int | None, **more: object) -> PartitionView:
    made = PartitionView(TopicPartition("orders", number), committed=90, next=90, begin=0, end=100, lag=lag)
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


MEMBER = MemberView("m", "c", "h", None, frozenset())
VIEW = ClusterView(
    at=1000.0,
    took=0.25,
    cluster_id="c",
    brokers=(
        BrokerView(1, "host", 9092, error="away"),
        BrokerView(2, "host", 9093),
        BrokerView(3, "", 0, error="down", is_missing=True),
    ),
    topics={
        "orders": TopicView(
            "orders",
            (
                LogView(0, 1, (1, 2), (1, 2), (), 10, 100),
                LogView(1, None, (1, 2), (1,), (2,), error="no leader"),
            ),
        ),
        # Its leader is gone. What an earlier pass has read is no current offset: it would have a rate of 0.
        "kept": TopicView("kept", (LogView(0, None, (3,), (3,), (3,), 5, 50, None, "no leader", 940.0),)),
    },
    groups=(
        GroupView(
            "billing",
            "consumer",
            "Stable",
            (MEMBER,),
            (
                row(0, 10, lane="live", seconds=5.0),
                row(0, 7, lane="backlog", seconds=99.5, lost=3, open=((1, 5), (6, 9)), committed=1),
                row(1, None, error="no leader"),
                row(2, 0, seconds=None),
                row(3, 4, committed=None),
                row(4, 0, committed=500, next=500),  # beyond the end: the topic was recreated
            ),
        ),
        GroupView("denied", "classic", "Stable", error="GROUP_AUTHORIZATION_FAILED"),
        GroupView("idle", "classic", "Empty", error="has no committed offsets", has_nothing=True),
        GroupView("queue", "share", "Stable", (MEMBER, MEMBER), (row(0, 4, seconds=1.25), row(1, 0))),
        GroupView(ODD, "classic", "Empty", partitions=(row(0, 1),)),
        GroupView(
            "reading",
            "classic",
            "Stable",
            (MEMBER,),
            (
                row(0, 40, seconds=80.0, tp=KEPT, error="no leader", is_leaderless=True, stale_since=940.0),
                row(0, 2, seconds=1.0, tp=TopicPartition("kept", 1)),
            ),
            error="its coordinator is away",
            stale_since=960.0,
        ),
        GroupView("/checkpoints/é", "spark", "batch 7", partitions=(row(0, 3),)),
    ),
)
TEXT = render(VIEW).decode()


def values(name: str) -> dict[tuple[str, ...], float]:
    return {tuple(it.labels[label] for label in FAMILIES[name].labels): it.value for it in series(TEXT, name)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kafka_brokers", {(): 2}),
        ("kafka_broker_info", {("1", "host:9092"): 1, ("2", "host:9093"): 1}),
        ("headrace_broker_up", {("1",): 0, ("2",): 1, ("3",): 0}),
        ("kafka_topic_partitions", {("orders",): 2, ("kept",): 1}),
        ("kafka_topic_partition_current_offset", {("orders", "0"): 100}),
        ("kafka_topic_partition_oldest_offset", {("orders", "0"): 10}),
        ("headrace_topic_leaderless_partitions", {("orders",): 1, ("kept",): 1}),
        ("headrace_topic_under_replicated_partitions", {("orders",): 1, ("kept",): 0}),
        (
            "kafka_consumergroup_current_offset",
            {
                ("billing", "orders", "0"): 90,
                ("billing", "orders", "1"): 90,
                ("billing", "orders", "2"): 90,
                ("billing", "orders", "4"): 500,
                (ODD, "orders", "0"): 90,
                ("reading", "kept", "0"): 90,
                ("reading", "kept", "1"): 90,
                ("/checkpoints/é", "orders", "0"): 90,
            },
        ),
        (
            "kafka_consumergroup_current_offset_sum",
            {
                ("billing", "orders"): 770,
                (ODD, "orders"): 90,
                ("reading", "kept"): 180,
                ("/checkpoints/é", "orders"): 90,
            },
        ),
        (
            "kafka_consumergroup_lag",
            {
                ("billing", "orders", "0"): 17,  # both lanes
                ("billing", "orders", "2"): 0,
                ("billing", "orders", "3"): 4,  # owned, and without a commit
                (ODD, "orders", "0"): 1,
                ("reading", "kept", "0"): 40,  # the last known one
                ("reading", "kept", "1"): 2,
                ("/checkpoints/é", "orders", "0"): 3,
            },
        ),
        (
            "kafka_consumergroup_lag_sum",
            {("billing", "orders"): 21, (ODD, "orders"): 1, ("reading", "kept"): 42, ("/checkpoints/é", "orders"): 3},
        ),
        (
            "kafka_consumergroup_lag_seconds",
            {
                ("billing", "orders", "0"): 99.5,
                ("billing", "orders", "2"): 0,
                ("reading", "kept", "0"): 80.0,
                ("reading", "kept", "1"): 1.0,
            },
        ),
        ("kafka_consumergroup_members", {("billing",): 1, ("idle",): 0, (ODD,): 0, ("reading",): 1}),
        (
            "headrace_consumergroup_lost_records",
            {
                ("billing", "orders"): 3,
                (ODD, "orders"): 0,
                ("reading", "kept"): 0,
                ("/checkpoints/é", "orders"): 0,
            },
        ),
        (
            "headrace_consumergroup_unread_partitions",
            {
                ("billing", "orders"): 1,
                (ODD, "orders"): 0,
                ("reading", "kept"): 1,
                ("/checkpoints/é", "orders"): 0,
            },
        ),
        (
            "headrace_consumergroup_read_timestamp_seconds",
            {
                ("billing", "orders"): 1000.0,
                (ODD, "orders"): 1000.0,
                ("reading", "kept"): 940.0,
                ("/checkpoints/é", "orders"): 1000.0,
            },
        ),
        ("headrace_sharegroup_unread_partitions", {("queue", "orders"): 0}),
        ("headrace_sharegroup_read_timestamp_seconds", {("queue", "orders"): 1000.0}),
        ("headrace_backlog_lag", {("billing", "orders", "0"): 7}),
        ("headrace_backlog_lag_seconds", {("billing", "orders", "0"): 99.5}),
        ("headrace_backlog_open_ranges", {("billing", "orders", "0"): 2}),
        ("kafka_sharegroup_start_offset", {("queue", "orders", "0"): 90, ("queue", "orders", "1"): 90}),
        ("kafka_sharegroup_lag", {("queue", "orders", "0"): 4, ("queue", "orders", "1"): 0}),
        ("kafka_sharegroup_lag_sum", {("queue", "orders"): 4}),
        ("kafka_sharegroup_lag_seconds", {("queue", "orders", "0"): 1.25, ("queue", "orders", "1"): 0}),
        ("kafka_sharegroup_members", {("queue",): 2}),
        (
            "headrace_exporter_read_errors",
            {("broker",): 2, ("group",): 2, ("partition",): 5, ("topic",): 0},
        ),
        ("headrace_exporter_pass_duration_seconds", {(): 0.25}),
    ],
)
def test_a_view_becomes_these_series(name: str, expected: dict[tuple[str, ...], float]) -> None:
    assert values(name) == expected


def test_every_group_has_its_kind_and_state() -> None:
    found = {(it.labels["group"], it.labels["kind"], it.labels["state"]) for it in series(TEXT, "headrace_group_state")}
    assert ("reading", "classic", "Unknown") in found, "the last known state is none of now"
    assert found == {(it.name, it.kind, "Unknown" if it.name == "reading" else it.state) for it in VIEW.groups}


def test_the_text_keeps_the_rules_of_the_format() -> None:
    check_format(TEXT + render_own(WatchStatus(VIEW, passes=3), 1001.0).decode())


def test_an_empty_cluster_has_a_valid_text() -> None:
    check_format(render(ClusterView(0.0, 0.0, "", (), {}, ())).decode())


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (WatchStatus(None), {"up": 0, "passes_total": 0, "failures_total": 0}),
        (
            WatchStatus(dataclasses.replace(VIEW, at=5.0, steady=1005.5)),  # on the clock for intervals
            {"up": 1, "age_seconds": 2.0, "passes_total": 0, "failures_total": 0},
        ),
        (WatchStatus(VIEW, passes=3), {"up": 1, "age_seconds": 7.5, "passes_total": 3, "failures_total": 0}),
        (
            WatchStatus(VIEW, "away", 1001.0, passes=3, failures=2),
            {"up": 0, "age_seconds": 7.5, "passes_total": 3, "failures_total": 2},
        ),
    ],
)
def test_the_exporter_tells_whether_its_values_are_fresh(status: WatchStatus, expected: dict[str, float]) -> None:
    text = render_own(status, 1007.5).decode()
    check_format(text)
    prefix = "headrace_exporter_"
    assert {it.name.removeprefix(prefix): it.value for it in _samples(text)} == expected


def _samples(text: str) -> Iterable[Series]:
    return [Series(*it[:3]) for family in text_string_to_metric_families(text) for it in family.samples]


@pytest.mark.parametrize(
    ("value", "escaped"),
    [("a", "a"), ('"', '\\"'), ("\\", "\\\\"), ("\n", "\\n"), ("\\n", "\\\\n"), ("é{},=", "é{},=")],
)
def test_label_values_are_escaped_and_read_back(value: str, escaped: str) -> None:
    assert escape(value) == escaped
    (found,) = _samples(f'm{{l="{escape(value)}"}} 1\n')
    assert found.labels == {"l": value}


def test_a_name_that_is_not_unicode_does_not_break_the_text() -> None:
    text = render(ClusterView(0.0, 0.0, "", (), {}, (GroupView("/data/\udcff", "spark", ""),))).decode()
    assert 'group="/data/?"' in text


def test_a_checkpoint_with_the_name_of_a_group_is_an_error_and_no_second_series() -> None:
    names = [
        ("billing", "classic"),
        ("queue", "share"),
        *((it, "spark") for it in ("billing", "queue", "/\udcff", "/\udcfe")),
    ]
    groups = tuple(GroupView(name, kind, "", partitions=(row(0, lag),)) for lag, (name, kind) in enumerate(names))
    text = render(ClusterView(0.0, 0.0, "", (), {}, groups)).decode()
    check_format(text)
    found = {(it.labels["consumergroup"]): it.value for it in series(text, "kafka_consumergroup_lag")}
    assert found == {"billing": 0, "queue": 3, "/?": 4}
    assert {it.labels["kind"]: it.value for it in series(text, "headrace_exporter_read_errors")}["group"] == 2


def test_every_metric_is_documented() -> None:
    named = set(re.findall(r"`((?:kafka|headrace)_\w+)`", (DASHBOARD.parent / "monitoring.md").read_text()))
    assert named == set(FAMILIES)


# -- the dashboard -----------------------------------------------------------------------------------------------------


def _queries(panel: object) -> Iterable[str]:
    if isinstance(panel, dict):
        for key, value in panel.items():
            if key in ("expr", "query", "definition") and isinstance(value, str):
                yield value
            else:
                yield from _queries(value)
    elif isinstance(panel, list):
        for each in panel:
            yield from _queries(each)


def test_every_metric_of_the_dashboard_is_exported_with_its_labels() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [query for query in _queries(dashboard) if query != "prometheus"]
    assert len(queries) > 15
    used = set()
    for query in queries:
        for name, matchers in re.findall(r"\b((?:kafka|headrace)_\w+)(\{[^}]*\})?", query):
            used.add(name)
            assert name in FAMILIES, query
            assert set(re.findall(r"(\w+)\s*[=!]~?\"", matchers)) <= set(FAMILIES[name].labels), query
    assert {
        "kafka_consumergroup_lag_sum",
        "kafka_consumergroup_lag_seconds",
        "kafka_consumergroup_members",
        "kafka_sharegroup_lag",
        "headrace_backlog_lag",
        "headrace_exporter_up",
    } <= used


def test_the_dashboard_can_be_imported() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["uid"]
    assert dashboard["id"] is None
    assert dashboard["schemaVersion"] >= 39
    variables = {it["name"]: it for it in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    panels = dashboard["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["targets"]
            assert panel["description"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"


def test_a_sum_of_the_dashboard_shows_what_there_is_without_groups_of_one_kind() -> None:
    """PromQL: a sum of no series is no series, and so is everything that is added to it."""
    added = [it for it in _queries(json.loads(DASHBOARD.read_text())) if " + " in it]
    assert added
    for expression in added:
        for part in expression.split(" + "):
            assert part.startswith("("), expression
            assert part.endswith(" or vector(0))"), expression
