"""What the leader, and every member, does with an assignor of the user that does not work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace._machines.group.assignors import Assignor, GroupMember
from headrace._machines.group.classic_requests import user_data_of
from headrace._machines.group.leader import compute_assignment
from headrace._protocol.group_data import read_assignment
from headrace.errors import NetworkError, StateError
from headrace.types import TopicPartition

GROUP = {"a": GroupMember(frozenset("t")), "b": GroupMember(frozenset("t"))}


class Returning(Assignor):
    """Returns this, or raises it."""

    name = "mine"

    def __init__(self, result: Any) -> None:
        self._result = result

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        return self._give()  # type: ignore[no-any-return]

    def assign(self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]) -> Any:
        return self._give()

    def _give(self) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def test_a_member_that_the_assignor_leaves_out_gets_no_partitions() -> None:
    made = compute_assignment(Returning({"a": [("t", 1)]}), GROUP, {"t": 2})
    assert {member: read_assignment(data)[0] for member, data in made.items()} == {
        "a": frozenset({TopicPartition("t", 1)}),
        "b": frozenset(),
    }


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ZeroDivisionError("no"), r"the assignor mine raised ZeroDivisionError\('no'\)"),
        (None, "the assignor mine did not return partitions by member id: AttributeError"),
        ({"a": [3]}, "the assignor mine did not return partitions by member id: TypeError"),
        ({"a": [], "stranger": []}, r"the assignor mine assigned partitions to \{'stranger'\}, who are not members"),
        ({"a": [("t", 2)]}, "the assignor mine assigned t-2, which does not exist"),
        ({"a": [("t", -1)]}, "the assignor mine assigned t--1, which does not exist"),
        ({"a": [("u", 0)]}, "the assignor mine assigned u-0, which does not exist"),
    ],
)
def test_an_assignment_that_nobody_could_use_is_refused(result: Any, text: str) -> None:
    with pytest.raises(StateError, match=text):
        compute_assignment(Returning(result), GROUP, {"t": 2})


@pytest.mark.parametrize("result", [None, b"data", bytearray(b"data"), memoryview(b"data")])
def test_user_data_is_bytes_or_nothing(result: Any) -> None:
    assert user_data_of(Returning(result), frozenset("t"), frozenset(), 3) == (None if result is None else b"data")


@pytest.mark.parametrize("result", [ZeroDivisionError("no"), "text", 5])
def test_user_data_that_cannot_be_sent_is_refused(result: Any) -> None:
    with pytest.raises(StateError, match=r"user_data\(\) of the assignor mine did not return bytes: "):
        user_data_of(Returning(result), frozenset("t"), frozenset(), 3)


def test_an_error_of_headrace_in_an_assignor_stays_what_it_is() -> None:
    error = NetworkError("no")
    with pytest.raises(NetworkError):
        compute_assignment(Returning(error), GROUP, {"t": 2})
    with pytest.raises(NetworkError):
        user_data_of(Returning(error), frozenset("t"), frozenset(), 3)
