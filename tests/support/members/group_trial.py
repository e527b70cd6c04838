"""A group of headrace members under test while its topic is written to, and the invariants at the end.

    nothing unread       every record was read by a member
    in order             within an ownership, a partition is read without gaps and without going back
    no broken repeats    no committed record is read by another member (`Ledger.broken`), none by a non-owner
    no false commits     a partition's committed offset never decreases, and never passes an unread record

The last one is checked in the coordinator's own log.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import BrokenBarrierError
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from support.brokers.admin import Admin, client_settings, unique
from support.brokers.group_configs import set_session_timeout
from support.brokers.steady_writer import SteadyWriter
from support.harness.waiting import wait_for
from support.ledgers.commit_history import Commit, commit_history
from support.ledgers.group_ledger import Ownership
from support.members.commands import Membership
from support.members.events import Assigned, Committed, Lost, Read, Revoked, TopicAndPartition, milliseconds
from support.members.processes import Peer, Peers

WAYS: Mapping[str, str | None] = {"eager": "range", "cooperative": "cooperative-sticky", "consumer": None}
"""The rebalance protocols, with their assignment strategies. None means KIP-848."""

_TIMEOUT = 60.0
_LIMIT = 2_000_000  # records: enough for hours
_PAUSE = 0.03
_HEARTBEAT = 100  # milliseconds; in a KIP-848 group the broker decides


class GroupTrial:
    """One group with its own topic.

    :param way: one of `WAYS`.
    :param session: its session timeout in seconds.
    :param replication: replication factor of the topic. Above 1, all replicas but one must have a record.
    :param settings: settings of all members.
    """

    def __init__(
        self,
        admin: Admin,
        way: str,
        partitions: int,
        *,
        session: float,
        replication: int = 1,
        group: str | None = None,
        **settings: object,
    ) -> None:
        self.group = group or unique(f"trial-{way}")
        self._servers = bootstrap_servers = admin.bootstrap_servers
        self.topic = topic = admin.create(
            f"trial-{way}", partitions, replication=replication, min_insync_replicas=max(1, replication - 1)
        )
        # A record's value is its offset, so retries must neither duplicate nor reorder. Idempotence is not enough: a
        # leader that has rejected the first of several requests accepts the second one as the first. Requests with more
        # records are fewer, since each request and each commit after it is copied to every replica.
        bundle = 1 if replication == 1 else 10
        self._writer = SteadyWriter(
            bootstrap_servers,
            topic,
            partitions,
            limit=_LIMIT,
            each_time=bundle,
            pause=bundle * _PAUSE,
            enable_idempotence=True,
            max_in_flight_requests_per_connection=1,
        )
        chosen = {name.replace("_", "."): value for name, value in settings.items()}
        if WAYS[way] is None:
            set_session_timeout(bootstrap_servers, self.group, round(session * 1000))
        else:
            chosen |= {"session.timeout.ms": round(session * 1000), "heartbeat.interval.ms": _HEARTBEAT}
        self._membership = Membership(bootstrap_servers, self.group, topic, WAYS[way], chosen)
        self._client = AdminClient(client_settings(bootstrap_servers))
        self.peers = Peers((topic, number) for number in range(partitions))
        self.ledger = self.peers.ledger

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.enter_context(self.peers)
            opened.enter_context(self._writer)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._opened.__exit__(*problem)

    # -- members -------------------------------------------------------------------------------------------------

    def start(self, name: str, module: str = "misbehaving_member") -> Peer:
        config = json.dumps(self._membership.config(name))
        return self.peers.start(
            name, [sys.executable, "-m", f"support.programs.{module}", self._membership.topic, config]
        )

    def start_all(self, *names: str) -> list[Peer]:
        """Start members; return when they are the group, no rebalance is in progress, and all consume."""
        members = [self.start(name) for name in names]
        self.wait_flowing(members)
        self.wait_state("STABLE")  # a cooperative group has a second rebalance, which may change nothing
        self.wait_flowing(members)
        return members

    def wait_flowing(self, members: Iterable[Peer], timeout: float = _TIMEOUT) -> None:
        """Wait until exactly these members form a stable group and have committed since now."""
        members = list(members)
        since = milliseconds()
        names = [member.name for member in members]
        self.peers.wait(
            f"{names} stable and committing",
            lambda: self.ledger.is_stable(names) and all(self.committed_at(member) >= since for member in members),
            timeout,
        )

    def committed_at(self, member: Peer) -> int:
        """The earliest of the last commits of the partitions that the member owns; 0 if one has none."""
        missing = set(self.ledger.owned(member.name))
        at = milliseconds()
        for event in reversed(member.events):
            if not missing:
                return at
            if isinstance(event, Committed) and event.error is None and missing & event.offsets.keys():
                missing -= event.offsets.keys()
                at = event.at
        return 0 if missing else at

    def hold(self, *members: Peer, busy: bool = False) -> None:
        """Stop the members in user code, between reading and committing. They are there when this returns."""
        before = {member: member.said.count("held") for member in members}
        for member in members:
            member.process.send_signal(signal.SIGQUIT if busy else signal.SIGUSR1)
        for member, times in before.items():
            wait_for(f"{member.name} is held", functools.partial(_is_held_again, member, times), _TIMEOUT)

    def hold_assigning(self, members: Iterable[Peer]) -> None:
        """Stop the group leader in its assignor at the next rebalance."""
        for member in members:
            member.process.send_signal(signal.SIGHUP)

    def wait_assigning(self, members: Iterable[Peer]) -> None:
        members = list(members)
        # There is no event for it, nor any other event during a rebalance.
        wait_for("the leader's assignor", lambda: any("assigning" in member.said for member in members), _TIMEOUT)

    def release(self, *members: Peer) -> None:
        for member in members:
            member.process.send_signal(signal.SIGUSR2)

    # -- events --------------------------------------------------------------------------------------------------

    def ownerships_since(self, at: int, partitions: Collection[TopicAndPartition] | None = None) -> list[Ownership]:
        return [
            ownership
            for ownership in self.ledger.ownerships
            if ownership.begun >= at and (partitions is None or ownership.tp in partitions)
        ]

    def changes_since(self, at: int) -> list[tuple[str, Assigned | Revoked | Lost]]:
        """Calls of listeners with at least one partition."""
        return [
            (peer.name, event)
            for peer in self.peers
            for event in peer.events
            if isinstance(event, Assigned | Revoked | Lost) and event.at >= at and event.partitions
        ]

    def refusals_of(self, member: Peer) -> list[str]:
        return [why for name, why in self.ledger.refused if name == member.name]

    def described(self) -> tuple[str, set[str]]:
        """The group's state and the client ids of its members, according to the coordinator."""
        found = self._client.describe_consumer_groups([self.group])[self.group].result(_TIMEOUT)
        return found.state.name, {member.client_id for member in found.members}

    def wait_state(self, state: str, members: Iterable[Peer] | None = None, timeout: float = _TIMEOUT) -> None:
        """Wait until the coordinator reports this state and, if given, exactly these members. It learns about assigned
        partitions a moment after the ledger."""
        names = None if members is None else {member.name for member in members}
        deadline = time.monotonic() + timeout
        while True:
            found: object
            try:
                found = now, there = self.described()
                if now == state and names in (None, there):
                    return
            except KafkaException as problem:  # the coordinator is moving
                found = problem
            if time.monotonic() > deadline:
                raise AssertionError(f"{state} {names}: not within {timeout:g} s, but {found}\n{self.peers.report()}")
            time.sleep(0.05)  # polling, since the coordinator gives no event

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self, *members: Peer) -> None:
        """Stop writing, wait until everything is read, close the members, and check the invariants."""
        ends = self._writer.finish()
        self.peers.wait("all records read", lambda: not self.ledger.unread(ends), _TIMEOUT)
        self.peers.stop(*members)
        ledger = self.ledger
        assert ledger.unread(ends) == []
        assert [ownership for ownership in ledger.ownerships if len(ownership.ranges) > 1] == [], "not in order"
        assert [str(repeat) for repeat in ledger.broken()] == []
        assert ledger.strays == []
        self._check_commits(commit_history(self._servers, self.group))

    def _check_commits(self, commits: Iterable[Commit]) -> None:
        reads: dict[TopicAndPartition, list[tuple[int, int, int]]] = defaultdict(list)
        for peer in self.peers:
            for event in peer.events:
                if isinstance(event, Read):
                    for tp, (start, end) in event.ranges.items():
                        reads[tp].append((event.at, start, end))
        progress = {tp: Progress(sorted(found)) for tp, found in reads.items()}
        committed: dict[TopicAndPartition, int] = {}
        for commit in commits:
            before = committed.get(commit.tp, 0)
            assert commit.offset >= before, f"{commit} is below the commit of {before}"
            committed[commit.tp] = commit.offset
            done = progress[commit.tp].at(commit.at)
            assert commit.offset <= done, f"{commit} when records were read up to {done}"
        assert committed.keys() == self.ledger.partitions, "the group has committed other partitions than these"


def _is_held_again(member: Peer, times: int) -> bool:
    return member.said.count("held") > times


class Progress:
    """The offset up to which a partition was read completely, over time.

    :param reads: (time, start, end) of each read, ordered by time.
    """

    def __init__(self, reads: Sequence[tuple[int, int, int]]) -> None:
        self._reads = reads
        self._next = 0
        self._done = 0
        self._beyond: set[tuple[int, int]] = set()  # after a gap

    def at(self, time: int) -> int:
        """The offset at this time. Times must not decrease between calls."""
        while self._next < len(self._reads) and self._reads[self._next][0] <= time:
            _, start, end = self._reads[self._next]
            self._beyond.add((start, end))
            self._next += 1
        for start, end in sorted(self._beyond):
            if start > self._done:
                break
            self._done = max(self._done, end)
            self._beyond.discard((start, end))
        return self._done


def at_once(scenarios: Mapping[str, Callable[[], None]]) -> None:
    """Run the scenarios in threads. They mostly wait."""
    with ThreadPoolExecutor(len(scenarios)) as threads:
        running = {name: threads.submit(scenario) for name, scenario in scenarios.items()}
    failures = []
    for name, result in running.items():
        if (failure := result.exception()) is not None:
            failure.add_note(f"in: {name}")
            failures.append(failure)
    # A broken barrier only means that another scenario failed.
    telling = [failure for failure in failures if not isinstance(failure, BrokenBarrierError)] or failures
    if telling:
        raise telling[0] if len(telling) == 1 else BaseExceptionGroup("several failed", telling)


def in_all_ways(scenario: Callable[[str], None]) -> None:
    """Run the scenario with a group of each rebalance protocol, all at the same time."""
    at_once({way: functools.partial(scenario, way) for way in WAYS})
