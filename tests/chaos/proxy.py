"""A proxy in front of a broker that cuts, halves, delays and withholds what it forwards, on command.

headrace's clients are redirected to it (`clients/process.py`). Java's and librdkafka's clients use the addresses that
brokers advertise, so they connect directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Self

_CHUNK = 65_536
_CONNECT_WITHIN = 5.0


class Proxy:
    """Any thread may command it. The attributes belong to its loop's thread."""

    def __init__(self, target: str) -> None:
        self.port = 0
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._delay = 0.0
        self._halves = 0
        self._links: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="chaos proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *problem: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

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

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        self._flow = asyncio.Event()
        self._flow.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
                await self._forward_both((reader, broker_writer), (broker_reader, writer))
        finally:
            self._links.discard(link)
            for each in (writer, broker_writer):
                if each is not None:
                    each.transport.abort()

    async def _forward_both(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        tasks = [asyncio.ensure_future(self._forward(*way)) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
