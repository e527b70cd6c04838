"""What an admin client is not allowed to do is refused with names, and changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import Admin, TopicPartition
from headrace.errors import AuthorizationError, PartialFailureError
from support.brokers.admin import unique
from support.brokers.secured import SecuredBroker
from support.harness.shell import headrace


@pytest.fixture
def limited(secured: SecuredBroker) -> Iterator[Admin]:
    """An admin client that may only do what the tests allow the user `reader` to do."""
    with Admin(secured.broker.config_of("reader")) as admin:
        yield admin


def test_a_reset_says_which_topics_are_denied_and_moves_the_others(secured: SecuredBroker, limited: Admin) -> None:
    group, mine, shown, hidden = unique("g"), *(secured.create(name, 5) for name in ("mine", "shown", "hidden"))
    secured.allow("reader", "group", group, "read")
    secured.allow("reader", "topic", mine, "read", "describe")
    secured.allow("reader", "topic", shown, "describe")
    plan = limited.plan_reset(group, "latest", topics=[mine, shown], create=True)
    with pytest.raises(PartialFailureError, match=f"1 of 2 failed: {shown}-0") as caught:
        limited.apply_reset(plan)
    assert caught.value.done == {(mine, 0)}
    assert isinstance(caught.value.errors[TopicPartition(shown, 0)], AuthorizationError)
    assert {tp: each.offset for tp, each in limited.committed(group).items()} == {(mine, 0): 5}
    with pytest.raises(AuthorizationError) as denied:
        limited.alter_offsets(group, {TopicPartition(shown, 0): 1})
    assert denied.value.topics == {shown}
    with pytest.raises(AuthorizationError, match=hidden):
        limited.plan_reset(group, "latest", topics=[mine, hidden])


def test_a_group_that_is_denied_is_named(secured: SecuredBroker, limited: Admin) -> None:
    group, topic = unique("g"), secured.create("t", 1)
    with Admin(secured.broker.config_of("admin")) as admin:
        admin.alter_offsets(group, {TopicPartition(topic, 0): 1})
    for change in (
        lambda: limited.describe_group(group),
        lambda: limited.plan_reset(group, "earliest"),
        lambda: limited.delete_group(group),
        lambda: limited.alter_group_config(group, {"share.auto.offset.reset": "earliest"}),
    ):
        with pytest.raises(AuthorizationError, match=f"{group}: GROUP_AUTHORIZATION_FAILED"):
            change()
    secured.allow("reader", "group", group, "read")
    with pytest.raises(AuthorizationError, match="GROUP_AUTHORIZATION_FAILED"):
        limited.delete_group(group)
    secured.allow("reader", "group", group, "delete")
    assert limited.delete_group(group) == (group,), "the right to read its backlog's group is not needed"


def test_the_command_line_reports_a_partial_reset(secured: SecuredBroker) -> None:
    group, mine, shown = unique("g"), secured.create("a-mine", 5), secured.create("b-shown", 5)
    secured.allow("reader", "group", group, "read")
    secured.allow("reader", "topic", mine, "read", "describe")
    secured.allow("reader", "topic", shown, "describe")
    settings = [
        part for name, value in secured.broker.config_of("reader").items() for part in ("-C", f"{name}={value}")
    ]
    where = ("groups", "reset", *settings, "-g", group, "-t", mine, "-t", shown, "--to", "latest", "--create", "--yes")
    done = headrace(*where, "--format", "json")
    assert done.code == 1
    assert "1 of 2 failed" in done.err
    assert done.json["applied"] is False
    assert [each["error"] is None for each in done.json["changes"]] == [True, False]
