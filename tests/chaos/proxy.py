"""A proxy in front of a broker that cuts, halves, delays, reorders, floods and withholds, on command.

headrace's clients are redirected to it (`clients/process.py`). Java's and librdkafka's clients use the addresses that
brokers advertise, so they connect directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl

from support.harness.loop_thread import ProxyThread, until_one_ends

_CHUNK = 65_536
_CONNECT_WITHIN = 5.0
_SIZE = 4
_UNREQUESTED = (8).to_bytes(_SIZE, "big") + b"\x7f\xff\xff\xff" + bytes(4)
"""A response to a request that nobody has sent."""
_FLOOD = 100
_JUNK = (b"\x7f\xff\xff\xff" + bytes(60), b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\x00\x00\x00\x40\xff" + bytes(20))
"""What strangers send to a broker: absurd lengths, another protocol, empty requests, half a request."""
_STRANGERS = 40


class FrameBoundaries:
    """Follows a stream of Kafka's messages: a size of four bytes, and as many bytes."""

    def __init__(self) -> None:
        self._size = b""
        self._left = 0

    def feed(self, data: bytes) -> bool:
        """Whether the stream so far ends with a complete message."""
        while data:
            if self._left:
                taken = min(self._left, len(data))
                self._left -= taken
                data = data[taken:]
            else:
                needed = _SIZE - len(self._size)
                self._size, data = self._size + data[:needed], data[needed:]
                if len(self._size) == _SIZE:
                    self._left, self._size = int.from_bytes(self._size, "big"), b""
        return not self._left and not self._size


class Proxy(ProxyThread):
    """Any thread may command it."""

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(target, "chaos proxy")
        self._tls = tls
        self._delay = 0.0
        self._jitter = 0.0
        self._halves = 0
        self._floods = 0
        self._links: set[asyncio.Task[None]] = set()
        self._strangers: set[asyncio.Task[None]] = set()

    # -- commands ----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._cut)

    def halve(self) -> None:
        """Forward only half of the next chunk on each connection, then close it."""
        self._loop.call_soon_threadsafe(self._set_halves)

    def set_delay(self, seconds: float) -> None:
        """Delay each chunk."""
        self._loop.call_soon_threadsafe(setattr, self, "_delay", seconds)

    def set_jitter(self, seconds: float) -> None:
        """Delay each chunk by a time of its own: requests on different connections overtake each other."""
        self._loop.call_soon_threadsafe(setattr, self, "_jitter", seconds)

    def flood(self) -> None:
        """Send responses that nobody requested to all clients, and junk on new connections to the broker."""
        self._loop.call_soon_threadsafe(self._flood)

    def set_black_hole(self, is_on: bool) -> None:
        """Forward nothing. Bytes are kept, as TCP would, and forwarded afterwards."""
        self._loop.call_soon_threadsafe(self._flow.clear if is_on else self._flow.set)

    def renew(self, tls: ssl.SSLContext) -> None:
        """Listen on the same port with another certificate, and close all connections."""
        self._run(self._renew(tls))

    # -- on the loop -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._flow = asyncio.Event()
        self._flow.set()
        await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _renew(self, tls: ssl.SSLContext) -> None:
        self._server.close()
        self._cut()
        self._tls = tls
        await self._listen()

    def _cut(self) -> None:
        for link in self._links:
            link.cancel()

    def _set_halves(self) -> None:
        self._halves += 1

    def _flood(self) -> None:
        self._floods += 1
        for number in range(_STRANGERS):
            task = asyncio.ensure_future(self._send_junk(_JUNK[number % len(_JUNK)]))
            self._strangers.add(task)
            task.add_done_callback(self._strangers.discard)

    async def _send_junk(self, junk: bytes) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT_WITHIN):
                reader, writer = await asyncio.open_connection(*self._target)
                try:
                    writer.write(junk)
                    await reader.read(_CHUNK)
                finally:
                    writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        broker_writer: asyncio.StreamWriter | None = None
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                await self._flow.wait()
                async with asyncio.timeout(_CONNECT_WITHIN):
                    broker_reader, broker_writer = await asyncio.open_connection(*self._target)
                await until_one_ends(self._forward(reader, broker_writer), self._forward(broker_reader, writer, True))
        finally:
            self._links.discard(link)
            for each in (writer, broker_writer):
                if each is not None:
                    each.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_to_client: bool = False
    ) -> None:
        halves, floods = self._halves, self._floods
        boundaries = FrameBoundaries()
        while data := await reader.read(_CHUNK):
            await self._flow.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            if self._jitter:
                await asyncio.sleep(random.uniform(0.0, self._jitter))
            if self._halves > halves:
                writer.write(data[: len(data) // 2])
                await writer.drain()
                return
            writer.write(data)
            if boundaries.feed(data) and is_to_client and self._floods > floods:
                floods = self._floods
                writer.write(_UNREQUESTED * _FLOOD)
            await writer.drain()
