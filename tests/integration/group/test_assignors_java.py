"""Java's own assignors and encodings as the oracle, for a few hundred groups in one JVM."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headrace._machines.group.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    GroupMember,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from headrace._protocol.group_data import (
    NO_GENERATION,
    read_assignment,
    read_generation,
    read_sticky_data,
    read_subscription,
    write_assignment,
    write_generation,
    write_sticky_data,
    write_subscription,
)
from headrace.local.tools import java_command
from headrace.types import TopicPartition

ORACLE = Path(__file__).parents[2] / "support" / "programs" / "AssignorOracle.java"
FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
TIMEOUT = 100.0

RANGE, ROUND_ROBIN = RangeAssignor(), RoundRobinAssignor()
STICKY, COOPERATIVE = StickyAssignor(), CooperativeStickyAssignor()
VERSIONS = range(4)
Group = tuple[dict[str, GroupMember], dict[str, int]]
Shares = Mapping[str, frozenset[TopicPartition]]


def shares_of(assignor: Assignor, group: Group) -> Shares:
    return {member: frozenset(share) for member, share in assignor.assign(*group).items()}


# -- the groups ----------------------------------------------------------------------------------------------------


def new_group(chance: random.Random, equal: bool, fewest: int = 1) -> Group:
    """Members without partitions, some of them static, and topics, some of which do not exist."""
    topics = [f"t{number}" for number in range(chance.randint(1, 6))]
    partitions = {topic: chance.randint(1, 12) for topic in topics if chance.random() < 0.9}
    everybody = frozenset(chance.sample(topics, chance.randint(1, len(topics))))
    members = {}
    for number in range(chance.randint(1, 8)):
        wanted = everybody if equal else frozenset(chance.sample(topics, chance.randint(fewest, len(topics))))
        instance = f"i{chance.randint(0, 99)}-{number}" if chance.random() < 0.3 else None
        members[f"m{chance.randint(0, 99)}-{number}"] = GroupMember(wanted, instance_id=instance)
    return members, partitions


def changed(chance: random.Random, group: Group) -> Group:
    """The same group later: after a stable assignment, members left and joined, and topics grew."""
    members, partitions = group
    before = shares_of(STICKY, group)
    gone = chance.sample(sorted(members), chance.randint(0, len(members) - 1))
    rejoined = {}
    for name, member in members.items():
        if name not in gone:
            rejoined[name] = claiming(member.topics, before[name], 5)
    some = next(iter(members.values())).topics
    for number in range(chance.randint(0, 3)):
        rejoined[f"n{number}"] = claiming(some, frozenset(), NO_GENERATION)
    grown = {topic: count + chance.choice((0, 0, 0, 3)) for topic, count in partitions.items()}
    return rejoined, grown


def claiming(topics: frozenset[str], owned: frozenset[TopicPartition], generation: int) -> GroupMember:
    """A member whose claims both sticky assignors can read."""
    return GroupMember(topics, owned, generation, None, STICKY.user_data(topics, owned, generation))


CHANCE = random.Random(62)
NEW = [new_group(CHANCE, equal=number % 3 == 0, fewest=0) for number in range(200)]
EQUAL = [changed(CHANCE, new_group(CHANCE, equal=True)) for _ in range(100)]
# Every member has topics: Java's sticky assignors may assign partitions to a member without any.
UNEQUAL = [changed(CHANCE, new_group(CHANCE, equal=False)) for _ in range(100)]
SUBSCRIPTIONS = [member for members, _ in EQUAL + UNEQUAL for member in members.values()][:300]


# -- requests to the oracle ----------------------------------------------------------------------------------------


def assign(assignor: Assignor, group: Group) -> str:
    members, partitions = group
    topics = ",".join(f"{topic}={count}" for topic, count in partitions.items()) or "none=0"
    arguments = [f"{name}/{each.instance_id or ''}/{write_subscription(each).hex()}" for name, each in members.items()]
    return " ".join(("assign", assignor.name, topics, *arguments))


def in_version(version: int, member: GroupMember) -> str:
    return f"subscription {version} {write_subscription(member).hex()}"


def given_in_version(version: int, member: GroupMember) -> str:
    return f"assignment {version} {write_assignment(member.owned, member.user_data).hex()}"


def user_data(assignor: Assignor, member: GroupMember) -> str:
    return f"userdata {assignor.name} {member.generation} {write_assignment(member.owned).hex()}"


QUESTIONS = [
    *(assign(assignor, group) for assignor in (RANGE, ROUND_ROBIN) for group in NEW),
    *(assign(assignor, group) for assignor in (STICKY, COOPERATIVE) for group in EQUAL + UNEQUAL),
    *(
        ask(version, member)
        for ask in (in_version, given_in_version)
        for version in VERSIONS
        for member in SUBSCRIPTIONS
    ),
    *(user_data(assignor, member) for assignor in (STICKY, COOPERATIVE) for member in SUBSCRIPTIONS),
]


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    java, *rest = java_command(str(ORACLE), heap="256m")
    run = subprocess.run(
        [java, *FLAGS, *rest],
        input="".join(f"{question}\n" for question in QUESTIONS),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if "Module jdk.compiler not found" in run.stderr + run.stdout:
        pytest.skip("this Java has no compiler (module jdk.compiler), so it cannot run the oracle from its source")
    assert run.returncode == 0, run.stderr or run.stdout
    return dict(zip(QUESTIONS, run.stdout.splitlines(), strict=True))


def by_java(answer: str) -> Shares:
    parts = (word.split("/") for word in answer.split())
    return {member: read_assignment(bytes.fromhex(blob))[0] for member, blob in parts}


# -- the same as Java ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", [RANGE, ROUND_ROBIN], ids=["range", "roundrobin"])
def test_range_and_round_robin_assign_as_java_does(answers: dict[str, str], assignor: Assignor) -> None:
    for group in NEW:
        assert shares_of(assignor, group) == by_java(answers[assign(assignor, group)])


def test_subscriptions_have_the_same_bytes_as_java_s(answers: dict[str, str]) -> None:
    for member in SUBSCRIPTIONS:
        assert answers[in_version(3, member)] == write_subscription(member).hex()
        for version in VERSIONS:
            found = read_subscription(bytes.fromhex(answers[in_version(version, member)]))
            assert (found.topics, found.user_data, found.rack) == (member.topics, member.user_data, None)
            assert found.owned == (member.owned if version >= 1 else frozenset())
            assert found.generation == (member.generation if version >= 2 else NO_GENERATION)


def test_assignments_of_java_are_parsed_and_have_the_same_length(answers: dict[str, str]) -> None:
    for member in SUBSCRIPTIONS:
        for version in VERSIONS:
            blob = bytes.fromhex(answers[given_in_version(version, member)])
            assert read_assignment(blob) == (member.owned, member.user_data)
            assert len(blob) == len(write_assignment(member.owned, member.user_data))


def test_user_data_of_java_is_parsed_and_has_the_same_length(answers: dict[str, str]) -> None:
    for member in SUBSCRIPTIONS:
        said = bytes.fromhex(answers[user_data(STICKY, member)])
        assert read_sticky_data(said) == (member.owned, member.generation)
        assert len(said) == len(write_sticky_data(member.owned, member.generation))
        said = bytes.fromhex(answers[user_data(COOPERATIVE, member)])
        assert said == write_generation(member.generation)
        assert read_generation(said) == member.generation


# -- at least as good as Java ---------------------------------------------------------------------------------------


def score(group: Group, shares: Shares) -> int:
    """Java's balance score: the sum of the differences between all pairs of members."""
    loads = [len(shares.get(member, ())) for member in group[0]]  # Java omits some members without partitions
    return sum(abs(one - other) for at, one in enumerate(loads) for other in loads[at:])


def staying(group: Group, shares: Shares) -> int:
    return sum(len(share & group[0][member].owned) for member, share in shares.items())


@pytest.mark.parametrize("assignor", [STICKY, COOPERATIVE], ids=["sticky", "cooperative"])
def test_java_keeps_most_owned_partitions_but_no_more_than_headrace(
    answers: dict[str, str], assignor: Assignor
) -> None:
    """Otherwise the comparison would mean nothing."""
    groups = EQUAL + UNEQUAL
    owned = sum(len(member.owned) for members, _ in groups for member in members.values())
    stays = sum(staying(group, by_java(answers[assign(assignor, group)])) for group in groups)
    assert owned * 0.7 < stays <= sum(staying(group, shares_of(assignor, group)) for group in groups) < owned


@pytest.mark.parametrize("groups", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_sticky_assignments_are_never_less_balanced_than_java_s(
    answers: dict[str, str], groups: Sequence[Group]
) -> None:
    for group in groups:
        ours, javas = shares_of(STICKY, group), by_java(answers[assign(STICKY, group)])
        assert score(group, ours) <= score(group, javas)
        assert frozenset().union(*ours.values()) == frozenset().union(*javas.values())


@pytest.mark.parametrize("assignor", [STICKY, COOPERATIVE], ids=["sticky", "cooperative"])
def test_with_equal_subscriptions_as_many_partitions_stay_as_with_java(
    answers: dict[str, str], assignor: Assignor
) -> None:
    for group in EQUAL:
        ours, javas = shares_of(assignor, group), by_java(answers[assign(assignor, group)])
        assert staying(group, ours) == staying(group, javas)
        assert sum(map(len, ours.values())) == sum(map(len, javas.values())), "the same number is withheld"
