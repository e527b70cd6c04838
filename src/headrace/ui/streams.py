"""Server-sent events: one stream for each open page. A stream starts with everything, and continues with changes.

A browser that does not read its stream is disconnected after `_SEND_WITHIN` seconds, or when others need its place
(`open_streams.py`): its first event has the name of the stream, which it confirms. A group or topic that disappears is
reported, and the stream continues: it may be created again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from starlette.types import Receive, Scope, Send

from .compression import StreamCompressor
from .feed import Feed, ViewName
from .patches import Document, first_patch, patch, plain

_SEND_WITHIN = 15.0  # seconds
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"vary", b"accept-encoding"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect events
]
_RETRY = b"retry: 2000\n\n"
_ALIVE = b": alive\n\n"


def encode_event(data: Any) -> bytes:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, default=plain)
    return b"data: " + text.encode(errors="replace") + b"\n\n"  # a path may contain bytes that are not UTF-8


class EventStream:
    """The response to one request for events, as an ASGI application. `end()` ends it at once."""

    def __init__(self, feed: Feed, view: ViewName, name: str, *, compresses: bool = False) -> None:
        self._feed = feed
        self._view = view
        self.name = name
        self._compressor = StreamCompressor() if compresses else None
        self._ended = asyncio.Event()

    def end(self) -> None:
        self._ended.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        ending = asyncio.ensure_future(self._ended.wait())
        tasks = (sending, leaving, ending)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        error = None if sending.cancelled() else sending.exception()
        if error is not None and not isinstance(error, TimeoutError | OSError):  # these two: the browser is gone
            raise error

    async def _send_all(self, send: Send) -> None:
        headers = _HEADERS if self._compressor is None else [*_HEADERS, (b"content-encoding", b"gzip")]
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": headers})
        await self._send(send, self._body(_RETRY))
        before: Document | None = None
        is_first = True
        async with contextlib.aclosing(self._feed.versions()) as versions:
            async for is_new in versions:
                if not is_new:
                    await self._send(send, self._body(_ALIVE))
                    continue
                document = self._feed.document(self._view)
                if document is None:
                    change: dict[str, Any] = {"missing": True}
                else:
                    change = first_patch(document) if before is None else patch(before, document)
                if is_first:
                    change = {"stream": self.name, **change}
                before, is_first = document, False
                await self._send(send, self._body(encode_event(change)))
        rest = b"" if self._compressor is None else self._compressor.end()
        await self._send(send, {"type": "http.response.body", "body": rest, "more_body": False})

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        async with asyncio.timeout(_SEND_WITHIN):
            await send(message)

    def _body(self, data: bytes) -> dict[str, Any]:
        body = data if self._compressor is None else self._compressor.add(data)
        return {"type": "http.response.body", "body": body, "more_body": True}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
