"""Admin and AsyncAdmin are one admin client: the same names, parameters, results and documentation."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import typing
from typing import Any

import pytest

from headrace import Admin, AsyncAdmin, TopicPartition
from headrace.admin import MemberDescription, ResetPlan
from headrace.errors import ClosedError, ConfigError, ForkedError, GroupNotEmptyError, KafkaError, PartialFailureError

SAME = [name for name in dir(AsyncAdmin) if not name.startswith("_")]
PROMISED = {
    *("cluster_id", "topics", "create_topic", "delete_topic", "bounds", "close"),
    *("groups", "describe_group", "delete_group", "group_config", "alter_group_config"),
    *("committed", "open_ranges", "alter_offsets", "delete_offsets", "plan_reset", "apply_reset"),
    *("share_offsets", "alter_share_offsets", "delete_share_offsets"),
}
NOWHERE = "127.0.0.1:1"


def test_both_admins_have_the_same_names() -> None:
    assert {name for name in dir(Admin) if not name.startswith("_")} == set(SAME) == PROMISED


@pytest.mark.parametrize("name", [*SAME, "__init__"])
def test_both_admins_have_the_same_parameters(name: str) -> None:
    def parameters(kind: type[Any]) -> list[tuple[str, Any, Any]]:
        found = inspect.signature(getattr(kind, name)).parameters.values()
        return [(each.name, each.kind, each.default) for each in found]

    assert parameters(Admin) == parameters(AsyncAdmin)


@pytest.mark.parametrize("name", SAME)
def test_both_admins_have_the_same_results_and_documentation(name: str) -> None:
    asynchronous, synchronous = getattr(AsyncAdmin, name), getattr(Admin, name)
    assert typing.get_type_hints(asynchronous)["return"] == typing.get_type_hints(synchronous)["return"]
    assert inspect.iscoroutinefunction(asynchronous)
    assert asynchronous.__doc__
    assert asynchronous.__doc__ == synchronous.__doc__


def calls(admin: Any) -> dict[str, Any]:
    """Every call that would be sent to a broker."""
    tp = TopicPartition("t", 0)
    return {
        "cluster_id": lambda: admin.cluster_id(timeout=0.05),
        "topics": lambda: admin.topics(timeout=0.05),
        "create_topic": lambda: admin.create_topic("t", timeout=0.05),
        "delete_topic": lambda: admin.delete_topic("t", timeout=0.05),
        "bounds": lambda: admin.bounds([tp], timeout=0.05),
        "groups": lambda: admin.groups(timeout=0.05),
        "describe_group": lambda: admin.describe_group("g", timeout=0.05),
        "delete_group": lambda: admin.delete_group("g", timeout=0.05),
        "group_config": lambda: admin.group_config("g", timeout=0.05),
        "alter_group_config": lambda: admin.alter_group_config("g", {"a": "b"}, timeout=0.05),
        "committed": lambda: admin.committed("g", timeout=0.05),
        "open_ranges": lambda: admin.open_ranges("g", timeout=0.05),
        "alter_offsets": lambda: admin.alter_offsets("g", {tp: 1}, timeout=0.05),
        "delete_offsets": lambda: admin.delete_offsets("g", [tp], timeout=0.05),
        "share_offsets": lambda: admin.share_offsets("g", timeout=0.05),
        "alter_share_offsets": lambda: admin.alter_share_offsets("g", {tp: 1}, timeout=0.05),
        "delete_share_offsets": lambda: admin.delete_share_offsets("g", ["t"], timeout=0.05),
        "plan_reset": lambda: admin.plan_reset("g", "earliest", timeout=0.05),
        "apply_reset": lambda: admin.apply_reset(ResetPlan("g", "classic", ()), timeout=0.05),
    }


def test_every_call_is_refused_by_a_closed_admin() -> None:
    admin = Admin(bootstrap_servers=NOWHERE)
    admin.close()
    admin.close()
    assert calls(admin).keys() | {"close"} == PROMISED
    for call in calls(admin).values():
        with pytest.raises(ClosedError, match="this admin is closed"):
            call()


def test_a_closed_async_admin_refuses_calls() -> None:
    async def main() -> None:
        async with AsyncAdmin(bootstrap_servers=NOWHERE) as admin:
            pass
        with pytest.raises(ClosedError):
            await admin.groups()

    asyncio.run(main())


def test_every_call_with_an_unreachable_broker_ends_at_its_deadline() -> None:
    with Admin(bootstrap_servers=NOWHERE) as admin:
        pending = calls(admin)
        assert pending.pop("apply_reset")() is None  # an empty plan: nothing to do
        for name, call in pending.items():
            with pytest.raises(TimeoutError, match=r"not done in time"):
                call()
            assert name


def test_a_forked_admin_is_refused_in_the_child_and_works_on_in_the_parent() -> None:
    with Admin(bootstrap_servers=NOWHERE) as admin:
        with pytest.raises(TimeoutError):
            admin.groups(timeout=0.1)  # its thread runs
        child = os.fork()
        if child == 0:  # no pytest in here
            code = 1
            try:
                admin.groups(timeout=0.1)
            except ForkedError:
                admin.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(TimeoutError):
            admin.groups(timeout=0.1)


def test_an_admin_that_is_not_closed_is_reported() -> None:
    admin = Admin(bootstrap_servers=NOWHERE)
    admin._calls.lifecycle.start()
    with pytest.warns(ResourceWarning, match="unclosed Admin: its connections were left open"):
        del admin


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("describe_group", [7], TypeError),
        ("describe_group", [""], ConfigError),
        ("describe_group", ["x" * 40_000], ValueError),
        ("committed", [None], TypeError),
        ("topics", ["orders"], TypeError),
        ("topics", [["no name"]], ConfigError),
        ("create_topic", ["orders", 0], ValueError),
        ("create_topic", ["orders", 2**31], ValueError),
        ("create_topic", ["orders", 1, 2**15], ValueError),
        ("create_topic", ["orders", 1, 1, {"a": None}], TypeError),
        ("create_topic", ["orders", 1, 1, ["a"]], TypeError),
        ("alter_offsets", ["g", {}], ConfigError),
        ("alter_offsets", ["g", {("t", 0): -1}], ValueError),
        ("alter_offsets", ["g", {"t": 1}], TypeError),
        ("alter_share_offsets", ["g", None], ConfigError),
        ("delete_offsets", ["g", "t"], TypeError),
        ("delete_offsets", ["g", []], ConfigError),
        ("delete_share_offsets", ["g", [("t", 0)]], TypeError),
        ("alter_group_config", ["g", {}], ConfigError),
        ("alter_group_config", ["g", {"a": object()}], TypeError),
        ("plan_reset", ["g", "sideways"], ConfigError),
        ("plan_reset", ["g", None], TypeError),
        ("apply_reset", [{}], TypeError),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(name: str, args: list[Any], error: type) -> None:
    with Admin(bootstrap_servers=NOWHERE) as admin:
        with pytest.raises(error) as caught:
            getattr(admin, name)(*args, timeout=0.1)
        assert not isinstance(caught.value, TimeoutError)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topics": "t"}, TypeError),
        ({"topics": []}, ConfigError),
        ({"topics": [("t",)]}, TypeError),
        ({"backlog": "both"}, ConfigError),
        ({"create": True}, ConfigError),
    ],
)
def test_wrong_options_of_a_reset_are_refused(options: dict[str, Any], error: type) -> None:
    with Admin(bootstrap_servers=NOWHERE) as admin, pytest.raises(error):
        admin.plan_reset("g", "earliest", **options)


def test_errors_of_an_admin_can_be_pickled() -> None:
    """For process pools."""
    tp = TopicPartition("t", 0)
    partial = PartialFailureError("1 of 2 failed", {tp: KafkaError(29, "X", False, "denied")}, frozenset({("t", 1)}))
    copy = pickle.loads(pickle.dumps(partial))
    assert (str(copy), copy.errors[tp].code, copy.done) == ("1 of 2 failed", 29, {("t", 1)})
    refused = GroupNotEmptyError(68, "NON_EMPTY_GROUP", False, "it has 1 member")
    refused.members = (MemberDescription("m-1", "c", "/h", None, frozenset()),)
    assert pickle.loads(pickle.dumps(refused)).members == refused.members
    assert str(refused.members[0]) == "c at h (m-1)"
