"""Receives the frames of a connection on its own thread, with few system calls per frame.

It is used for connections that carry records. The event loop would be woken for every few segments of a large response,
and would need the GIL each time, which a user's code that processes records holds for milliseconds. A blocking `recv`
returns a small frame at once, or the beginning of a large one, whose other bytes a second `recv` with MSG_WAITALL
waits for: the thread needs the GIL only once or twice per frame. Small frames are received natively; fetches that
Python has prepared for it are repeated there, too (`direct_fetch.rs`).

While the thread waits, the kernel would wake it for every few segments too, to copy them. For a large response,
SO_RCVLOWAT makes the kernel wait until a good part has arrived: half as many wake-ups, and a tenth less time for
receiving. The last part is received without SO_RCVLOWAT, because no more bytes may follow to reach that amount.

The thread reads from a duplicate of the transport's file descriptor, and the transport itself stops reading. Both
descriptors share one "blocking" flag, so a write could block the event loop. That happens only if the send buffer is
full, and the single request that such a connection has in flight does not fill it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import Callable

from ._kernel import DirectFetch, DirectResponse, FrameReceiver
from .frame_pool import Frame

_PART = 256 * 1024
POLL_RETURNS_WITHIN = 0.0005
"""Seconds in which a poll that has received something itself is expected back. Programs that only poll, or send a
record and wait for it, take less; work on records takes longer."""
_WAITS_FOR_PARTS = sys.platform == "linux"  # on other systems, SO_RCVLOWAT affects a blocking recv differently


class Receiver:
    """The receiving thread calls `take` for a buffer of a frame's size; if `take` raises, the thread ends. It calls
    `deliver` with each frame and its size, and `repeated` with each response that was followed by a request natively.
    `lost` is called on the event loop that created this object. `close` may be called there, once, at any time; `send`
    on the receiving thread; `arm` and `disarm` on any."""

    def __init__(
        self,
        transport: asyncio.Transport,
        host: str,
        take: Callable[[int], Frame],
        deliver: Callable[[Frame, int], None],
        repeated: Callable[[DirectResponse], None],
        lost: Callable[[BaseException | None], None],
    ) -> None:
        self._take = take
        self._deliver = deliver
        self._repeated = repeated
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        transport.pause_reading()
        self._socket: socket.socket = transport.get_extra_info("socket").dup()
        self._socket.setblocking(True)
        self.frames = FrameReceiver(self._socket.fileno(), POLL_RETURNS_WITHIN)
        threading.Thread(target=self._run, name=f"headrace-receive {host}", daemon=True).start()

    @staticmethod
    def fits(transport: asyncio.Transport) -> bool:
        """Whether the transport's bytes can be read from its socket directly. With TLS they cannot."""
        return hasattr(socket, "MSG_WAITALL") and transport.get_extra_info("sslcontext") is None

    def _run(self) -> None:
        problem: BaseException | None = None
        try:
            while (received := self.frames.receive()) is not None:
                if isinstance(received, DirectResponse):
                    self._repeated(received)
                elif not self._complete(*received):
                    break
                del received
        except BaseException as error:  # noqa: BLE001 - passed to `lost`, which handles failures of the connection
            problem = error
        self._socket.close()
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nothing is left to notify
            self._loop.call_soon_threadsafe(self._lost, problem)

    def _complete(self, size: int, first: bytes) -> bool:
        """Delivers the frame that begins with these bytes. False at the end of the connection."""
        frame = self._take(size)
        view = memoryview(frame)[:size]
        view[: len(first)] = first
        if not self._fill_frame(view[len(first) :]):
            return False
        self._deliver(frame, size)
        return True

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

    def send(self, frame: bytearray) -> None:
        """For a short frame, while no other is being sent: the socket takes it at once."""
        self._socket.sendall(frame)

    def arm(self, fetch: DirectFetch, correlation_id: int) -> None:
        """Before the request with this id is sent: repeats it natively after each usual response."""
        self.frames.arm(fetch, correlation_id)

    def disarm(self) -> int | None:
        """Repeats no request any more. Returns the correlation id of the last request, if it could have been
        repeated."""
        return self.frames.disarm()

    def close(self) -> None:
        """End the thread, even in the middle of a frame."""
        with contextlib.suppress(OSError):  # the peer or the thread has closed the socket already
            self._socket.shutdown(socket.SHUT_RDWR)
        self.frames.close()
