"""A poll that waits receives responses itself, if their streams wait for new records (`repetition.py`).

The way over the receiving thread takes longer: that thread waits for the GIL, notes the response, and wakes the poll.
So it sleeps while a poll waits, and for a moment after that (`turns.rs`).

Ctrl-C can come anywhere while the poll notes a response. A response that is noted only in part would skip or repeat
records. So the partitions are fetched again then, from their positions on, over a new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from ..._net._kernel import DirectResponse, FrameReceiver
from ..._net.connection import Connection
from ..poll_signal import PollSignal


class PolledStream(Protocol):
    """A stream of fetches, as far as polls receive its responses."""

    is_polled: bool
    """A poll notes a response: errors are the poll's, and so is Ctrl-C."""

    def start_again(self) -> None:
        """It is not known what was noted: all partitions are fetched again. Interrupted, it can be called again."""


class PolledConnection:
    """A connection of such a stream."""

    def __init__(self, stream: PolledStream, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._connection = connection
        self._loop = loop

    def note(self, response: DirectResponse) -> None:
        """A usual response has come, after which the next request was sent."""
        self._stream.is_polled = True
        try:
            self._connection.repeated(response)
        finally:
            self._stream.is_polled = False

    def start_again(self) -> None:
        """A new connection has a new session, so it does not matter what was requested on this one."""
        self._stream.start_again()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the connection
            self._loop.call_soon_threadsafe(self._connection.close)


class PollReceiving:
    """`connected` and `disconnected` are called on the loop's thread; all else belongs to the thread that polls."""

    def __init__(self, poll_signal: PollSignal) -> None:
        self._poll_signal = poll_signal
        self._connections: dict[FrameReceiver, PolledConnection] = {}  # replaced, never changed
        self._used: dict[FrameReceiver, PolledConnection] = {}  # by this poll
        self._is_noted = True  # what was received, if anything
        self.count = 0  # responses that were received here

    def connected(self, receiver: FrameReceiver, connection: PolledConnection) -> None:
        self._connections = {**self._connections, receiver: connection}

    def disconnected(self, receiver: FrameReceiver) -> None:
        self._connections = {other: each for other, each in self._connections.items() if other is not receiver}

    def wait(self, seconds: float) -> None:
        """Waits for the poll signal, and returns early when something was received."""
        if self._used and self._used is not self._connections:  # one of them may have ended meanwhile
            self.leave()
        self._used = connections = self._connections
        if not connections:
            self._poll_signal.wait(seconds)
            return
        self._is_noted = False
        try:
            found = self._poll_signal.wait_receiving(tuple(connections), seconds)
            if found is not None:
                receiver, response = found
                self.count += 1
                connections[receiver].note(response)
                receiver.noted()
            self._is_noted = True
        except BaseException:
            self.recover()
            raise

    def recover(self) -> None:
        """Fetches again what a poll has received, if it was interrupted before it had noted all of it. If this is
        interrupted, too, the next poll calls it."""
        if not self._is_noted:
            for receiver, connection in self._used.items():
                if receiver.is_noting:
                    connection.start_again()
                    receiver.hand_over()
            self._is_noted = True

    def leave(self) -> None:
        """The poll ends, or waits for something else."""
        if self._used and self._is_noted:
            for receiver in self._used:
                receiver.leave()
            self._used = {}
