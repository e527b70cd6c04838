"""A small HTTP server that gives a few texts to a few clients. It reads no body and changes nothing.

Everything a client can do is bounded: the time for a request, the size of its head, the time for taking the response,
the number of connections and the requests on one of them. So a slow or hostile client costs one connection for a while.

    more connections than allowed     503, closed
    no complete head in time          closed
    head too large, or malformed      400, closed
    another method than GET, HEAD     405, closed, since a body may follow
    on loopback, by another name      421: a page of another site asks (DNS rebinding)
    response not taken in time        aborted
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from .loopback import host_name, is_loopback_address, is_loopback_host

log = logging.getLogger(__name__)

_LARGEST_HEAD = 16 * 1024
_MOST_CONNECTIONS = 64
_MOST_REQUESTS = 1000  # on one connection
_HEAD_WITHIN = 10.0
_IDLE_FOR = 75.0
_TAKEN_WITHIN = 30.0
_PIECE = 256 * 1024

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    503: "Service Unavailable",
}
_OTHER_NAME = b"this address is only available under the name localhost, 127.0.0.1 or [::1]\n"


class Page(NamedTuple):
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class HttpServer:
    """`pages` are asked for at each request, by path. For one event loop; `async with` serves until its end."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._host = host
        self._port = port
        self._pages = pages
        self._is_local = True
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Raises OSError if the address cannot be used."""
        self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=_LARGEST_HEAD)
        # Not the name: that of a machine may be an address of loopback.
        self._is_local = all(is_loopback_address(it.getsockname()[0]) for it in self._server.sockets)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        # Not wait_closed(): every connection has ended, and it waits for transports that were aborted, too.

    @property
    def address(self) -> tuple[str, int]:
        """The address that is used: the port may have been 0."""
        assert self._server is not None
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= _MOST_CONNECTIONS:
            writer.write(_response(503, Page(b"too many connections\n"), keep=False))
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for number in range(_MOST_REQUESTS):
                keep = await self._answer(reader, writer, _IDLE_FOR if number else _HEAD_WITHIN)
                if not keep or reader.at_eof():
                    break
            writer.close()
            async with asyncio.timeout(_TAKEN_WITHIN):
                await writer.wait_closed()  # until the rest is sent
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            log.debug("a client of the exporter is gone: %s", error)
        finally:
            writer.transport.abort()  # no effect if it is closed

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, within: float) -> bool:
        """Answers one request. Returns whether another one may follow."""
        try:
            async with asyncio.timeout(within):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _send(writer, _response(400, Page(b"the head of the request is too large\n"), keep=False))
            return False
        code, page, keep, with_body = self._page(head)
        await _send(writer, _response(code, page, keep=keep, with_body=with_body))
        return keep

    def _page(self, head: bytes) -> tuple[int, Page, bool, bool]:
        request, _, rest = head.partition(b"\r\n")
        parts = request.split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            return 400, Page(b"not an HTTP/1.1 request\n"), False, True
        method, target, version = parts
        if method not in (b"GET", b"HEAD"):
            return 405, Page(b"only GET and HEAD are allowed\n"), False, True
        headers = rest.lower()
        # A body would be taken for the next request.
        has_body = b"\r\ntransfer-encoding:" in b"\r\n" + headers or b"\r\ncontent-length:" in b"\r\n" + headers
        keep = version != b"HTTP/1.0" and b"connection: close" not in headers and not has_body
        if self._is_local and not self._is_own_name(rest):
            return 421, Page(_OTHER_NAME), keep, method == b"GET"
        path = target.partition(b"?")[0].decode("latin-1")
        page = self._pages.get(path)
        if page is None:
            return 404, Page(b"not found\n"), keep, method == b"GET"
        return 200, page(), keep, method == b"GET"

    def _is_own_name(self, headers: bytes) -> bool:
        """Whether the one Host header is a name of loopback, or the name that the server was started with."""
        pairs = (line.partition(b":") for line in headers.split(b"\r\n"))
        hosts = [value.strip().decode("latin-1") for name, _, value in pairs if name.strip().lower() == b"host"]
        if len(hosts) != 1:
            return False
        return is_loopback_host(hosts[0]) or host_name(hosts[0]) == self._host.lower()


def _response(code: int, page: Page, *, keep: bool, with_body: bool = True) -> bytes:
    allow = "Allow: GET, HEAD\r\n" if code == 405 else ""
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {page.content_type}\r\nContent-Length: {len(page.body)}\r\n"
        f"{allow}X-Content-Type-Options: nosniff\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    )
    return head.encode() + (page.body if with_body else b"")


async def _send(writer: asyncio.StreamWriter, response: bytes) -> None:
    """In pieces, so that a client which takes nothing makes the loop hold one piece of the response besides the
    cached one."""
    async with asyncio.timeout(_TAKEN_WITHIN):
        for start in range(0, len(response), _PIECE):
            writer.write(response[start : start + _PIECE])
            await writer.drain()
