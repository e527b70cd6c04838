"""Resets and deletions over HTTP, with a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin as KafkaAdmin
from headrace import Consumer, OffsetAndMetadata, TopicPartition
from headrace._machines.admin.deletion import deletion_warning
from headrace.ui import changes
from headrace.ui.server import BackgroundPage, PageOptions
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.paced_members import PacedConsumer
from support.harness.page_client import Answer, PageClient

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def page(servers: str) -> Iterator[PageClient]:
    options = PageOptions({"bootstrap.servers": servers}, port=0, interval=0.5, allows_changes=True)
    with BackgroundPage(options) as page:
        yield PageClient(page.url)


@pytest.fixture(scope="module")
def topic(servers: str, admin: Admin) -> str:
    topic = admin.create("changed", 2)
    for partition in (0, 1):
        write(servers, topic, numbered(100, partition))
    return topic


def post(page: PageClient, name: str, body: object, **headers: str) -> Answer:
    return page.ask("POST", f"/api/groups/{name}", {**JSON, **headers}, json.dumps(body).encode())


def group_at(servers: str, topic: str, *offsets: int) -> str:
    group = unique("moved")
    with Consumer(bootstrap_servers=servers, group_id=group) as consumer:
        consumer.commit({TopicPartition(topic, at): OffsetAndMetadata(it) for at, it in enumerate(offsets)})
    return group


def committed(servers: str, group: str, topic: str) -> list[int | None]:
    with Consumer(bootstrap_servers=servers, group_id=group) as consumer:
        found = consumer.committed([TopicPartition(topic, at) for at in (0, 1)])
    return [None if it is None else it.offset for it in found.values()]


def test_a_reset_is_planned_then_carried_out_once(page: PageClient, servers: str, topic: str) -> None:
    group = group_at(servers, topic, 10, 20)
    plan: dict[str, Any] = post(page, "plan", {"group": group, "to": "90", "topic": topic}).json
    assert [(it["partition"], it["current"], it["new"], it["change"]) for it in plan["changes"]] == [
        (0, 10, 90, 80),
        (1, 20, 90, 70),
    ]
    assert committed(servers, group, topic) == [10, 20]
    assert post(page, "apply", {"plan": plan["plan"]}).json == {"partitions": 2}
    assert committed(servers, group, topic) == [90, 90]
    again = post(page, "apply", {"plan": plan["plan"]})
    assert (again.status, "carried out already" in again.json["error"]) == (409, True)


def test_a_plan_is_refused_if_the_group_has_moved_since_or_it_is_old(
    page: PageClient, servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_at(servers, topic, 10, 20)
    first = post(page, "plan", {"group": group, "to": "earliest"}).json["plan"]
    with Consumer(bootstrap_servers=servers, group_id=group) as consumer:
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(50)})
    assert post(page, "apply", {"plan": first}).status == 409
    second = post(page, "plan", {"group": group, "to": "earliest"}).json["plan"]
    monkeypatch.setattr(changes, "_KEPT_FOR", 0.0)
    assert post(page, "apply", {"plan": second}).status == 409
    assert committed(servers, group, topic) == [50, 20]


def test_a_group_with_members_is_refused_with_their_names(page: PageClient, servers: str, topic: str) -> None:
    group = unique("busy")
    with PacedConsumer(servers, group, topic, 1000):
        with page.events("group", name=group) as stream:
            while stream.head.get("members") != 1:
                assert stream.next() is not None
        for name, body in (("plan", {"group": group, "to": "latest"}), ("delete", {"group": group, "confirm": group})):
            answer = post(page, name, body)
            assert (answer.status, group in answer.json["error"]) == (409, True)


def test_a_deletion_needs_the_name_twice(page: PageClient, servers: str, topic: str) -> None:
    group = group_at(servers, topic, 10, 20)
    assert post(page, "delete", {"group": group, "confirm": "other"}).status == 400
    assert committed(servers, group, topic) == [10, 20]
    assert post(page, "delete", {"group": group, "confirm": group}).json == {"deleted": [group]}
    assert committed(servers, group, topic) == [None, None]
    assert post(page, "delete", {"group": group, "confirm": group}).status == 409


def test_the_decisions_of_a_spark_sink_are_deleted_only_after_a_warning(
    page: PageClient, servers: str, topic: str
) -> None:
    group = group_at(servers, topic, 10, 20)
    assert post(page, "warning", {"group": group}).json == {"warning": None}
    decision = OffsetAndMetadata(0, '{"headrace.sink": 1, "sequence": 1}')
    with KafkaAdmin(bootstrap_servers=servers) as ours:
        ours.alter_offsets(group, {TopicPartition("__consumer_offsets", 7): decision})
    warning = post(page, "warning", {"group": group}).json["warning"]
    assert warning == f"group {group} {deletion_warning([decision])}"
    for warned in ({}, {"warned": False}, {"warned": "yes"}):
        refused = post(page, "delete", {"group": group, "confirm": group, **warned})
        assert (refused.status, warning in refused.json["error"]) == (409, True)
    assert committed(servers, group, topic) == [10, 20]
    assert post(page, "delete", {"group": group, "confirm": group, "warned": True}).json == {"deleted": [group]}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("warning", {"group": 7}),
        ("plan", {}),
        ("plan", []),
        ("plan", {"group": "g", "to": ""}),
        ("plan", {"group": "g", "to": 7}),
        ("plan", {"group": "g", "to": "yesterday"}),
        ("plan", {"group": "g", "to": "latest", "backlog": "burn"}),
        ("apply", {"plan": "1"}),
        ("apply", {"plan": True}),
        ("delete", {"group": "g"}),
    ],
)
def test_changes_that_make_no_sense_are_refused(page: PageClient, name: str, body: object) -> None:
    answer = post(page, name, body)
    assert (answer.status, list(answer.json)) == (400, ["error"])


def test_other_sites_and_forms_change_nothing(page: PageClient) -> None:
    body = {"group": "g", "confirm": "g"}
    assert post(page, "delete", body, origin="http://evil.example").status == 403
    assert post(page, "delete", body, **{"sec-fetch-site": "cross-site"}).status == 403
    assert post(page, "delete", body, **{"content-type": "text/plain"}).status == 415
    assert page.ask("GET", "/api/groups/delete").status == 405


def test_a_page_without_allow_changes_has_no_such_requests(servers: str) -> None:
    with BackgroundPage(PageOptions({"bootstrap.servers": servers}, port=0)) as page:
        client = PageClient(page.url)
        assert post(client, "delete", {"group": "g", "confirm": "g"}).status == 404
        with client.events("groups") as stream:
            assert stream.next() is not None
            assert stream.head["changes"] is False
