"""The sticky assignors: balance, no needless moves, and no partition owned twice during a rebalance."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._machines.group.assignors import Assignor, CooperativeStickyAssignor, GroupMember, StickyAssignor
from headrace._protocol.group_data import write_generation, write_sticky_data
from headrace.types import TopicPartition

STEADY = settings(deadline=None, derandomize=True, max_examples=100)
Owned = frozenset[TopicPartition]
Shares = Mapping[str, Owned]
MakeMember = Callable[[frozenset[str], Owned, int], GroupMember]

STICKY, COOPERATIVE = StickyAssignor(), CooperativeStickyAssignor()
_DAMAGED = b"\x00\x00\x00\x01\xff"


def eager(topics: frozenset[str], owned: Owned, generation: int) -> GroupMember:
    return GroupMember(topics, user_data=STICKY.user_data(topics, owned, generation))


def cooperative(topics: frozenset[str], owned: Owned, generation: int) -> GroupMember:
    return GroupMember(topics, owned, generation, user_data=COOPERATIVE.user_data(topics, owned, generation))


both = pytest.mark.parametrize(
    ("assignor", "member"),
    [pytest.param(STICKY, eager, id="sticky"), pytest.param(COOPERATIVE, cooperative, id="cooperative")],
)


def named(words: str) -> Owned:
    """Parse `t0 u12` as partitions."""
    return frozenset(TopicPartition(word[0], int(word[1:])) for word in words.split())


def assigned(assignor: Assignor, members: Mapping[str, GroupMember], partitions: Mapping[str, int]) -> Shares:
    shares = assignor.assign(members, partitions)
    assert shares.keys() == members.keys()
    result = {member: frozenset(share) for member, share in shares.items()}
    assert sum(map(len, shares.values())) == len(frozenset().union(*result.values())), "a partition was assigned twice"
    return result


def existing(members: Mapping[str, GroupMember], partitions: Mapping[str, int]) -> Owned:
    wanted = {topic for member in members.values() for topic in member.topics}
    return frozenset(TopicPartition(topic, number) for topic in wanted for number in range(partitions.get(topic, 0)))


# -- examples ------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("topics", "partitions", "owned", "shares", "withheld"),
    [
        pytest.param(
            {"a": "t u v w", "c": "t u v w"},
            {"t": 2, "u": 2, "v": 2, "w": 2},
            {"a": "t0 u1 w0", "c": "u0 v1"},
            {"a": "t0 u1 w0 t1", "c": "u0 v1 v0 w1"},
            "",
            id="one of three left: its partitions are spread",
        ),
        pytest.param(
            {"a": "t", "b": "t u", "c": "t u v"},
            {"t": 1, "u": 2, "v": 3},
            {},
            {"a": "t0", "b": "u0 u1", "c": "v0 v1 v2"},
            "",
            id="round robin would give four to c",
        ),
        pytest.param(
            {"b": "t u", "c": "t u v"},
            {"t": 1, "u": 2, "v": 3},
            {"b": "u0 u1", "c": "v0 v1 v2"},
            {"b": "u0 u1 t0", "c": "v0 v1 v2"},
            "",
            id="and a left",
        ),
        pytest.param(
            {"a": "t", "b": "t"},
            {"t": 4},
            {"a": "t0 t3", "b": "t1"},
            {"a": "t0 t3", "b": "t1 t2"},
            "",
            id="a partition was added",
        ),
        pytest.param(
            {"a": "t", "b": "t"}, {"t": 4}, {"a": "t0 t1 t2 t3"}, {"a": "t0 t1", "b": "t2 t3"}, "t2 t3", id="b joined"
        ),
        pytest.param(
            {"a": "t", "b": "t"},
            {"t": 2},
            {"a": "t0 t1 t2 t3 x0", "b": "x1"},
            {"a": "t0", "b": "t1"},
            "t1",
            id="partitions and a topic vanished",
        ),
        pytest.param(
            {"a": "u", "b": "t u"},
            {"t": 1, "u": 1},
            {"a": "t0"},
            {"a": "u0", "b": "t0"},
            "t0",
            id="a has unsubscribed from it",
        ),
        pytest.param(
            {"a": "u", "b": "u v", "c": "v"},
            {"u": 2, "v": 1},
            {"a": "u0 u1", "b": "v0"},
            {"a": "u0", "b": "u1", "c": "v0"},
            "u1 v0",
            id="a has two more than c, which is not subscribed to them: b passes one on",
        ),
    ],
)
def test_sticky_assignors_assign_as_in_java_s_examples(
    assignor: Assignor,
    member: MakeMember,
    topics: dict[str, str],
    partitions: dict[str, int],
    owned: dict[str, str],
    shares: dict[str, str],
    withheld: str,
) -> None:
    members = {each: member(frozenset(names.split()), named(owned.get(each, "")), 3) for each, names in topics.items()}
    left_out = named(withheld if assignor is COOPERATIVE else "")
    assert assigned(assignor, members, partitions) == {each: named(share) - left_out for each, share in shares.items()}


def test_sticky_gives_a_new_member_partitions_of_many_topics() -> None:
    topics = frozenset("tuvwxyz")
    partitions = dict.fromkeys(topics, 6)
    first = assigned(STICKY, {each: eager(topics, named(""), -1) for each in "abcdef"}, partitions)
    members = {each: eager(topics, owned, 1) for each, owned in first.items()}
    share = assigned(STICKY, members | {"g": eager(topics, named(""), -1)}, partitions)["g"]
    assert len(share) == 6
    assert len({topic for topic, _ in share}) == 6


# -- claims --------------------------------------------------------------------------------------------------------


@both
def test_a_partition_claimed_twice_is_kept_by_the_higher_generation(assignor: Assignor, member: MakeMember) -> None:
    members = {
        "a": member(frozenset("t"), named("t0 t1"), 4),
        "b": member(frozenset("t"), named("t0 t1 t2 t3"), 5),
        "c": member(frozenset("t"), named("t0 t1"), 3),
    }
    shares = assigned(assignor, members, {"t": 4})
    assert len(shares["b"]) == 2
    assert shares["b"] < named("t0 t1 t2 t3")
    if assignor is COOPERATIVE:
        assert shares["a"] == shares["c"] == named(""), "b may still consume all of them"


@both
@pytest.mark.parametrize("last", [2, 9])
def test_a_partition_claimed_twice_in_one_generation_is_kept_by_nobody(
    assignor: Assignor, member: MakeMember, last: int
) -> None:
    members = {
        "a": member(frozenset("t"), named("t0 t1"), 5),
        "b": member(frozenset("t"), named("t0 t2"), 5),
        "c": member(frozenset("t"), named("t3"), last),
    }
    shares = assigned(assignor, members, {"t": 4})
    assert shares["a"] >= named("t1")
    assert shares["b"] >= named("t2")
    assert shares["c"] >= named("t3")
    given_out = frozenset().union(*shares.values())
    assert given_out == (named("t1 t2 t3") if assignor is COOPERATIVE else named("t0 t1 t2 t3"))


@pytest.mark.parametrize(
    ("generation", "user_data", "keeps"),
    [
        pytest.param(7, write_generation(1), True, id="the subscription's own generation counts"),
        pytest.param(-1, write_generation(7), True, id="an old subscription has it in the user data"),
        pytest.param(-1, write_generation(5), False, id="and that may be lower"),
        pytest.param(-1, None, False, id="or missing"),
        pytest.param(-1, b"\x00\x01", False, id="or damaged"),
    ],
)
def test_a_cooperative_generation_is_in_the_subscription_or_the_user_data(
    generation: int, user_data: bytes, keeps: bool
) -> None:
    members = {
        "a": GroupMember(frozenset("t"), named("t0"), generation, user_data=user_data),
        "b": GroupMember(frozenset("t"), named("t0"), 6),
    }
    owner, other = ("a", "b") if keeps else ("b", "a")
    assert assigned(COOPERATIVE, members, {"t": 1}) == {owner: named("t0"), other: named("")}


@pytest.mark.parametrize(
    ("user_data", "keeps"),
    [
        pytest.param(write_sticky_data(named("t1"), 2), True, id="with a generation"),
        pytest.param(write_sticky_data(named("t1"), 2)[:-4], True, id="without, as the oldest members write it"),
        pytest.param(None, False, id="nothing"),
        pytest.param(_DAMAGED, False, id="damaged: it is not the group's fault"),
    ],
)
def test_the_owned_partitions_of_a_sticky_member_are_in_its_user_data(
    user_data: bytes | None, keeps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The subscription's owned partitions are not used: an eager member gave them up before it joined."""
    members = {
        "a": GroupMember(frozenset("t"), named("t0"), 9, user_data=user_data),
        "b": GroupMember(frozenset("t")),
    }
    assert assigned(STICKY, members, {"t": 2})["a"] == (named("t1") if keeps else named("t0"))
    assert any("cannot parse the previous partitions of member a" in it for it in caplog.messages) == (
        user_data == _DAMAGED
    )


def test_sticky_user_data_has_owned_partitions_and_generation() -> None:
    owned = named("t0 t1")
    assert STICKY.user_data(frozenset("t"), named(""), -1) is None
    assert STICKY.user_data(frozenset("t"), named(""), 4) == write_sticky_data([], 4)
    assert STICKY.user_data(frozenset("t"), owned, 4) == write_sticky_data(owned, 4)
    assert COOPERATIVE.user_data(frozenset("t"), owned, 4) == write_generation(4)
    assert COOPERATIVE.user_data(frozenset("t"), named(""), -1) == write_generation(-1)


# -- properties ----------------------------------------------------------------------------------------------------

TOPICS = "tuvwx"
SUBSCRIPTIONS = st.frozensets(st.sampled_from(TOPICS))
PARTITIONS = st.fixed_dictionaries({}, optional={topic: st.integers(0, 9) for topic in TOPICS})
ANYTHING = st.frozensets(st.builds(TopicPartition, st.sampled_from(TOPICS + "y"), st.integers(0, 10)), max_size=25)
EQUAL = st.builds(dict.fromkeys, st.frozensets(st.sampled_from("abcdefg"), min_size=1), SUBSCRIPTIONS)
UNEQUAL = st.dictionaries(st.sampled_from("abcdefg"), SUBSCRIPTIONS, min_size=1)


@st.composite
def groups(draw: st.DrawFn, subscriptions: st.SearchStrategy[dict[str, frozenset[str]]]) -> dict[str, GroupMember]:
    """Members with arbitrary claims, including claims to the same or to missing partitions."""
    return {
        each: cooperative(topics, draw(ANYTHING), draw(st.integers(-1, 2)))
        for each, topics in draw(subscriptions).items()
    }


def as_eager(members: Mapping[str, GroupMember]) -> dict[str, GroupMember]:
    return {
        name: GroupMember(each.topics, user_data=write_sticky_data(each.owned, each.generation))
        for name, each in members.items()
    }


def rejoined(topics: Mapping[str, frozenset[str]], shares: Shares, member: MakeMember) -> dict[str, GroupMember]:
    """Members that rejoin with their assigned partitions."""
    return {each: member(wanted, shares.get(each, frozenset()), 7) for each, wanted in topics.items()}


def relievable(topics: Mapping[str, frozenset[str]], shares: Shares) -> Iterator[tuple[str, str]]:
    """Pairs where the first has at least two partitions more and could pass one on, directly or via other members."""
    takers = {
        giver: {taker for taker in topics if any(each.topic in topics[taker] for each in share)}
        for giver, share in shares.items()
    }
    for giver in takers:
        reached = {giver}
        while True:
            more = set().union(*(takers[each] for each in reached)) | reached
            if more == reached:
                break
            reached = more
        yield from ((giver, each) for each in reached if len(shares[giver]) - len(shares[each]) >= 2)


def complete_and_balanced(members: Mapping[str, GroupMember], partitions: Mapping[str, int]) -> None:
    shares = assigned(STICKY, as_eager(members), partitions)
    topics = {each: member.topics for each, member in members.items()}
    assert all(each.topic in topics[member] for member, share in shares.items() for each in share)
    assert frozenset().union(*shares.values()) == existing(members, partitions)
    assert not list(relievable(topics, shares))


def settled_in_two_rounds(members: Mapping[str, GroupMember], partitions: Mapping[str, int]) -> None:
    """The second round assigns what the first withheld, and a third changes nothing."""
    topics = {each: member.topics for each, member in members.items()}
    first = assigned(COOPERATIVE, members, partitions)
    second = assigned(COOPERATIVE, rejoined(topics, first, cooperative), partitions)
    assert all(second[each] >= first[each] for each in topics)
    assert frozenset().union(*second.values()) == existing(members, partitions)
    assert not list(relievable(topics, second))
    assert assigned(COOPERATIVE, rejoined(topics, second, cooperative), partitions) == second


@STEADY
@given(members=groups(UNEQUAL), partitions=PARTITIONS)
def test_sticky_assigns_everything_once_and_balanced(
    members: dict[str, GroupMember], partitions: dict[str, int]
) -> None:
    complete_and_balanced(members, partitions)


@STEADY
@given(members=groups(UNEQUAL), partitions=PARTITIONS)
def test_cooperative_groups_are_balanced_after_two_rounds(
    members: dict[str, GroupMember], partitions: dict[str, int]
) -> None:
    settled_in_two_rounds(members, partitions)


def test_sticky_balances_members_with_few_common_topics() -> None:
    """Many members with few topics each and unbalanced claims."""
    chance = random.Random(41)
    for _ in range(300):
        topics = "tuvwxyz"[: chance.randint(3, 7)]
        partitions = {topic: chance.choice((1, 2, 5, 20, 60)) for topic in topics}
        members = {}
        for number in range(chance.randint(5, 15)):
            wanted = frozenset(chance.sample(topics, chance.randint(1, 3)))
            claims = (TopicPartition(chance.choice(topics), chance.randint(0, 30)) for _ in range(30))
            owned = frozenset(claims if chance.random() < 0.5 else ())
            members[f"m{number}"] = cooperative(wanted, owned, chance.randint(0, 3))
        complete_and_balanced(members, partitions)
        settled_in_two_rounds(members, partitions)


@settings(STEADY, max_examples=50)
@given(
    topics=st.dictionaries(st.sampled_from("abcd"), st.frozensets(st.sampled_from("tuv"), min_size=1), min_size=2),
    partitions=st.fixed_dictionaries({topic: st.integers(0, 2) for topic in "tuv"}),
    data=st.data(),
)
def test_no_possible_assignment_is_more_balanced_than_sticky_s(
    topics: dict[str, frozenset[str]], partitions: dict[str, int], data: st.DataObject
) -> None:
    members = {each: eager(wanted, data.draw(ANYTHING), 1) for each, wanted in topics.items()}
    shares = assigned(STICKY, members, partitions)
    takers = [
        [each for each in topics if partition.topic in topics[each]] for partition in existing(members, partitions)
    ]

    def squares(loads: list[int]) -> int:
        return sum(load**2 for load in loads)

    best = min(squares([choice.count(each) for each in topics]) for choice in itertools.product(*takers))
    assert squares([len(share) for share in shares.values()]) == best


@STEADY
@given(members=groups(EQUAL), partitions=PARTITIONS)
def test_with_equal_subscriptions_sticky_keeps_as_many_partitions_as_possible(
    members: dict[str, GroupMember], partitions: dict[str, int]
) -> None:
    shares = assigned(STICKY, as_eager(members), partitions)
    everything = existing(members, partitions)
    each, one_more = divmod(len(everything), len(members))
    assert {len(share) for share in shares.values()} <= {each, each + 1}

    owned = {}
    for name, member in members.items():
        stronger = frozenset().union(
            *(other.owned for key, other in members.items() if key != name and other.generation >= member.generation)
        )
        owned[name] = (member.owned & everything) - stronger
    possible = sum(min(len(have), each) for have in owned.values())
    possible += min(one_more, sum(len(have) > each for have in owned.values()))
    assert sum(len(shares[name] & owned[name]) for name in members) == possible


@both
@STEADY
@given(topics=UNEQUAL, partitions=PARTITIONS)
def test_sticky_moves_nothing_when_nothing_changed(
    assignor: Assignor, member: MakeMember, topics: dict[str, frozenset[str]], partitions: dict[str, int]
) -> None:
    first = assigned(assignor, rejoined(topics, {}, member), partitions)
    assert assigned(assignor, rejoined(topics, first, member), partitions) == first


@both
@STEADY
@given(topics=EQUAL, partitions=PARTITIONS, data=st.data())
def test_sticky_moves_only_the_partitions_of_a_member_that_left(
    assignor: Assignor,
    member: MakeMember,
    topics: dict[str, frozenset[str]],
    partitions: dict[str, int],
    data: st.DataObject,
) -> None:
    first = assigned(assignor, rejoined(topics, {}, member), partitions)
    leaving = data.draw(st.sampled_from(sorted(topics)))
    staying = {each: wanted for each, wanted in topics.items() if each != leaving}
    second = assigned(assignor, rejoined(staying, first, member), partitions)
    assert all(second[each] >= first[each] for each in staying)
    assert not staying or frozenset().union(*second.values()) == frozenset().union(*first.values())


@STEADY
@given(members=groups(UNEQUAL), partitions=PARTITIONS)
def test_cooperative_sticky_withholds_only_partitions_that_change_owners(
    members: dict[str, GroupMember], partitions: dict[str, int]
) -> None:
    shares = assigned(COOPERATIVE, members, partitions)
    for name, share in shares.items():
        for partition in share - members[name].owned:
            assert not any(partition in other.owned for other in members.values()), "its old owner still consumes it"
        for partition in share & members[name].owned:
            rivals = [other for key, other in members.items() if key != name and partition in other.owned]
            assert all(other.generation < members[name].generation for other in rivals)
    planned = assigned(STICKY, as_eager(members), partitions)
    for name, share in planned.items():
        assert shares[name] <= share
        assert all(any(each in other.owned for other in members.values()) for each in share - shares[name])


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["equal", "unequal"])
def test_sticky_assigns_a_thousand_members_within_seconds(share: float) -> None:
    """1,000 members, 50 topics, 10,000 partitions: a first assignment, then one that moves them from a few members."""
    chance = random.Random(4)
    partitions = {f"topic-{number:02}": 200 for number in range(50)}
    names = sorted(partitions)
    topics = {f"member-{number:03}": frozenset(chance.sample(names, int(50 * share))) for number in range(1000)}
    started = time.process_time()
    fresh = assigned(STICKY, rejoined(topics, {}, eager), partitions)
    few: dict[str, set[TopicPartition]] = {}
    for topic in names:
        owner = next(each for each in topics if topic in topics[each])
        few.setdefault(owner, set()).update(TopicPartition(topic, number) for number in range(200))
    moved = assigned(
        STICKY, rejoined(topics, {each: frozenset(owned) for each, owned in few.items()}, eager), partitions
    )
    assert {len(each) for shares in (fresh, moved) for each in shares.values()} == {10}
    assert all(len(moved[each] & owned) == 10 for each, owned in few.items())
    assert time.process_time() - started < 10, "about half a second is normal"
