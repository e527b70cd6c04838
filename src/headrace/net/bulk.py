"""Receives the rest of a large frame in one system call, on a thread of its own.

The event loop would be woken for every few segments, and each time needs the interpreter lock, which a user who
works through records holds for milliseconds. `recv` with MSG_WAITALL needs the lock once a frame.

The thread reads from a duplicate of the connection's descriptor. Both share one "blocking" flag: it is set while
the thread reads, and the transport's own reading is paused for that time. A request that is written meanwhile
could block the loop only with a full send buffer, which requests are too small to fill.

`receive`, `end` and `close` are called on the loop's thread; `done` is called there too.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Callable

# What is left of a smaller frame is there before a thread is.
WORTHWHILE = 128 * 1024


class BulkReceiver:
    def __init__(self, transport: asyncio.Transport, host: str, done: Callable[[int], None]) -> None:
        self._transport = transport
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket = transport.get_extra_info("socket").dup()
        self._work: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"headrace-receive {host}", daemon=True)
        self._thread.start()

    @staticmethod
    def fits(transport: asyncio.Transport) -> bool:
        """Whether the bytes of this transport are those of its socket: not so with TLS."""
        return hasattr(socket, "MSG_WAITALL") and transport.get_extra_info("sslcontext") is None

    def receive(self, into: memoryview) -> None:
        """Fills the view, then calls `done` with the number of bytes: fewer if the connection ended before."""
        self._transport.pause_reading()
        self._socket.setblocking(True)
        self._work.put(into)

    def _run(self) -> None:
        while (view := self._work.get()) is not None:
            filled = 0
            with contextlib.suppress(OSError):  # the transport will meet the same error and tell it
                while filled < len(view):
                    count = self._socket.recv_into(view[filled:], 0, socket.MSG_WAITALL)
                    if count == 0:
                        break
                    filled += count
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._received, filled)
        self._socket.close()

    def _received(self, count: int) -> None:
        if self._transport.is_closing():
            return
        self._socket.setblocking(False)
        self._transport.resume_reading()
        self._done(count)

    def close(self) -> None:
        """Ends the thread, also out of the middle of a frame. To be called once."""
        with contextlib.suppress(OSError):  # the peer may have ended it before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._work.put(None)
