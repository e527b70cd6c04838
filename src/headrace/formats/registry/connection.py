"""One HTTP connection to a registry, and the idle ones.

Every operation of a request ends at the request's deadline, however slowly the peer sends: the timeout of a socket is
for one operation, so a peer that sends a byte now and then could hold a caller for ever. Only the resolver's own
timeout bounds the lookup of a host name.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from .login import Origin

LARGEST_ANSWER = 16 * 1024 * 1024
_IDLE_FOR = 30.0  # servers and load balancers close idle connections after a minute or later
_MOST_IDLE = 4


class AnswerTooLargeError(Exception):
    """The body of a response exceeds LARGEST_ANSWER."""


class _TimedSocket:
    """The part of a socket that http.client uses, with the deadline of the current request."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.deadline = 0.0

    def arm(self) -> None:
        self._socket.settimeout(seconds_until(self.deadline))

    def sendall(self, data: Any) -> None:
        self.arm()
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self, self._socket.makefile(mode, buffering=0)))  # type: ignore[call-overload]

    def close(self) -> None:
        self._socket.close()


class _TimedReader(io.RawIOBase):
    def __init__(self, owner: _TimedSocket, raw: io.RawIOBase) -> None:
        self._owner = owner
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._owner.arm()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class RegistryConnection(http.client.HTTPConnection):
    """A connection to an origin. One thread uses it at a time: `IdleConnections` owns the idle ones."""

    def __init__(self, origin: Origin, context: Callable[[Origin], ssl.SSLContext]) -> None:
        super().__init__(origin.host, origin.port)
        self.default_port = 443 if origin.scheme == "https" else 80
        self.origin = origin
        self._context = context
        self._timed: _TimedSocket | None = None
        self._deadline = 0.0
        self.idle_since = 0.0

    def exchange(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str], deadline: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request and read the response. Raises OSError (TimeoutError at the deadline) and HTTPException."""
        self._deadline = deadline
        if self._timed is not None:
            self._timed.deadline = deadline
        self.request(method, target, body, headers)
        response = self.getresponse()
        try:
            data = _read(response)
        except BaseException:
            response.close()
            raise
        if response.will_close:  # then it has the socket, and not this connection
            response.close()
        return response, data

    def connect(self) -> None:
        sock = _open_socket(self.origin, self._deadline)
        try:
            if self.origin.scheme == "https":
                sock.settimeout(seconds_until(self._deadline))
                sock = self._context(self.origin).wrap_socket(sock, server_hostname=self.origin.host)
        except BaseException:
            sock.close()
            raise
        self._timed = _TimedSocket(sock)
        self._timed.deadline = self._deadline
        self.sock = self._timed

    def close(self) -> None:
        super().close()
        self._timed = None


def _read(response: http.client.HTTPResponse) -> bytes:
    if response.length is not None and response.length > LARGEST_ANSWER:
        raise AnswerTooLargeError
    data = response.read(LARGEST_ANSWER + 1)
    if len(data) > LARGEST_ANSWER:
        raise AnswerTooLargeError
    if response.length:
        raise http.client.IncompleteRead(data, response.length)
    return data


def _open_socket(origin: Origin, deadline: float) -> socket.socket:
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(seconds_until(deadline))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            failure = failure or error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"no address for {origin.host}")


def seconds_until(deadline: float) -> float:
    """Raises TimeoutError if the deadline has passed."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("timed out")
    return remaining


class IdleConnections:
    """The idle connections of one process. Any thread may take and return one; the lock guards the lists."""

    def __init__(self, context: Callable[[Origin], ssl.SSLContext]) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[RegistryConnection]] = {}

    def take(self, origin: Origin) -> tuple[RegistryConnection, bool]:
        """A connection, and whether it was used before: the server may have closed it meanwhile."""
        stale: list[RegistryConnection] = []
        try:
            with self._lock:
                idle = self._idle.get(origin, [])
                while idle:
                    connection = idle.pop()
                    if time.monotonic() - connection.idle_since < _IDLE_FOR:
                        return connection, True
                    stale.append(connection)
        finally:
            for connection in stale:
                connection.close()
        return RegistryConnection(origin, self._context), False

    def put_back(self, connection: RegistryConnection) -> None:
        connection.idle_since = time.monotonic()
        with self._lock:
            idle = self._idle.setdefault(connection.origin, [])
            if len(idle) < _MOST_IDLE:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def renew_after_fork(self) -> None:
        """In the child: the sockets belong to the parent, and a thread that does not exist here may hold the lock.
        Closing the child's copies does not affect the parent."""
        self._lock = threading.Lock()
        self.close()
