"""An HTTP server whose responses a test writes byte by byte: slow, cut off, too long, or no HTTP at all."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """The number of the connection, from 1 on."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Response = bytes | Callable[[socket.socket], None] | None
"""What is sent: bytes, or a function that sends them; the connection stays open. None closes it instead."""
Script = Callable[[Request], Response]


def response(
    body: Any = None, status: int = 200, *, headers: dict[str, str] | None = None, raw: bytes | None = None
) -> bytes:
    data = json.dumps(body).encode() if raw is None else raw
    lines = [f"HTTP/1.1 {status} Something", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class ScriptedServer:
    """Runs the script for every request, each connection on a thread of its own. `requests` is in order of arrival."""

    def __init__(self, script: Script, context: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.requests: list[Request] = []
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"{'http' if context is None else 'https'}://127.0.0.1:{self.port}"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, name="scripted-server")]
        self._threads[0].start()

    def close(self) -> None:
        with self._lock:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for connection in self._open:
                with_shutdown(connection)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def close_connections(self) -> None:
        """As a server does that closes idle connections."""
        with self._lock:
            for connection in self._open:
                with_shutdown(connection)

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            number += 1
            thread = threading.Thread(target=self._serve, args=(connection, number), name="scripted-connection")
            with self._lock:
                self._open.add(connection)
                self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        plain = connection
        try:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)  # takes the plain one over
                with self._lock:
                    self._open.add(connection)
            reader = connection.makefile("rb")
            with connection, reader:
                while (request := _read_request(reader, number)) is not None:
                    with self._lock:
                        self.requests.append(request)
                    answer = self.script(request)
                    if answer is None:
                        return
                    if callable(answer):
                        answer(connection)
                    else:
                        connection.sendall(answer)
        except (OSError, ValueError):
            pass  # the client has closed the connection
        finally:
            with self._lock:
                self._open -= {plain, connection}
            plain.close()


def with_shutdown(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)


def _read_request(reader: Any, number: int) -> Request | None:
    line = reader.readline()
    if not line:
        return None
    method, target, _ = line.decode().split()
    headers = {}
    while (line := reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return Request(method, target, headers, reader.read(int(headers.get("content-length", 0))), number)


@contextmanager
def scripted_server(script: Script, context: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script, context)
    try:
        yield server
    finally:
        server.close()
