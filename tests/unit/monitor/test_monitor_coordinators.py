"""Whether a group that no broker lists is gone, or only unknown."""

from __future__ import annotations

import pytest

from headrace._aio.survey.found import FoundLog
from headrace.monitor.coordinators import Coordinators, coordinator_partition
from headrace.monitor.last_known import MISSING
from headrace.monitor.model import BrokerView, GroupView
from headrace.types import TopicPartition

GROUP = GroupView("billing", "consumer", "Stable", coordinator=1)
ONE, TWO = BrokerView(1, "a", 9092), BrokerView(2, "b", 9092)
GONE = BrokerView(1, "a", 9092, error=MISSING, is_missing=True)


def logs(leader: int, epoch: int = 3) -> tuple[FoundLog, ...]:
    return tuple(
        FoundLog(TopicPartition("__consumer_offsets", number), leader, epoch, (1,), (1,), ()) for number in range(50)
    )


def asked(*passes: tuple[float, tuple[FoundLog, ...], list[BrokerView], dict[int, str]]) -> str | None:
    found = Coordinators()
    for at, offsets, brokers, broken in passes:
        found.note(at, offsets, {it.id: it for it in brokers}, broken)
    return found.why_away(GROUP)


def test_a_group_that_its_coordinator_does_not_list_is_gone() -> None:
    assert asked((0.0, logs(1), [ONE, TWO], {})) is None
    assert asked((0.0, (), [ONE, TWO], {})) is None


def test_a_group_whose_partition_has_no_leader_is_unknown() -> None:
    expected = "its coordinator is away: __consumer_offsets-9: the partition has no leader: broker 1 (a:9092) is down"
    assert asked((0.0, logs(-1), [GONE, TWO], {})) == expected
    assert asked((0.0, logs(1), [GONE, TWO], {})) == expected


@pytest.mark.parametrize("offsets", [logs(1), ()])
def test_a_group_whose_coordinator_does_not_list_its_groups_is_unknown(offsets: tuple[FoundLog, ...]) -> None:
    assert asked((0.0, offsets, [ONE, TWO], {1: "no answer"})) == "its coordinator, broker 1 (a:9092), does not answer"
    assert asked((0.0, offsets, [ONE, TWO], {2: "no answer"})) is None


def test_without_the_right_to_describe_the_offsets_topic_the_last_coordinator_decides() -> None:
    assert asked((0.0, (), [GONE, TWO], {})) == "its coordinator, broker 1 (a:9092), does not answer"
    assert asked((0.0, (), [TWO], {})) == "its coordinator, broker 1, does not answer"


def test_a_new_coordinator_has_half_a_minute_to_load_its_groups() -> None:
    before = (0.0, logs(1), [ONE, TWO], dict[int, str]())
    loading = "its coordinator, broker 2 (b:9092), was elected a moment ago"
    assert asked(before, (60.0, logs(2, 4), [ONE, TWO], {})) == loading
    assert asked(before, (60.0, logs(2, 4), [ONE, TWO], {}), (89.0, logs(2, 4), [ONE, TWO], {})) == loading
    assert asked(before, (60.0, logs(2, 4), [ONE, TWO], {}), (91.0, logs(2, 4), [ONE, TWO], {})) is None


@pytest.mark.parametrize(
    ("group", "partition"), [("billing", 9), ("", 0), ("a", 47), ("polygenelubricants", 0), ("grüße-😀", 27)]
)
def test_the_coordinator_of_a_group_is_found_as_brokers_do(group: str, partition: int) -> None:
    """`Utils.abs(group.hashCode()) % 50` in Java. The hash of the fourth is the least integer, which has no absolute
    value."""
    assert coordinator_partition(group, 50) == partition
