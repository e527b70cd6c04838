"""A proxy in front of a broker that randomly drops connections and delays or drops responses.

Brokers advertise their own addresses, so `redirecting` makes headrace connect to the proxies instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace._net.connection import Connection
from support.harness.loop_thread import ProxyThread, until_one_ends

_CHUNK = 65_536


class FaultyProxy(ProxyThread):
    """`cut`, `swallow` and `delay` are probabilities per response; `cut` also applies to each chunk of a request."""

    def __init__(self, target: str, seed: int, *, cut: float, swallow: float, delay: float) -> None:
        super().__init__(target, "faulty proxy")
        self.faults = 0
        self.is_calm = False  # no more faults
        self._dice = random.Random(seed)
        self._cut, self._swallow, self._delay = cut, swallow, delay

    def _happens(self, chance: float) -> bool:
        found = not self.is_calm and self._dice.random() < chance
        self.faults += found
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_writer: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            broker_reader, broker_writer = await asyncio.open_connection(*self._target)
            await until_one_ends(self._requests(reader, broker_writer), self._answers(broker_reader, writer))
        for each in (writer, broker_writer):
            if each is not None:
                each.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            if self._happens(self._cut):
                writer.write(data[: self._dice.randrange(len(data))])  # cut inside a request
                return
            writer.write(data)
            await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            length = await reader.readexactly(4)
            data = await reader.readexactly(struct.unpack(">i", length)[0])
            if self._happens(self._cut):
                return
            if self._happens(self._swallow):
                await asyncio.Event().wait()  # no more responses on this connection, until the client times out
            if self._happens(self._delay):
                await asyncio.sleep(self._dice.uniform(0, 0.1))
            writer.write(length + data)
            await writer.drain()


@contextlib.contextmanager
def redirecting(ports: dict[int, int], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Redirect headrace's connections from ports (keys) to other ports (values)."""
    connect: Callable[..., Any] = Connection.open

    async def open_elsewhere(host: str, port: int, *args: Any) -> Connection:
        found: Connection = await connect(host, ports.get(port, port), *args)
        return found

    with patch.context() as patched:
        patched.setattr(Connection, "open", open_elsewhere)
        yield
