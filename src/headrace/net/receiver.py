"""Receives the frames of a connection on a thread of its own, with few system calls each.

For connections that carry records. The event loop would be woken for every few segments of a large answer, and each
time needs the interpreter lock, which a user who works through records holds for milliseconds. Blocking `recv`s with
MSG_WAITALL, one for a frame's length and one for its bytes, need that lock twice a frame.

While it waits, the kernel would wake the thread for every few segments too, to copy them. Of a large answer it is told
to do so only when a good part has come (SO_RCVLOWAT): half as many wake-ups, and a tenth less time for receiving. The
last part is received without that, since nothing may follow it that would make it up to so much.

The thread reads from a duplicate of the transport's descriptor, and the transport itself does not read any more. Both
share one "blocking" flag, so a write could block the loop, but only with a full send buffer: the one request that such
a connection has in flight does not fill it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import threading
from collections.abc import Callable

from .frame_pool import Frame

_LENGTH = struct.Struct(">i")
_PART = 256 * 1024
_WAITS_FOR_PARTS = sys.platform == "linux"  # elsewhere the option means something else to a blocking recv


class Receiver:
    """`take`, for a buffer of a frame's size, is called on the thread and may raise to end it; `deliver` and `lost` are
    called on the loop that made this. `close` may be called there at any time, once."""

    def __init__(
        self,
        transport: asyncio.Transport,
        host: str,
        take: Callable[[int], Frame],
        deliver: Callable[[Frame, int], None],
        lost: Callable[[Exception | None], None],
    ) -> None:
        self._take = take
        self._deliver = deliver
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        transport.pause_reading()
        self._socket: socket.socket = transport.get_extra_info("socket").dup()
        self._socket.setblocking(True)
        threading.Thread(target=self._run, name=f"headrace-receive {host}", daemon=True).start()

    @staticmethod
    def fits(transport: asyncio.Transport) -> bool:
        """Whether the bytes of this transport are those of its socket: not so with TLS."""
        return hasattr(socket, "MSG_WAITALL") and transport.get_extra_info("sslcontext") is None

    def _run(self) -> None:
        problem: Exception | None = None
        length = bytearray(4)
        try:
            while self._fill(memoryview(length)):
                size = _LENGTH.unpack(length)[0]
                frame = self._take(size)
                if not self._fill_frame(memoryview(frame)[:size]):
                    break
                self._loop.call_soon_threadsafe(self._deliver, frame, size)
        except Exception as error:  # noqa: BLE001 - told where the connection's failures are told
            problem = error
        self._socket.close()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._lost, problem)

    def _fill_frame(self, view: memoryview) -> bool:
        head = len(view) - _PART
        if head < _PART or not _WAITS_FOR_PARTS:
            return self._fill(view)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _PART)
        filled = self._fill(view[:head])
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return filled and self._fill(view[head:])

    def _fill(self, view: memoryview) -> bool:
        filled = 0
        while filled < len(view):
            count = self._socket.recv_into(view[filled:], 0, socket.MSG_WAITALL)
            if count == 0:
                return False
            filled += count
        return True

    def close(self) -> None:
        """Ends the thread, also out of the middle of a frame."""
        with contextlib.suppress(OSError):  # the peer, or the thread, has ended it before
            self._socket.shutdown(socket.SHUT_RDWR)
