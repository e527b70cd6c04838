"""Who receives on a connection: its thread, or a poll that waits. Never both, never nobody for long."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace._net._kernel import DirectResponse, FrameReceiver, PollWait
from support.brokers.fake_broker import frame
from support.harness.retries import quickest

from .test_repetition import Repeats, batch, data, response

LONG = 20.0  # seconds; no wait lasts this long unless something is broken
SHORT = 0.05
FIRST_ID = 7


class Receiving:
    """A connection with a thread that receives, as `Receiver` does. `taken` has what the thread got."""

    def __init__(self, moment: float = LONG) -> None:
        self.ours, self.peer = socket.socketpair()
        self.frames = FrameReceiver(self.ours.fileno(), moment)
        self.wait = PollWait()
        self.repeats = Repeats()
        self.taken: list[Any] = []
        self.got = threading.Condition()
        self.offset = 0
        self.last_id = FIRST_ID
        self.thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self.frames.arm(self.repeats.fetch, FIRST_ID)
        self.thread.start()

    def _run(self) -> None:
        while (received := self.frames.receive()) is not None:
            with self.got:
                self.taken.append(received)
                self.got.notify_all()
            self.wait.notify()

    def respond(self) -> None:
        """With a record of partition 0."""
        answer = response(data(0, batch(self.offset), self.offset + 1))
        self.peer.sendall(frame(self.last_id, answer))
        self.offset += 1
        self.last_id += 1

    def await_thread(self, count: int) -> None:
        with self.got:
            assert self.got.wait_for(lambda: len(self.taken) >= count, LONG)

    def poll(self, seconds: float = LONG) -> DirectResponse | None:
        found = self.wait.receive([self.frames], seconds)
        if found is None:
            return None
        assert found[0] == 0
        self.frames.noted()
        return found[1]

    def let_poll_receive(self) -> None:
        """The thread brings records to a poll that waits, and expects the next one. That receives by itself, unless it
        comes before the thread has noticed."""
        for _ in range(1000):
            self.respond()
            if self.poll() is not None:
                return
            os.sched_yield()
        raise AssertionError("the poll does not receive")

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.ours.shutdown(socket.SHUT_RDWR)
        self.frames.close()
        self.thread.join(LONG)
        assert not self.thread.is_alive(), "the receiving thread did not end"
        self.ours.close()
        self.peer.close()


@pytest.fixture
def receiving() -> Iterator[Receiving]:
    made = Receiving()
    made.start()
    yield made
    made.end()


def offsets(received: DirectResponse | None) -> list[int]:
    assert received is not None
    return [record.offset for item in received.partitions for record in item[-1]]


def test_the_thread_receives_while_no_poll_waits(receiving: Receiving) -> None:
    for count in range(1, 4):
        receiving.respond()
        receiving.await_thread(count)
    assert [offsets(each) for each in receiving.taken] == [[0], [1], [2]]


def test_after_the_first_response_a_poll_receives_by_itself(receiving: Receiving) -> None:
    receiving.let_poll_receive()
    before = len(receiving.taken)
    for _ in range(20):
        receiving.respond()
        assert offsets(receiving.poll()) == [receiving.offset - 1]
        receiving.frames.leave()
    assert len(receiving.taken) == before


def test_the_thread_takes_over_when_no_poll_comes_back() -> None:
    receiving = Receiving(moment=SHORT)
    receiving.start()
    receiving.respond()
    while receiving.poll() is None:  # the thread may be faster: its moment is short
        receiving.respond()
    before = len(receiving.taken)
    receiving.frames.leave()
    receiving.respond()
    receiving.await_thread(before + 1)
    assert offsets(receiving.taken[-1]) == [receiving.offset - 1]
    receiving.end()


def test_the_thread_does_not_wait_for_a_poll_that_was_late() -> None:
    """A program that works between polls gets what came meanwhile, and the next fetch is under way."""
    receiving = Receiving(moment=SHORT)
    receiving.start()

    def seconds_of_two() -> float:
        receiving.poll(0.0)
        receiving.frames.leave()
        before, began = len(receiving.taken), time.monotonic()
        for count in (1, 2):  # without a poll in between, the thread would sleep after the first one
            receiving.respond()
            receiving.await_thread(before + count)
        took = time.monotonic() - began
        time.sleep(2 * SHORT)  # simulated work
        return took

    seconds_of_two()
    assert quickest(seconds_of_two, SHORT / 2, tries=100) < SHORT / 2
    receiving.end()


def test_nobody_receives_before_the_last_response_is_noted(receiving: Receiving) -> None:
    receiving.let_poll_receive()
    before = len(receiving.taken)
    receiving.respond()
    found = receiving.wait.receive([receiving.frames], LONG)
    assert found is not None
    assert receiving.frames.is_noting
    receiving.frames.leave()
    receiving.respond()
    assert receiving.wait.receive([receiving.frames], SHORT) is None
    assert len(receiving.taken) == before
    receiving.frames.noted()
    assert not receiving.frames.is_noting
    assert offsets(receiving.poll()) == [receiving.offset - 1]


def test_what_was_not_noted_can_be_left_to_the_thread(receiving: Receiving) -> None:
    receiving.let_poll_receive()
    before = len(receiving.taken)
    receiving.respond()
    assert receiving.wait.receive([receiving.frames], LONG) is not None
    receiving.frames.hand_over()
    receiving.respond()
    receiving.await_thread(before + 1)


@pytest.mark.parametrize("what", ["unusual", "large", "the end", "not repeated"])
def test_a_poll_leaves_to_the_thread(receiving: Receiving, what: str) -> None:
    receiving.let_poll_receive()
    before = len(receiving.taken)
    if what == "unusual":
        receiving.peer.sendall(frame(receiving.last_id, response(data(0, None, 0, error_code=6))))
    elif what == "large":
        receiving.peer.sendall((20_000).to_bytes(4, "big") + bytes(20_000))
    elif what == "the end":
        receiving.peer.shutdown(socket.SHUT_RDWR)
    else:
        receiving.frames.disarm()
        receiving.respond()
    assert receiving.poll(SHORT) is None
    if what == "the end":
        receiving.thread.join(LONG)
        assert not receiving.thread.is_alive()
    else:
        receiving.await_thread(before + 1)
        assert isinstance(receiving.taken[-1], tuple)


def test_a_poll_that_comes_back_at_once_leaves_it_to_the_thread_too(receiving: Receiving) -> None:
    """The poll has taken the response from the socket, so nothing would wake it again."""
    for _ in range(20):
        other = Receiving()
        other.start()
        receiving.let_poll_receive()
        other.let_poll_receive()
        poll, both = PollWait(), [other.frames, receiving.frames]
        before = len(other.taken)
        other.peer.sendall(frame(other.last_id, response(data(0, None, 0, error_code=6))))
        receiving.respond()
        while (found := poll.receive(both, LONG)) is None:
            pass
        assert found[0] == 1
        receiving.frames.noted()
        came_back = threading.Thread(target=poll.receive, args=(both, LONG))
        came_back.start()
        try:
            other.await_thread(before + 1)
        finally:
            poll.notify()
            came_back.join(LONG)
            other.end()
        receiving.frames.leave()


def test_a_response_that_nobody_requested_reaches_the_thread(receiving: Receiving) -> None:
    receiving.let_poll_receive()
    before = len(receiving.taken)
    usual = frame(receiving.last_id, response(data(0, batch(receiving.offset), receiving.offset + 1)))
    receiving.peer.sendall(usual + usual)
    assert offsets(receiving.poll()) == [receiving.offset]
    assert receiving.poll() is None, "the thread has not received it"
    receiving.await_thread(before + 1)
    assert isinstance(receiving.taken[-1], tuple)


def test_a_frame_in_pieces_is_waited_for(receiving: Receiving) -> None:
    receiving.let_poll_receive()
    whole = frame(receiving.last_id, response(data(0, batch(receiving.offset), receiving.offset + 1)))
    sender = threading.Thread(target=lambda: [receiving.peer.send(whole[i : i + 1]) for i in range(len(whole))])
    sender.start()
    assert offsets(receiving.poll()) == [receiving.offset]
    sender.join(LONG)


def test_a_notification_ends_the_wait_or_the_next_one(receiving: Receiving) -> None:
    receiving.let_poll_receive()
    began = time.monotonic()
    receiving.wait.notify()
    assert receiving.poll() is None
    threading.Timer(SHORT, receiving.wait.notify).start()
    assert receiving.poll() is None
    assert SHORT / 2 < time.monotonic() - began < LONG / 2
    assert receiving.poll(SHORT) is None, "a notification counts once"


def test_a_signal_handler_that_raises_ends_the_wait(receiving: Receiving) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(number: int, stack: object) -> None:
        raise Interrupted

    receiving.let_poll_receive()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, SHORT)
        with pytest.raises(Interrupted):
            receiving.poll()
    finally:
        signal.signal(signal.SIGALRM, before)
    receiving.respond()
    assert offsets(receiving.poll()) == [receiving.offset - 1]


def test_a_signal_handler_that_returns_does_not_end_the_wait(receiving: Receiving) -> None:
    handled = []

    def interrupt_and_respond() -> None:  # in this order, however busy the machine is
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(2 * SHORT)  # in which the wait could end
        receiving.respond()

    receiving.let_poll_receive()
    before = signal.signal(signal.SIGALRM, lambda *_: handled.append(1))
    try:
        threading.Timer(SHORT, interrupt_and_respond).start()
        assert offsets(receiving.poll())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert handled


def test_a_connection_can_be_closed_while_a_poll_receives() -> None:
    """The thread closes the socket, so it must not end before the poll has left it."""
    for _ in range(20):
        receiving = Receiving()
        receiving.start()
        receiving.let_poll_receive()
        poll = threading.Thread(target=receiving.poll, args=(SHORT,))
        poll.start()
        receiving.end()
        poll.join(LONG)
        assert not poll.is_alive()
