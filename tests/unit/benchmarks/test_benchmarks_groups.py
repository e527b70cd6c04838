"""The benchmark of groups: when they are stable, and the report."""

from __future__ import annotations

import json
import sys
import threading
import time

import pytest

from benchmarks import consumption, crowds, joining, rebalancing, wide_topics
from benchmarks.group_report import sections
from benchmarks.groups import Groups
from benchmarks.process import run
from benchmarks.readers import Job
from benchmarks.rebalancing import Ledger, Member
from benchmarks.results import Measurement, Outcome

JOB = Job("127.0.0.1:9092", "a-topic", 12, 100, protocol="consumer", members=10)


def ledger(*shares: set[int], partitions: int = 4) -> Ledger:
    made = Ledger(partitions)
    for member, share in enumerate(shares):
        made.take(member, share)
    return made


@pytest.mark.parametrize(
    ("shares", "members", "is_stable"),
    [
        ([{0, 1}, {2, 3}], 2, True),
        ([{0, 1}, {2, 3}, set()], 2, True),
        ([{0, 1}, {2, 3}], 3, False),
        ([{0, 1}, {2}], 2, False),
        ([{0, 1}, {1, 2}], 2, False),
        ([{0, 1}, {1, 2, 3}], 2, False),
        ([{0, 1, 2}, {3}], 2, False),
        ([set()], 0, False),
    ],
)
def test_a_benchmark_group_is_at_rest_when_all_is_owned_once_and_evenly(
    shares: list[set[int]], members: int, is_stable: bool
) -> None:
    assert ledger(*shares).is_stable(members) is is_stable


def test_partitions_dropped_by_a_benchmark_member_can_be_taken_by_another() -> None:
    made = ledger({0, 1, 2, 3})
    assert made.is_stable(1)
    made.drop(0, {2, 3})
    assert not made.is_stable(1)
    made.take(1, {2, 3})
    assert made.is_stable(2)


def test_the_benchmark_ledger_waits_until_the_group_is_at_rest() -> None:
    made = ledger({0, 1})
    late = threading.Timer(0.05, made.take, (1, {2, 3}))
    late.start()
    assert made.wait(2) > 0
    late.join()


class Alone:
    """A client that gets all partitions at its first poll."""

    def subscribe(self, topic: str, ledger: Ledger) -> None:
        self.ledger, self.topic = ledger, topic

    def poll(self) -> None:
        self.ledger.take(self, range(4))

    def close(self) -> None:
        self.ledger.drop(self, range(4))


def test_a_benchmark_member_polls_until_it_leaves() -> None:
    made = Ledger(4)
    member = Member(Alone, "a-topic", made)
    stable_at = made.wait(1)
    member.leave()
    member.join()
    assert not made.is_stable(1)
    assert 0 < member.subscribed_at < stable_at
    assert member.subscribed_at < member.closed_at


def test_java_s_group_figures_are_summarized_like_python_s() -> None:
    assert joining.figures_of_java("[100.0, 3.0, 1.0, 2.0]") == {"first": 100.0, "later": 2.0, "slowest": 3.0}
    assert rebalancing.figures_of_java("[[5.0, 1.0, 2.0], [4.0, 4.0, 9.0]]") == {"join": 2.0, "close": 4.0}


def test_java_s_group_benchmarks_get_the_same_parameters_as_python_s() -> None:
    *_, source, what, servers, topic, protocol, samples = joining.java_command_line(JOB)
    assert (what, servers, topic, protocol) == ("joining", JOB.servers, JOB.topic, "consumer")
    assert int(samples) == joining.SAMPLES
    assert source == str(joining.JAVA_SOURCE)
    assert joining.JAVA_SOURCE.exists()
    *_, what, servers, topic, protocol, partitions, members, rounds, heartbeat = rebalancing.java_command_line(JOB)
    assert (what, protocol, int(partitions), int(members)) == ("rebalancing", "consumer", 12, 10)
    assert (int(rounds), int(heartbeat)) == (rebalancing.ROUNDS, rebalancing.HEARTBEAT_MS)


def measured(rate: float) -> Outcome:
    return Outcome((Measurement(1_000_000, 1_000_000 / rate, 0.5, 2.0, 100),))


def test_the_group_report_compares_each_protocol_with_assignment() -> None:
    read = {style: {"": measured(2e6), "classic": measured(1.9e6)} for style in consumption.STYLES}
    read["columnar"]["consumer"] = Outcome((), ("no coordinator",))
    times = {
        f"{protocol} {size}": {"join": 7.0, "close": 3.0} for protocol in ("classic", "consumer") for size in (1, 10)
    }
    text = "\n".join(
        sections(
            Groups(
                read,
                {"headrace": {"classic": {"first": 1.0, "later": 2.0, "slowest": 4.0}, "consumer": "failed: why"}},
                {"headrace": {**times}},
                {"headrace": {"classic": {"first": 4001.0, "later": 302.0, "slowest": 503.0}}},
                {"headrace": {"classic 50": {"stable": 1.25, "idle": 5.5, "memory": 101.0, "close": 0.75}}},
            )
        )
    )
    assert "✓ headrace columnar, subscribed, classic, × assigned: 0.95 (at least 0.95)" in text
    assert "? headrace columnar, subscribed, KIP-848, × assigned: not measured" in text
    assert "headrace columnar, subscribed, KIP-848 failed: no coordinator" in text
    assert "failed: why" in text
    assert text.count("7.00") == len(times)
    assert "4,001" in text
    assert "1.25" in text


def test_the_first_sample_of_a_wide_topic_is_reported_separately() -> None:
    samples = [{"first": 4000.0}, {"first": 300.0}, {"first": 500.0}, {"first": 400.0}]
    assert wide_topics.summary(samples) == {"first": 4000.0, "later": 400.0, "slowest": 500.0}
    assert wide_topics.summary([samples[0], "failed: why"]) == "failed: why"


class Idle(Alone):
    """Waits in its polls, as a client without records does."""

    def poll(self) -> None:
        super().poll()
        time.sleep(0.01)


def test_a_crowd_of_consumers_is_measured_until_all_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "_SETTLING", 0.0)
    monkeypatch.setattr(crowds, "_IDLE", 0.05)
    found = crowds.figures_of(Job("", "a-topic", 4, 0, members=1), Idle)
    assert found.keys() == {"stable", "idle", "memory", "close"}
    assert min(found.values()) >= 0
    assert found["memory"] > 1
    assert "MB" in crowds.shown(found)


def test_a_group_benchmark_job_survives_its_command_line() -> None:
    from benchmarks.child import command

    assert Job(**json.loads(command("joining.headrace", JOB)[-1])) == JOB


def test_a_wide_topic_s_time_starts_before_any_client_is_imported() -> None:
    clients = "{'headrace', 'confluent_kafka'} & set(sys.modules)"
    code = f"import sys, benchmarks.child, benchmarks.wide_topics; print({clients})"
    assert run([sys.executable, "-c", code], timeout=60).output == "set()\n"
