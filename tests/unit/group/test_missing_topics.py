"""When a consumer warns that topics do not exist: the table of the machine, in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._machines.cluster import Cluster
from headrace._machines.missing_topics import EVERY, PATIENCE, MissingTopics, Pattern, Wanted
from headrace.events import Event, TopicsFound, TopicsMissing
from headrace.types import TopicPartition
from support.harness.machine_inputs import metadata, partition, topic

UNKNOWN, DENIED = 3, 29
TYPO = Wanted(frozenset({"orders", "ordres"}))


def cluster(*, has: tuple[str, ...] = ("orders",), lacks: tuple[str, ...] = (), code: int = UNKNOWN) -> Cluster:
    found = Cluster()
    found.apply(
        metadata(
            *(topic(partition(0), name=name, id=None) for name in has),
            *(topic(name=name, id=None, code=code) for name in lacks),
        )
    )
    return found


TYPED = cluster(lacks=("ordres",))


def missing(seconds: float, *topics: str, group: str = "g") -> TopicsMissing:
    return TopicsMissing(group, seconds, topics)


def test_a_topic_is_reported_after_five_seconds_and_then_once_a_minute() -> None:
    machine = MissingTopics("g")
    events = [(now, event) for now in range(200) for event in machine.look(TYPO, TYPED, now)]
    assert events == [(now, missing(now, "ordres")) for now in (5, 65, 125, 185)]


def test_the_machine_says_when_to_ask_it_again() -> None:
    machine = MissingTopics("g")
    assert machine.next_look == float("inf"), "nothing is wanted yet"
    times, now = [], 0.0
    for _ in range(4):
        machine.look(TYPO, TYPED, now)
        now = machine.next_look
        times.append(now)
    assert times == [PATIENCE, PATIENCE + EVERY, PATIENCE + 2 * EVERY, PATIENCE + 3 * EVERY]
    machine.look(Wanted(frozenset({"orders"})), TYPED, now)
    assert machine.next_look == float("inf")


def test_a_topic_that_is_created_in_time_is_not_worth_a_word() -> None:
    machine = MissingTopics("g")
    assert machine.look(TYPO, TYPED, 0.0) == []
    both = cluster(has=("orders", "ordres"))
    assert machine.look(TYPO, both, PATIENCE - 0.1) == []
    assert machine.look(TYPO, both, 100.0) == []


def test_a_topic_that_is_created_later_is_reported_as_found() -> None:
    machine = MissingTopics("g")
    machine.look(TYPO, TYPED, 0.0)
    machine.look(TYPO, TYPED, PATIENCE)
    assert machine.describe() == ["ordres"]
    assert machine.look(TYPO, cluster(has=("orders", "ordres")), 9.0) == [TopicsFound("g", ("ordres",))]
    assert machine.describe() == []


def test_a_topic_that_is_no_longer_read_is_forgotten_in_silence() -> None:
    machine = MissingTopics("g")
    machine.look(TYPO, TYPED, 0.0)
    machine.look(TYPO, TYPED, PATIENCE)
    assert machine.look(Wanted(frozenset({"orders"})), TYPED, 9.0) == []
    assert machine.look(TYPO, TYPED, 10.0) == []
    assert machine.look(TYPO, TYPED, 10.0 + PATIENCE) == [missing(PATIENCE, "ordres")]


def test_a_topic_that_is_deleted_while_it_is_subscribed_is_missing_from_then_on() -> None:
    machine, found = MissingTopics("g"), cluster(has=("orders",))
    orders = Wanted(frozenset({"orders"}))
    assert machine.look(orders, found, 0.0) == []
    found.apply(metadata(topic(name="orders", id=None, code=UNKNOWN)))
    assert machine.look(orders, found, 100.0) == []
    assert machine.look(orders, found, 100.0 + PATIENCE) == [missing(PATIENCE, "orders")]


def test_a_second_missing_topic_does_not_wait_for_the_next_minute() -> None:
    machine = MissingTopics("g")
    machine.look(TYPO, TYPED, 0.0)
    machine.look(TYPO, TYPED, PATIENCE)
    two = Wanted(TYPO.topics | {"paymnets"})
    known = cluster(lacks=("ordres", "paymnets"))
    assert machine.look(two, known, 20.0) == []
    assert machine.next_look == 20.0 + PATIENCE
    assert machine.look(two, known, 25.0) == [missing(25.0, "ordres", "paymnets")]
    assert machine.next_look == 25.0 + EVERY


@pytest.mark.parametrize("known", [Cluster(), cluster(has=()), cluster(lacks=("ordres",), code=DENIED)])
def test_what_no_broker_has_called_missing_is_not_missing(known: Cluster) -> None:
    machine = MissingTopics("g")
    events = [event for now in range(200) for event in machine.look(TYPO, known, now)]
    assert events == []


def test_an_assigned_partition_is_missing_if_its_topic_has_fewer() -> None:
    machine = MissingTopics(None)
    there, absent, typo = TopicPartition("orders", 0), TopicPartition("orders", 9), TopicPartition("ordres", 0)
    wanted = Wanted(partitions=frozenset({there, absent, typo}))
    machine.look(wanted, TYPED, 0.0)
    assert machine.look(wanted, TYPED, 5.0) == [TopicsMissing("", 5.0, ("ordres",), (absent,))]
    assert machine.describe() == ["orders-9", "ordres"]


def listed(*names: str) -> Cluster:
    found = cluster(has=names)
    found.apply(metadata(*(topic(partition(0), name=name, id=None) for name in names)), complete=True)
    return found


def test_a_pattern_is_missing_if_it_matches_none_of_all_topics() -> None:
    machine = MissingTopics("g")
    wanted = Wanted(pattern=Pattern("ordres.*", has_match=False))
    assert machine.look(wanted, cluster(), 0.0) == []
    assert machine.look(wanted, cluster(), 50.0) == [], "the client does not know all topics"
    machine.look(wanted, listed("orders"), 50.0)
    assert machine.look(wanted, listed("orders"), 55.0) == [TopicsMissing("g", 5.0, pattern="ordres.*")]
    matching = Wanted(pattern=Pattern("ordres.*", has_match=True))
    assert machine.look(matching, listed("orders", "ordres1"), 60.0) == [TopicsFound("g", pattern="ordres.*")]


def test_a_pattern_of_the_coordinator_is_asked_about_while_the_member_owns_nothing() -> None:
    machine = MissingTopics("g")
    idle = Wanted(pattern=Pattern("orders.*", has_match=False, is_remote=True))
    busy = Wanted(pattern=Pattern("orders.*", has_match=True, is_remote=True))
    machine.look(idle, Cluster(), 0.0)
    assert machine.look(idle, Cluster(), 5.0) == [TopicsMissing("g", 5.0, pattern="orders.*")]
    machine.matches("orders.*")  # the partitions belong to other members
    assert machine.describe() == []
    assert [event for now in range(5, 300) for event in machine.look(idle, Cluster(), now)] == []
    assert machine.look(busy, Cluster(), 300.0) == []
    machine.look(idle, Cluster(), 301.0)
    assert machine.look(idle, Cluster(), 306.0) == [TopicsMissing("g", 5.0, pattern="orders.*")]


NAMES = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(st.floats(0.0, 30.0), st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES))), max_size=40
)


@given(STEPS)
def test_every_missing_topic_is_reported_in_time_and_nothing_more_than_once_a_minute(
    steps: list[tuple[float, set[str], set[str]]],
) -> None:
    """Whatever is subscribed, created and deleted: the machine is asked after each change, and when it wants to be."""
    machine, now, absent_since = MissingTopics("g"), 0.0, dict[str, float]()
    reported_at = -EVERY

    def look(wanted: set[str], there: set[str]) -> None:
        nonlocal reported_at
        absent = wanted - there
        for name in NAMES:
            if name not in absent:
                absent_since.pop(name, None)
            else:
                absent_since.setdefault(name, now)
        known = cluster(has=tuple(there), lacks=tuple(set(NAMES) - there))
        events: list[Event] = machine.look(Wanted(frozenset(wanted)), known, now)
        late = {name for name, since in absent_since.items() if now >= since + PATIENCE}
        assert set(machine.describe()) == late
        for event in events:
            if isinstance(event, TopicsMissing):
                assert set(event.topics) == late
                is_news = any(absent_since[name] + PATIENCE > reported_at for name in late)
                assert is_news or now >= reported_at + EVERY
                reported_at = now

    for pause, wanted, there in steps:
        end = now + pause
        look(wanted, there)
        while machine.next_look < end:
            now = machine.next_look
            look(wanted, there)
        now = end


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            TopicsMissing("g", 5.0, ("ordres",), suggestions={"ordres": "orders"}),
            "group g: the topic ordres does not exist (for 5 s now; waiting for it). ordres: did you mean orders?",
        ),
        (
            TopicsMissing("", 65.4, ("a", "b"), (TopicPartition("orders", 9),)),
            "the topics a, b and the partition orders-9 do not exist (for 65 s now; waiting for it).",
        ),
        (
            TopicsMissing("g", 5.0, pattern="ord.*"),
            "group g: no topic that this client may describe matches the pattern 'ord.*' (for 5 s now; waiting for it)"
            ".",
        ),
        (TopicsFound("g", ("a", "b")), "group g: a, b exist now"),
        (TopicsFound("", pattern="ord.*"), "a topic that matches 'ord.*' exists now"),
    ],
)
def test_events_are_legible(event: Event, text: str) -> None:
    assert str(event) == text


def test_an_event_about_hundreds_of_topics_shows_ten() -> None:
    names = tuple(f"t{number}" for number in range(300))
    assert "t9 and 290 more do not exist" in str(TopicsMissing("g", 5.0, names))
