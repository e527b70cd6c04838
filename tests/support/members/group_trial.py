"""A group of headrace members that is put to the test while its topic is written to, and what must hold in the end.

    nothing unread      every record was read by a member
    in order            between an assignment and its end a partition is read on without a gap or a step back
    nothing committed   is read again by another member (`Ledger.broken`), and nothing by one that does not own it
    no false commits    a partition's committed offset never goes back, and never over a record that nobody had read

The last one is looked up in the coordinator's own log.
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
from support.ledgers.group_ledger import Stint
from support.members.commands import Membership
from support.members.events import Assigned, Committed, Lost, Read, Revoked, TopicAndPartition, milliseconds
from support.members.processes import Peer, Peers

WAYS: Mapping[str, str | None] = {"eager": "range", "cooperative": "cooperative-sticky", "consumer": None}
"""The ways in which a group shares partitions out, and their strategies. None: KIP-848."""

_TIMEOUT = 60.0
_LIMIT = 2_000_000  # records: hours; nobody gets there
_PAUSE = 0.03
_HEARTBEAT = 100  # milliseconds; in a KIP-848 group the broker's affair


class GroupTrial:
    """One group, and a topic of its own.

    :param way: one of `WAYS`.
    :param session: its session timeout in seconds.
    :param replication: of the topic. Above 1, all but one of the replicas have to have a record.
    :param settings: of all members.
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
        # What is tried again must neither be doubled nor overtaken, for a record's value is its offset. Idempotence is
        # not enough: a leader that has refused the first of several requests takes the second one as a beginning.
        # Each request is copied to every replica, and so are the commits that follow: rather more in one of them.
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
        """Returns when they are the group, no rebalance is under way, and records flow."""
        members = [self.start(name) for name in names]
        self.wait_flowing(members)
        self.wait_state("STABLE")  # a cooperative group has a second round, in which nothing may change
        self.wait_flowing(members)
        return members

    def wait_flowing(self, members: Iterable[Peer], timeout: float = _TIMEOUT) -> None:
        """Until these are the group, at rest, and have read and committed since now."""
        members = list(members)
        since = milliseconds()
        names = [member.name for member in members]
        self.peers.wait(
            f"{names} at rest and committing",
            lambda: self.ledger.at_rest(names) and all(self.committed_at(member) >= since for member in members),
            timeout,
        )

    def committed_at(self, member: Peer) -> int:
        """When it had last committed something of each partition that it owns."""
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
        """They are in user code when this returns, between reading and committing, and stay there."""
        before = {member: member.said.count("held") for member in members}
        for member in members:
            member.process.send_signal(signal.SIGQUIT if busy else signal.SIGUSR1)
        for member, times in before.items():
            wait_for(f"{member.name} is held", functools.partial(_is_held_again, member, times), _TIMEOUT)

    def hold_assigning(self, members: Iterable[Peer]) -> None:
        """Whoever leads the group stays in its assignor the next time."""
        for member in members:
            member.process.send_signal(signal.SIGHUP)

    def wait_assigning(self, members: Iterable[Peer]) -> None:
        members = list(members)
        # No event tells of it, nor of anything else while a group rebalances.
        wait_for("the leader shares out", lambda: any("assigning" in member.said for member in members), _TIMEOUT)

    def release(self, *members: Peer) -> None:
        for member in members:
            member.process.send_signal(signal.SIGUSR2)

    # -- what happened -------------------------------------------------------------------------------------------

    def stints_since(self, at: int, partitions: Collection[TopicAndPartition] | None = None) -> list[Stint]:
        return [
            stint
            for stint in self.ledger.stints
            if stint.begun >= at and (partitions is None or stint.tp in partitions)
        ]

    def changes_since(self, at: int) -> list[tuple[str, Assigned | Revoked | Lost]]:
        """What listeners heard, as far as it was about a partition."""
        return [
            (peer.name, event)
            for peer in self.peers
            for event in peer.events
            if isinstance(event, Assigned | Revoked | Lost) and event.at >= at and event.partitions
        ]

    def refusals_of(self, member: Peer) -> list[str]:
        return [why for name, why in self.ledger.refused if name == member.name]

    def described(self) -> tuple[str, set[str]]:
        """The group's state and the names of its members, as its coordinator has them."""
        found = self._client.describe_consumer_groups([self.group])[self.group].result(_TIMEOUT)
        return found.state.name, {member.client_id for member in found.members}

    def wait_state(self, state: str, members: Iterable[Peer] | None = None, timeout: float = _TIMEOUT) -> None:
        """Until the coordinator says so, and, if they are given, that these are its members. It hears of what they have
        taken a moment after the ledger has."""
        names = None if members is None else {member.name for member in members}
        deadline = time.monotonic() + timeout
        while True:
            found: object
            try:
                found = now, there = self.described()
                if now == state and names in (None, there):
                    return
            except KafkaException as problem:  # there is no coordinator for a moment
                found = problem
            if time.monotonic() > deadline:
                raise AssertionError(f"{state} {names}: not within {timeout:g} s, but {found}\n{self.peers.report()}")
            time.sleep(0.05)  # between two looks: the coordinator gives no event

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self, *members: Peer) -> None:
        """No more is written, everything is read, then the members close. Checks what must hold."""
        ends = self._writer.finish()
        self.peers.wait("all is read", lambda: not self.ledger.unread(ends), _TIMEOUT)
        self.peers.stop(*members)
        ledger = self.ledger
        assert ledger.unread(ends) == []
        assert [stint for stint in ledger.stints if len(stint.ranges) > 1] == [], "not in order"
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
            assert commit.offset >= before, f"{commit} goes back from {before}"
            committed[commit.tp] = commit.offset
            done = progress[commit.tp].at(commit.at)
            assert commit.offset <= done, f"{commit} when all was read to {done}"
        assert committed.keys() == self.ledger.partitions, "this group has committed elsewhere"


def _is_held_again(member: Peer, times: int) -> bool:
    return member.said.count("held") > times


class Progress:
    """Up to which offset all of a partition was read, as time goes on.

    :param reads: time, start and end of each, by time.
    """

    def __init__(self, reads: Sequence[tuple[int, int, int]]) -> None:
        self._reads = reads
        self._next = 0
        self._done = 0
        self._beyond: set[tuple[int, int]] = set()  # a gap is before them

    def at(self, time: int) -> int:
        """Times must not go back."""
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
    """Runs them in threads: most of what they do is waiting."""
    with ThreadPoolExecutor(len(scenarios)) as threads:
        running = {name: threads.submit(scenario) for name, scenario in scenarios.items()}
    failures = []
    for name, result in running.items():
        if (failure := result.exception()) is not None:
            failure.add_note(f"in: {name}")
            failures.append(failure)
    # Who waited for one that failed has nothing to say.
    telling = [failure for failure in failures if not isinstance(failure, BrokenBarrierError)] or failures
    if telling:
        raise telling[0] if len(telling) == 1 else BaseExceptionGroup("several failed", telling)


def in_all_ways(scenario: Callable[[str], None]) -> None:
    """Runs it with a group of each way, all at the same time."""
    at_once({way: functools.partial(scenario, way) for way in WAYS})
