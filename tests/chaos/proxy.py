"""A proxy in front of a broker that cuts, halves, delays and withholds what it forwards, on command.

headrace's clients are redirected to it (`clients/process.py`). Java's and librdkafka's clients use the addresses that
brokers advertise, so they connect directly.
"""

from __future__ import annotations

import asyncio
import contextlib

from support.harness.loop_thread import ProxyThread, until_one_ends

_CHUNK = 65_536
_CONNECT_WITHIN = 5.0


class Proxy(ProxyThread):
    """Any thread may command it."""

    def __init__(self, target: str) -> None:
        super().__init__(target, "chaos proxy")
        self._delay = 0.0
        self._halves = 0
        self._links: set[asyncio.Task[None]] = set()

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

    def set_black_hole(self, is_on: bool) -> None:
        """Forward nothing. Bytes are kept, as TCP would, and forwarded afterwards."""
        self._loop.call_soon_threadsafe(self._flow.clear if is_on else self._flow.set)

    # -- on the loop -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._flow = asyncio.Event()
        self._flow.set()
        await super()._start()

    def _cut(self) -> None:
        for link in self._links:
            link.cancel()

    def _set_halves(self) -> None:
        self._halves += 1

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
                await until_one_ends(self._forward(reader, broker_writer), self._forward(broker_reader, writer))
        finally:
            self._links.discard(link)
            for each in (writer, broker_writer):
                if each is not None:
                    each.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        halves = self._halves
        while data := await reader.read(_CHUNK):
            await self._flow.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            if self._halves > halves:
                writer.write(data[: len(data) // 2])
                await writer.drain()
                return
            writer.write(data)
            await writer.drain()
