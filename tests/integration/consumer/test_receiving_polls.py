"""A poll that waits for new records receives them by itself. Ctrl-C at any point of that loses and repeats nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from headrace import Consumer, Record, Records, TopicPartition
from headrace._aio.fetch.poll_receiving import PolledConnection
from headrace._net import receiver
from support.brokers.admin import Admin
from support.brokers.produce import Outgoing, Writer
from support.harness.interrupts import Interrupter
from support.harness.waiting import Rounds

PARTITIONS = 2


class Tail:
    """A consumer at the end of a topic, to which one record at a time is written."""

    def __init__(self, servers: str, topic: str, **settings: str) -> None:
        self._writer, self._topic = Writer(servers, linger_ms=0), topic
        self.partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self.consumer = Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", **settings)
        self.consumer.assign(self.partitions)
        self.written: list[list[bytes]] = [[] for _ in self.partitions]
        self.read: list[list[bytes]] = [[] for _ in self.partitions]

    def write(self) -> None:
        number = sum(map(len, self.written)) % PARTITIONS
        value = b"%d" % len(self.written[number])
        self._writer.send(self._topic, [Outgoing(value, partition=number)])
        self._writer.flush()
        self.written[number].append(value)

    def add(self, records: Records) -> None:
        for record in records:
            assert record.value is not None
            self.read[record.partition].append(record.value)

    def catch_up(self) -> None:
        for _ in range(60):
            if self.read == self.written:
                return
            self.add(self.consumer.poll(1.0))
        raise AssertionError("a record was lost or repeated")

    @property
    def received(self) -> int:
        """Responses that polls have received themselves."""
        return self.consumer._buffer.poll_receiving.count


@pytest.fixture(autouse=True)
def polls_may_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer takes longer than half a millisecond, and so does a busy machine."""
    monkeypatch.setattr(receiver, "POLL_RETURNS_WITHIN", 5.0)


@pytest.fixture
def tail(admin: Admin, servers: str) -> Iterator[Tail]:
    tail = Tail(servers, admin.create("tail", PARTITIONS))
    with tail.consumer:
        yield tail


def test_a_poll_receives_the_next_record_itself(tail: Tail) -> None:
    rounds = Rounds("polls that receive a response", 50)
    for _ in rounds:
        tail.write()
        tail.catch_up()
        rounds.met = tail.received


def test_a_poll_that_is_interrupted_anywhere_loses_and_repeats_nothing(tail: Tail) -> None:
    points = 250
    rounds = Rounds("interrupts of polls that had received something", 10, at_least=points)
    for number in rounds:
        at = number % points + 1
        for _ in range(2):  # so that the next poll receives
            tail.write()
            tail.catch_up()
        tail.write()
        records, before = Records.EMPTY, tail.received
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            records = tail.consumer.poll(1.0)
        tail.add(records)
        rounds.met += interrupter.has_raised and tail.received > before
        tail.catch_up()
        positions = {tp: tail.consumer.position(tp) for tp in tail.partitions}
        assert positions == {tp: len(tail.written[tp.partition]) for tp in tail.partitions}


class Interrupts:
    """Interrupts the notes of a poll that has received something, and then the recovery, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 2
        monkeypatch.setattr(PolledConnection, "note", lambda connection, response: self._interrupt())
        monkeypatch.setattr(PolledConnection, "start_again", lambda connection: self._recover())
        self._undo = monkeypatch.undo

    def _interrupt(self) -> None:
        self.left -= 1
        raise KeyboardInterrupt

    def _recover(self) -> None:
        self._undo()
        self._interrupt()


def test_a_run_completes_a_recovery_that_was_interrupted(
    admin: Admin, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = admin.create("tail", PARTITIONS)
    tail = Tail(servers, topic, group_id=topic, commit_mode="done")
    tail.consumer.unsubscribe()
    tail.consumer.subscribe([topic])
    interrupts = Interrupts(monkeypatch)
    handled: list[bytes | None] = []

    def handle(record: Record) -> None:
        handled.append(record.value)
        tail.consumer.wakeup()

    with tail.consumer:
        while interrupts.left:
            tail.write()
            with contextlib.suppress(KeyboardInterrupt):
                before = sum(map(len, tail.read))
                tail.add(records := tail.consumer.poll(10.0))
                tail.consumer.done(records)
                assert sum(map(len, tail.read)) > before
            assert sum(map(len, tail.written)) < 200, "no poll has received anything"
        deadline = threading.Timer(10.0, tail.consumer.wakeup)
        deadline.start()
        tail.consumer.run(handle)
        deadline.cancel()
    assert len(handled) == 1
