"""A socket that is lent to the threads that send: what it does not take, who is woken, and what the loop gets back."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from headrace._aio.flag import Flag
from headrace._record_batch import (
    BufferMemory,
    Delivery,
    DirectConnection,
    DirectPartition,
    DirectSender,
    OpenBatches,
    ProducerBatch,
)
from support.brokers.fake_broker import read_request

LAST_ID, SEQUENCE = 41, 9


class Lent:
    """A partition and a connection that are lent, and the broker's end of the connection."""

    def __init__(self, patience: float = 60.0) -> None:
        """A patience of a minute, so that a busy machine is not mistaken for a late answer."""
        self.memory = BufferMemory(1 << 20)
        self.ours, self.peer = socket.socketpair()
        self.ours.setblocking(False)
        self.peer.setblocking(False)
        self.sender = DirectSender("client", -1, 1000, "none", None, 16_384, self.memory, None)
        self.connection = DirectConnection(self.sender, self.ours.fileno(), patience)
        self.partition = DirectPartition(
            self.sender,
            self.connection,
            "t",
            0,
            version=12,
            topic_id=None,
            producer_id=5,
            epoch=0,
            next_sequence=SEQUENCE,
        )
        self.opened = OpenBatches(1, "murmur2", self.memory, 1 << 20)
        self.opened.lend(0, self.partition)
        self.connection.lend(LAST_ID)

    def send(self, value: bytes = b"x") -> Delivery | None:
        return self.opened.append(value, None, None, 1, 0)

    def answer(self, correlation_id: int = LAST_ID + 1, code: int = 0) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.peer.recv(65_536):
                pass
        fields = struct.pack(
            ">ibbb1sbihqqqbbbbib", correlation_id, 0, 2, 2, b"t", 2, 0, code, 7, -1, 0, 1, 0, 0, 0, 0, 0
        )
        self.peer.sendall(struct.pack(">i", len(fields)) + fields)

    @property
    def is_signalled(self) -> bool:
        return bool(select.select([self.sender.fileno()], [], [], 0)[0])

    def take_back(self) -> tuple[Any, ...]:
        self.connection.stop()
        return self.connection.take_back(100.0)


@pytest.fixture
def lent(request: pytest.FixtureRequest) -> Iterator[Lent]:
    made = Lent(**getattr(request, "param", {}))
    yield made
    made.ours.close()
    made.peer.close()


def test_a_request_that_the_socket_takes_in_part_is_completed_by_the_loop(lent: Lent) -> None:
    lent.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    delivery = lent.send(b"x" * 15_000)
    assert delivery is not None
    assert lent.is_signalled
    assert lent.connection.check() == "take back"
    last_id, in_flight, received, is_broken = lent.take_back()
    batch, correlation_id, version, sequence, age, unsent = in_flight
    assert (last_id, correlation_id, version, sequence) == (LAST_ID + 1, LAST_ID + 1, 12, SEQUENCE)
    assert (received, is_broken) == (b"", False)
    assert unsent
    assert batch.created == pytest.approx(100.0 - age)
    frame = lent.peer.recv(1 << 20) + unsent
    request = read_request(frame[4:])
    assert request.correlation_id == LAST_ID + 1
    assert bytes(request.body.topic_data[0].partition_data[0].records) == bytes(batch.encoded)
    assert not lent.partition.is_in_flight
    assert lent.partition.next_sequence == SEQUENCE + 1


def test_a_socket_that_takes_nothing_leaves_everything_as_it_was(lent: Lent) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            lent.ours.send(b"." * 65_536)
    assert lent.send() is None
    assert lent.connection.batch is None
    assert (lent.partition.next_sequence, lent.memory.used) == (SEQUENCE, 0)
    assert lent.take_back()[:2] == (LAST_ID, None)


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_socket_that_the_broker_has_closed_is_not_written_to(lent: Lent, is_watched: bool) -> None:
    if not is_watched:
        assert [lent.connection.check() for _ in range(2)] == ["watch", "idle"]
    lent.peer.close()
    assert lent.send() is None
    assert lent.is_signalled
    assert lent.connection.check() == "take back"
    assert lent.take_back() == (LAST_ID, None, b"", True)


def test_the_loop_is_woken_by_the_first_record_after_a_pause_only(lent: Lent) -> None:
    for number in range(1, 4):
        delivery = lent.send()
        assert delivery is not None
        assert not lent.is_signalled
        lent.answer(LAST_ID + number)
        delivery._batch.receive(5.0)
        assert delivery.offset == 7
    assert [lent.connection.check() for _ in range(2)] == ["watch", "idle"]
    assert lent.send() is not None
    assert lent.is_signalled
    lent.sender.clear()
    assert not lent.is_signalled
    assert lent.connection.check() == "watch"


def test_a_second_record_is_not_sent_before_the_first_one_is_answered(lent: Lent) -> None:
    first = lent.send()
    assert first is not None
    assert lent.send() is None
    lent.answer()
    assert not first.is_done
    assert lent.send() is not None, "it finds the answer"
    assert first.is_done


def test_an_open_batch_ends_the_loan_of_its_partition(lent: Lent) -> None:
    lent.opened.put(0, ProducerBatch("t", 0, 1000, 0.0, None))
    assert not lent.opened.is_direct(0)
    assert lent.send() is not None
    assert lent.connection.batch is None
    lent.opened.take(0)
    assert lent.send() is None


@pytest.mark.parametrize(("correlation_id", "code"), [(LAST_ID + 1, 3), (LAST_ID, 0)])
def test_an_unusual_answer_is_returned_as_it_was_read(lent: Lent, correlation_id: int, code: int) -> None:
    delivery = lent.send()
    assert delivery is not None
    lent.answer(correlation_id, code)
    delivery._batch.receive(5.0)
    assert not delivery.is_done
    assert delivery._batch.answer() is None
    assert lent.connection.check() == "take back"
    _, in_flight, received, is_broken = lent.take_back()
    assert in_flight[0] is delivery._batch
    assert struct.unpack_from(">i", received, 4) == (correlation_id,)
    assert not is_broken


def test_those_who_wait_are_left_to_the_loop(lent: Lent) -> None:
    """Python code on a thread that reads an answer could be interrupted, and the others would wait forever."""
    delivery, flag = lent.send(), Flag()
    assert delivery is not None
    delivery._batch.add_waiter(flag)
    lent.answer()
    delivery._batch.receive(5.0)
    assert delivery.is_done
    assert not flag.is_set
    assert lent.is_signalled
    assert lent.connection.take_waiters() == [flag]
    assert lent.connection.take_waiters() == []


@pytest.mark.parametrize("lent", [{"patience": 0.005}], indirect=True)
def test_a_late_answer_is_left_to_the_loop(lent: Lent) -> None:
    delivery = lent.send()
    assert delivery is not None
    delivery._batch.receive(5.0)
    assert not delivery.is_done
    assert lent.is_signalled
    assert lent.connection.check() == "take back"


def test_a_socket_that_is_not_lent_is_not_written_to(lent: Lent) -> None:
    lent.take_back()
    assert lent.send() is None
    lent.connection.lend(LAST_ID)
    assert lent.send() is not None
    lent.take_back()
    lent.connection.close()
    lent.connection.lend(LAST_ID)
    assert not lent.connection.is_lent
