"""Range and round robin: Java's own examples as tables; properties of every assignor; choosing an assignor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.group.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    GroupMember,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    assignors_of,
    is_cooperative,
    is_own,
    partitions_of,
)
from headrace._machines.group.assignors.base import subscribers
from headrace._protocol.group_data import MemberSubscription
from headrace.errors import ConfigError
from headrace.types import TopicPartition

STEADY = settings(deadline=None, derandomize=True, max_examples=50)
OWN: list[type[Assignor]] = [RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor]


def group(**topics: str) -> dict[str, GroupMember]:
    """One member per keyword, subscribed to the topics in its value."""
    return {member: GroupMember(frozenset(names.split())) for member, names in topics.items()}


def static(topics: str, instance_id: str) -> GroupMember:
    return GroupMember(frozenset(topics.split()), instance_id=instance_id)


def shown(shares: Mapping[str, list[TopicPartition]]) -> dict[str, str]:
    return {member: " ".join(f"{topic}{number}" for topic, number in share) for member, share in shares.items()}


@pytest.mark.parametrize(
    ("members", "partitions", "shares"),
    [
        pytest.param(group(), {}, {}, id="nobody"),
        pytest.param(group(a=""), {"t": 3}, {"a": ""}, id="a member without topics"),
        pytest.param(group(a="t"), {}, {"a": ""}, id="a topic that does not exist"),
        pytest.param(group(a="t u"), {"t": 1}, {"a": "t0"}, id="one that exists and one that does not"),
        pytest.param(group(a="t"), {"t": 2, "u": 2}, {"a": "t0 t1"}, id="a topic that nobody wants"),
        pytest.param(group(a="t", b="t"), {"t": 1}, {"a": "t0", "b": ""}, id="fewer partitions than members"),
        pytest.param(
            group(b="t u", a="t u"),
            {"t": 3, "u": 3},
            {"a": "t0 t1 u0 u1", "b": "t2 u2"},
            id="each topic is assigned separately",
        ),
        pytest.param(
            group(a="t", b="t u", c="t"), {"t": 3, "u": 2}, {"a": "t0", "b": "t1 u0 u1", "c": "t2"}, id="unequal"
        ),
        pytest.param(
            group(a="t", b="t", c="t"),
            {"t": 8},
            {"a": "t0 t1 t2", "b": "t3 t4 t5", "c": "t6 t7"},
            id="a remainder of two",
        ),
        pytest.param(
            {"a": GroupMember(frozenset("t")), "x": static("t", "2"), "y": static("t", "1")},
            {"t": 3},
            {"y": "t0", "x": "t1", "a": "t2"},
            id="static members first, by their instance ids",
        ),
    ],
)
def test_range_assigns_as_in_java_s_examples(
    members: dict[str, GroupMember], partitions: dict[str, int], shares: dict[str, str]
) -> None:
    assert shown(RangeAssignor().assign(members, partitions)) == shares


@pytest.mark.parametrize(
    ("members", "partitions", "shares"),
    [
        pytest.param(group(), {}, {}, id="nobody"),
        pytest.param(group(a="", b=""), {"t": 3}, {"a": "", "b": ""}, id="nobody wants anything"),
        pytest.param(group(a="t"), {"t": 2, "u": 2}, {"a": "t0 t1"}, id="a topic that nobody wants"),
        pytest.param(
            group(b="t u", a="t u"), {"u": 3, "t": 3}, {"a": "t0 t2 u1", "b": "t1 u0 u2"}, id="one round for all topics"
        ),
        pytest.param(
            group(a="t", b="t u", c="t u v"),
            {"t": 1, "u": 2, "v": 3},
            {"a": "t0", "b": "u0", "c": "u1 v0 v1 v2"},
            id="a skipped member is not compensated",
        ),
        pytest.param(
            group(a="t", b="u", c="t"),
            {"t": 3},
            {"a": "t0 t2", "b": "", "c": "t1"},
            id="the next subscriber",
        ),
        pytest.param(
            {"a": GroupMember(frozenset("t")), "x": static("t", "2"), "y": static("t", "1")},
            {"t": 4},
            {"y": "t0 t3", "x": "t1", "a": "t2"},
            id="static members first, by their instance ids",
        ),
    ],
)
def test_round_robin_assigns_as_in_java_s_examples(
    members: dict[str, GroupMember], partitions: dict[str, int], shares: dict[str, str]
) -> None:
    assert shown(RoundRobinAssignor().assign(members, partitions)) == shares


MEMBERS = st.dictionaries(
    st.sampled_from("abcdefg"),
    st.builds(GroupMember, st.frozensets(st.sampled_from("tuvwx")), instance_id=st.none()),
    max_size=7,
)
PARTITIONS = st.dictionaries(st.sampled_from("tuvwxyz"), st.integers(0, 9))


@pytest.mark.parametrize("kind", OWN)
@STEADY
@given(members=MEMBERS, partitions=PARTITIONS)
def test_every_assignor_assigns_a_new_group_everything_once(
    kind: type[Assignor], members: dict[str, GroupMember], partitions: dict[str, int]
) -> None:
    shares = kind().assign(members, partitions)
    assert shares.keys() == members.keys()
    given_out = [partition for share in shares.values() for partition in share]
    wanted = {topic for member in members.values() for topic in member.topics} & partitions.keys()
    assert sorted(given_out) == sorted(
        TopicPartition(topic, number) for topic in wanted for number in range(partitions[topic])
    )
    assert all(topic in members[member].topics for member, share in shares.items() for topic, _ in share)


@pytest.mark.parametrize("kind", OWN)
@STEADY
@given(members=MEMBERS, partitions=PARTITIONS)
def test_assignments_do_not_depend_on_the_order_of_members(
    kind: type[Assignor], members: dict[str, GroupMember], partitions: dict[str, int]
) -> None:
    backwards = dict(reversed(members.items()))
    assert kind().assign(backwards, dict(reversed(partitions.items()))) == kind().assign(members, partitions)


def test_a_topic_that_does_not_exist_has_neither_partitions_nor_subscribers() -> None:
    assert partitions_of("t", {"u": 1}) == []
    assert subscribers(group(a="t u", b="t"), {"u": 1}) == {"u": ["a"]}


def test_a_group_member_has_its_subscription_and_instance_id() -> None:
    subscription = MemberSubscription(frozenset("t"), frozenset({TopicPartition("t", 0)}), 3, "rack", b"data")
    member = GroupMember.of(subscription, "one")
    assert (member.topics, member.owned, member.generation) == (frozenset("t"), {("t", 0)}, 3)
    assert (member.rack, member.user_data, member.instance_id) == ("rack", b"data", "one")


# -- choice ----------------------------------------------------------------------------------------------------


class Mine(Assignor):
    name = "mine"

    def assign(
        self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        return {}


class Duck:
    """Has every attribute of an assignor, and inherits nothing from headrace."""

    name = "duck"
    cooperative = True

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        return b"quack"

    def assign(
        self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        return {}


class Unnamed(Mine):
    def __init__(self, name: Any) -> None:
        self.name = name


JAVA = "org.apache.kafka.clients.consumer."


@pytest.mark.parametrize("kind", OWN)
def test_assignors_are_chosen_by_name_or_by_java_s_class(kind: type[Assignor]) -> None:
    for choice in ([kind.name], [JAVA + kind.__name__], [kind], [kind()], kind.name):
        (chosen,) = assignors_of(choice)
        assert type(chosen) is kind


def test_assignors_can_be_names_separated_by_commas() -> None:
    chosen = assignors_of(f"{JAVA}RangeAssignor, cooperative-sticky")
    assert [each.name for each in chosen] == ["range", "cooperative-sticky"]


def test_assignors_of_the_user_may_be_classes_or_objects() -> None:
    mine, duck = assignors_of([Mine, Duck()])
    assert (mine.name, mine.cooperative, mine.user_data(frozenset(), frozenset(), 3)) == ("mine", False, None)
    assert (duck.name, duck.user_data(frozenset(), frozenset(), 3)) == ("duck", b"quack")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (["rnage"], "unknown assignor 'rnage' .*: did you mean 'range'"),
        (["org.apache.kafka.clients.consumer.RangeAsignor"], "did you mean 'org.apache.kafka.*RangeAssignor'"),
        (["zzz"], "there are range, roundrobin, sticky, cooperative-sticky"),
        ([], "at least one"),
        ("", "unknown assignor ''"),
        (["range", RangeAssignor], "two assignors of the name 'range'"),
        ([object()], "is no assignor: it has no name and no cooperative and no user_data and no assign"),
        ([dict], "is no assignor"),
        ([Unnamed("")], "is no assignor: its name, '', cannot be one"),
        ([Unnamed("\ud800")], "is no assignor: its name, .*, cannot be one"),
        ([Unnamed(None)], "is no assignor: its name, None, cannot be one"),
    ],
)
def test_invalid_assignment_strategies_are_refused(choice: list[str | Assignor | type[Assignor]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assignors_of(choice)


def test_only_assignors_of_this_library_are_its_own() -> None:
    """Those of the user run in a thread: they may block."""
    assert [is_own(kind()) for kind in OWN] == [True] * len(OWN)
    assert not is_own(Mine())
    assert not is_own(Duck())
    assert not is_own(type("Mine", (RangeAssignor,), {})())


@pytest.mark.parametrize(
    ("choice", "cooperative"),
    [
        ("cooperative-sticky", True),
        ("range,cooperative-sticky", False),
        ("sticky", False),
        ("range", False),
        ("roundrobin", False),
    ],
)
def test_a_list_of_strategies_is_cooperative_if_all_of_them_are(choice: str, cooperative: bool) -> None:
    assert is_cooperative(assignors_of(choice)) is cooperative
