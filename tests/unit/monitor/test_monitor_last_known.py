"""What passes show of whatever they cannot read: random histories of a cluster whose brokers come and go."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._aio.survey.found import FoundGroup, FoundLog, FoundMember, FoundMembers, FoundTopic
from headrace.errors import HeadraceError
from headrace.monitor.exposition import render
from headrace.monitor.group_rows import GroupFacts, LogBounds, group_view
from headrace.monitor.history import History
from headrace.monitor.last_known import LastKnown
from headrace.monitor.model import ClusterView, GroupHistory, GroupKey, GroupView, PartitionView
from headrace.types import Node, OffsetAndMetadata, TopicPartition
from headrace.ui.attention import CATCHING_UP, CAUGHT_UP, UNKNOWN, outlook
from support.harness.metrics_text import series

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
BROKERS = {number: Node(number, f"host{number}", 9092) for number in (1, 2)}
LEADERS = {tp: 1 + tp.partition % 2 for tp in PARTITIONS}
KEY = GroupKey(False, "g")
MEMBERS = FoundMembers("Stable", "range", (FoundMember("m-1", "m", "h", None, frozenset(PARTITIONS)),))


@dataclasses.dataclass
class Cluster:
    """Broker 1 and 2 lead two partitions each. What a pass sees of them is made by the functions of the collector."""

    ends: dict[TopicPartition, int]
    commits: dict[TopicPartition, int]
    members: bool = False
    down: frozenset[int] = frozenset()
    """Brokers that have left the cluster: their partitions have no leader."""
    silent: frozenset[int] = frozenset()
    """Brokers that do not answer, and are still leaders."""
    has_coordinator: bool = True
    """Whether the group is listed."""
    has_commits: bool = True
    has_members: bool = True
    at: float = 0.0

    def __post_init__(self) -> None:
        self.last_known = LastKnown()
        self.history = History()

    def look(self, seconds: float = 2.0) -> tuple[GroupView | None, GroupHistory, str]:
        self.at += seconds
        brokers = [it for number, it in BROKERS.items() if number not in self.down]
        leaders = {tp: -1 if it in self.down else it for tp, it in LEADERS.items()}
        logs = tuple(FoundLog(tp, leaders[tp], 0, (LEADERS[tp],), (LEADERS[tp],), ()) for tp in PARTITIONS)
        topics = [FoundTopic("t", None, False, logs, 0)]
        away = HeadraceError("no answer")
        ends = {tp: away if it in self.silent else self.ends[tp] for tp, it in leaders.items() if it > 0}
        begins = {tp: away if it in self.silent else 0 for tp, it in leaders.items() if it > 0}
        missing = self.last_known.missing_brokers(brokers, topics)
        bounds = LogBounds(
            topics, begins, ends, None, self.last_known.note_bounds(self.at, PARTITIONS, begins, ends), missing
        )
        groups = []
        if self.has_coordinator:
            facts = GroupFacts(
                FoundGroup("g", "classic", "Stable" if self.members else "Empty", 1),
                (MEMBERS if self.has_members else away) if self.members else None,
                {tp: OffsetAndMetadata(it) for tp, it in self.commits.items()} if self.has_commits else away,
            )
            found = group_view(facts, bounds, lambda tp, offset, end: float(end - offset))
            groups.append(
                self.last_known.group(
                    self.at,
                    found,
                    bounds.exists,
                    without_members=self.members and not self.has_members,
                    without_commits=not self.has_commits,
                )
            )
        groups += self.last_known.absent_groups({it.key for it in groups}, lambda group: "its coordinator is away")
        view = ClusterView(self.at, 0.1, "c", (), {}, tuple(groups))
        self.history.add(view)
        return view.group(KEY), self.history.group(KEY), render(view).decode()

    @property
    def lag(self) -> int:
        return sum(self.ends[tp] - self.commits[tp] for tp in PARTITIONS)


def a_cluster(lag: int = 100, **more: bool) -> Cluster:
    return Cluster(dict.fromkeys(PARTITIONS, 1000), dict.fromkeys(PARTITIONS, 1000 - lag), **more)


def outages(chance: random.Random, cluster: Cluster) -> None:
    for name in ("down", "silent"):
        setattr(cluster, name, frozenset(number for number in BROKERS if chance.random() < 0.25))
    cluster.has_coordinator, cluster.has_commits, cluster.has_members = (chance.random() < 0.8 for _ in range(3))


SEEDS = st.integers(0, 2**32)


def histories(seed: int, passes: int, cluster: Cluster) -> Iterator[random.Random]:
    """The first pass reads everything, the others have outages at random."""
    chance = random.Random(seed)
    for number in range(passes):
        if number:
            outages(chance, cluster)
        yield chance


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_an_outage_is_no_progress_of_a_group_that_reads_nothing(seed: int) -> None:
    cluster = a_cluster()
    for _ in histories(seed, 40, cluster):
        group, history, text = cluster.look()
        assert group is not None, "a group whose coordinator is away is not deleted"
        assert group.lag == 400
        assert history.trend is None or (history.trend.read, history.trend.growth) == (0.0, 0.0)
        assert outlook(group, history.trend) not in (CAUGHT_UP, CATCHING_UP)
        assert {it.lag for it in history.points} == {400}
        assert [it.value for it in series(text, "kafka_consumergroup_lag")] == [100] * 4
        assert [it.value for it in series(text, "kafka_consumergroup_lag_sum")] == [400]
        assert [it.value for it in series(text, "kafka_consumergroup_members")] == [0]


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_rates_are_never_above_what_was_written_and_read(seed: int) -> None:
    cluster = a_cluster(members=True)
    written, read = [0], [0]  # since the first pass
    for chance in histories(seed, 25, cluster):
        for tp in PARTITIONS:
            more = chance.randrange(50)
            cluster.ends[tp] += more
            done = chance.randrange(cluster.ends[tp] - cluster.commits[tp] + 1)
            cluster.commits[tp] += done
            written.append(written[-1] + more)
            read.append(read[-1] + done)
        group, history, _ = cluster.look()
        assert group is not None
        if (trend := history.trend) is not None:
            assert trend.written * 60 <= written[-1] - written[4] + 1e-6 or trend.written <= _rate(written) + 1e-6
            assert trend.read <= _rate(read) + 1e-6
            assert trend.read >= -1e-6
            assert not trend.is_partial or trend.caught_up is None
        if group.unread:
            assert outlook(group, history.trend) == UNKNOWN
        else:
            assert group.lag == cluster.lag


def _rate(totals: list[int]) -> float:
    """The largest rate of any window that ends with the latest pass: passes are two seconds apart."""
    passes = totals[4::4]
    return max(
        ((passes[-1] - passes[at]) / (2.0 * (len(passes) - 1 - at)) for at in range(len(passes) - 1)), default=0.0
    )


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_what_could_not_be_read_is_marked_with_the_pass_that_read_it(seed: int) -> None:
    cluster = a_cluster(members=True)
    latest: dict[TopicPartition, float] = {}
    for _ in histories(seed, 25, cluster):
        group, _, text = cluster.look()
        assert group is not None
        for tp in PARTITIONS:
            is_read = LEADERS[tp] not in cluster.down | cluster.silent
            if is_read and cluster.has_coordinator and cluster.has_commits:
                latest[tp] = cluster.at
        for row in group.partitions:
            is_current = latest[row.tp] == cluster.at
            assert row.is_unread is not is_current
            assert (row.error is None) is is_current
            if not is_current:
                assert row.stale_since is not None
                assert latest[row.tp] <= row.stale_since < cluster.at
        unread = sum(it != cluster.at for it in latest.values())
        assert group.unread == unread
        assert [it.value for it in series(text, "headrace_consumergroup_unread_partitions")] == [unread]
        assert len(group.members) == 1


def test_a_commit_beyond_the_last_known_end_is_no_problem_of_the_commit() -> None:
    cluster = a_cluster()
    cluster.look()
    cluster.down = frozenset({2})
    cluster.commits[PARTITIONS[1]] = 1010  # written and read between the pass and the outage
    group, _, _ = cluster.look()
    assert group is not None
    row = group.partitions[1]
    assert (row.lag, row.is_beyond, row.stale_since) == (0, False, 2.0)


def test_a_partition_without_a_past_has_no_lag() -> None:
    cluster = a_cluster(members=True)
    cluster.down = frozenset({2})
    group, history, text = cluster.look()
    assert group is not None
    assert [row.lag for row in group.partitions] == [100, None, 100, None]
    assert (group.unread, group.partitions[1].error) == (2, "the partition has no leader: broker 2 is down")
    assert history.points[-1].lag is None, "the sum of some partitions is not the lag"
    assert [it.value for it in series(text, "headrace_consumergroup_unread_partitions")] == [2]
    cluster.down = frozenset()
    cluster.look()
    cluster.down = frozenset({2})
    group, _, _ = cluster.look()
    assert group is not None
    assert group.partitions[1].error == "the partition has no leader: broker 2 (host2:9092) is down"


def test_what_does_not_exist_any_more_is_forgotten() -> None:
    known = LastKnown()
    known.note_bounds(1.0, PARTITIONS, dict.fromkeys(PARTITIONS, 0), dict.fromkeys(PARTITIONS, 10))
    assert set(known.note_bounds(2.0, PARTITIONS[:2], {}, {})) == set(PARTITIONS[:2])
    assert known.note_bounds(3.0, PARTITIONS, {}, {}).keys() == set(PARTITIONS[:2])
    group = GroupView("g", "classic", "Empty", coordinator=1)
    known.group(1.0, group, lambda tp: True)
    assert known.absent_groups((), lambda group: None) == []
    assert known.absent_groups((), lambda group: "away") == []
    assert known.missing_brokers([BROKERS[1]], []) == {}


def test_the_time_for_a_group_grows_with_its_partitions_and_not_with_their_square() -> None:
    partitions = [TopicPartition("t", number) for number in range(20_000)]
    before = tuple(PartitionView(tp, committed=1, next=1, end=3, lag=2) for tp in partitions)
    last_known = LastKnown()
    last_known.group(0.0, GroupView("g", "consumer", "Stable", partitions=before), lambda _: True)
    unread = tuple(PartitionView(tp, committed=1, is_leaderless=True, error="no leader") for tp in partitions)
    started = time.process_time()
    group = last_known.group(1.0, GroupView("g", "consumer", "Stable", partitions=unread), lambda _: True)
    assert time.process_time() - started < 3, "a tenth of a second is normal"
    assert [row.lag for row in group.partitions] == [2] * len(partitions)
