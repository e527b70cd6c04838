"""One connection to one broker.

    opening -> open -> closed

- Requests are pipelined. A broker answers the requests of one connection in order, one at a time.
- Every request has a deadline. A request that misses it closes the connection, because the broker would answer all
  later requests only after this one.
- When the connection fails, all requests in flight on it fail at once, with the same cause.
- The size of a frame is checked against `receive.message.max.bytes` before anything is allocated for it.
- A request whose caller was cancelled stays in the queue. Its response is dropped when it arrives.
- During re-authentication (`authentication.py`), requests are held back and sent later in the same order.

Everything here runs on the event loop that opened the connection, except `recycle` and the thread of `receiver.py`. The
socket can be lent to other threads meanwhile (`lending.py`).
"""

from __future__ import annotations

import asyncio
import collections
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from typing import Any

from .._protocol.codes import NONE, kafka_error
from .._protocol.messages import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Api,
    correlation_id_of,
    encode_request,
)
from .._protocol.versions import BrokerVersions, next_api_versions_attempt
from .._security.access import Access
from .._version import __version__
from ..config.client import ClientConfig
from ..errors import HeadraceError, NetworkError, ProtocolError, RequestTimeoutError
from .authentication import Authentication, connection_error
from .calls import UNSUPPORTED_VERSION, AnswerCallback, Call, Reply
from .frame_pool import Frame, FramePool
from .frame_size import frame_size_error, largest_frame
from .lending import Borrower
from .receiver import Receiver
from .throttle import Throttle
from .transport import open_transport, reset_on_close, socket_of, tls_error

_LENGTH = struct.Struct(">i")
_STAGING = 64 * 1024
_FIRST_AFTER_VERSIONS = 2  # the correlation id of the first request after ApiVersions


class Connection(asyncio.BufferedProtocol):
    """A connection to a Kafka broker. Create one with `Connection.open`."""

    def __init__(self, host: str, port: int, config: ClientConfig, frames: FramePool) -> None:
        self.host = f"{host}:{port}"
        self.versions = BrokerVersions(self.host, {})
        self.last_used = 0.0
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed: HeadraceError | None = None
        self._calls: collections.deque[Call] = collections.deque()
        self._held: list[tuple[Call | None, memoryview]] | None = None
        self._authentication: Authentication | None = None
        self._next_id = 0
        self._throttle = Throttle(self.host, self._loop)
        self._frames = frames
        # Received bytes go into `_staging`. If a frame does not fit there, the rest of it is received directly into
        # `_frame`, which ends exactly where the frame ends, so no bytes of the next frame get into it.
        self._staging = bytearray(_STAGING)
        self._staged = 0
        self._frame: Frame | None = None
        self._frame_size = 0
        self._frame_filled = 0
        self._receiver: Receiver | None = None
        self._borrower: Borrower | None = None  # the last one, until the connection ends
        self._is_lent = False
        self._is_lost = False  # as the borrower has found; `connection_lost` follows

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        config: ClientConfig,
        setup_timeout: float,
        access: Access | None = None,
        frames: FramePool | None = None,
    ) -> Connection:
        """Connect within `setup_timeout` seconds, fetch the broker's API versions, and log in. The connections of one
        client share `access` and `frames`; they are created if not given.

        Raises NetworkError if the connection cannot be opened, AuthenticationError if one side rejects the other, the
        errors of `call`, and KafkaError if the broker does not return its API versions.
        """
        connection = cls(host, port, config, frames or FramePool())
        access = access or Access(config)
        try:
            await open_transport(connection, host, port, access, setup_timeout)
            await connection._negotiate()
            if access.mechanism is not None:
                connection._authentication = Authentication(connection, host, access, connection._fail)
                await connection._authentication.log_in()
        except BaseException as error:
            connection.close()
            if isinstance(error, HeadraceError) or not isinstance(error, Exception):
                raise
            raise connection_error(error, connection.host) from error
        return connection

    async def _negotiate(self) -> None:
        version: int | None = API_VERSIONS.highest
        while version is not None:
            fields = {"client_software_name": "headrace", "client_software_version": __version__}
            reply = await self.call(API_VERSIONS, fields, version=version)
            if reply.body.error_code == NONE:
                self.versions = BrokerVersions.from_response(self.host, reply.body)
                return
            if reply.body.error_code != UNSUPPORTED_VERSION:
                break
            version = next_api_versions_attempt(version, reply.body)
        raise kafka_error(reply.body.error_code, f"ApiVersions to {self.host}")

    # -- requests --------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._closed is None and self._transport is not None and not self._is_lost

    @property
    def failure(self) -> HeadraceError | None:
        """The error that closed the connection."""
        return self._closed

    @property
    def in_flight(self) -> int:
        is_on_loan = self._is_lent and self._borrower is not None and self._borrower.is_in_flight
        return len(self._calls) + len(self._held or ()) + is_on_loan

    async def call(
        self,
        api: Api,
        fields: Mapping[str, Any],
        *,
        version: int | None = None,
        highest: int | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Send a request and wait for its response.

        Raises RequestTimeoutError, NetworkError or ProtocolError, and then the connection is closed. Raises
        UnsupportedVersionError if the broker does not support the request, and EncodingError if it cannot be encoded.
        """
        if (pause := self.throttled_for) > 0:
            await asyncio.sleep(pause)
        return await self.start(api, fields, version=version, highest=highest, timeout=timeout)

    @property
    def throttled_for(self) -> float:
        """The seconds for which the broker still throttles this client."""
        return self._throttle.seconds_left

    def start(
        self,
        api: Api,
        fields: Mapping[str, Any],
        *,
        version: int | None = None,
        highest: int | None = None,
        timeout: float | None = None,
        on_receipt: Callable[[Reply], None] | None = None,
    ) -> asyncio.Future[Reply]:
        """Send a request at once and return the future of its response. Raises the errors of `call`.

        `on_receipt` gets a small response before the future does, on the thread that receives it, if there is one."""
        version, frame = self._encode(api, fields, version, highest)
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._call(api, version, frame, answer, timeout, on_receipt)
        return answer

    def start_with(
        self,
        api: Api,
        fields: Mapping[str, Any],
        on_answer: Callable[[Reply | HeadraceError], None],
        *,
        highest: int | None = None,
    ) -> None:
        """The same for a caller that does not wait. `on_answer` is called once: see `AnswerCallback`."""
        version, frame = self._encode(api, fields, None, highest)
        self._call(api, version, frame, AnswerCallback(on_answer), None)

    def _call(
        self,
        api: Api,
        version: int,
        frame: memoryview,
        answer: asyncio.Future[Reply] | AnswerCallback,
        timeout: float | None,
        on_receipt: Callable[[Reply], None] | None = None,
    ) -> None:
        seconds = self._config.request_timeout_ms / 1000 if timeout is None else timeout
        timer = self._loop.call_later(seconds, self._expire, api, seconds)
        self._write(api, frame, Call(self._next_id, api, version, answer, timer, on_receipt))

    def send(self, api: Api, fields: Mapping[str, Any], *, highest: int | None = None) -> None:
        """Send a request that the broker does not answer (Produce with acks=0). Raises the errors of `call`."""
        _, frame = self._encode(api, fields, None, highest)
        self._write(api, frame, None)

    def _encode(
        self, api: Api, fields: Mapping[str, Any], version: int | None, highest: int | None
    ) -> tuple[int, memoryview]:
        self.take_back()
        if not self.is_open:
            raise NetworkError(f"the connection to {self.host} is closed") from self._closed
        if version is None:
            version = self.versions.pick(api, highest)
        correlation_id = (self._next_id + 1) & 0x7FFFFFFF
        frame = encode_request(api, version, correlation_id, self._config.client_id, fields)
        self._next_id = correlation_id
        # A view, because asyncio slices off each part that it has sent (16 KiB with TLS), and other slices are copies.
        return version, memoryview(frame)

    def _write(self, api: Api, frame: memoryview, call: Call | None) -> None:
        if api is not SASL_HANDSHAKE and api is not SASL_AUTHENTICATE:
            self.last_used = self._loop.time()  # a re-authentication does not count as use
            if self._held is not None:
                self._held.append((call, frame))
                return
        if call is not None:
            self._calls.append(call)
        if self._transport is not None:
            self._transport.write(frame)

    @property
    def unsent_bytes(self) -> int:
        """The size of the requests that the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def call_after_pending(self, api: Api, fields: Mapping[str, Any]) -> Any:
        """Send a request and return the body of its response. The timeout includes those of the requests in flight: the
        broker may be holding one of them, such as a long fetch, and answers in order."""
        now = self._loop.time()
        ahead = max((call.timer.when() - now for call in self._calls), default=0.0)
        reply = await self.start(api, fields, timeout=max(0.0, ahead) + self._config.request_timeout_ms / 1000)
        return reply.body

    def hold(self) -> None:
        """Hold back all requests except SASL requests."""
        self.take_back()
        self._held = []

    def release(self) -> None:
        """Send the requests that were held back."""
        held, self._held = self._held, None
        for call, frame in held or ():
            if self._closed is None and self._transport is not None:
                if call is not None:
                    self._calls.append(call)
                self._transport.write(frame)

    def _expire(self, api: Api, seconds: float) -> None:
        self._fail(RequestTimeoutError(f"{api} to {self.host}: no response in {seconds:.1f} s"))

    def close(self) -> None:
        """Close the connection at once. Requests in flight fail."""
        self._fail(NetworkError(f"the connection to {self.host} was closed by this client"))

    def _fail(self, cause: HeadraceError) -> None:
        if self._closed is not None:
            return
        if self._borrower is not None:
            self.take_back()
            self._borrower.close()  # also if it is not lent now: the borrower has the socket open, too
            self._borrower = None
        self._closed = cause
        calls, self._calls = (
            [*self._calls, *(call for call, _ in self._held or () if call is not None)],
            collections.deque(),
        )
        if self._held is not None:
            self._held = []
        if self._authentication is not None:
            self._authentication.close()
        for call in calls:
            call.timer.cancel()
            if not call.answer.done():
                call.answer.set_exception(cause)
                # Mark it as retrieved: if the caller was cancelled, asyncio would log "exception was never retrieved".
                call.answer.exception()
        if isinstance(cause, ProtocolError):
            reset_on_close(self._transport)
        if self._receiver is not None:
            self._receiver.close()
        if self._transport is not None:
            self._transport.abort()

    def recycle(self, frame: Frame) -> None:
        """Return a frame to the pool when nothing refers to it any more. May be called from any thread."""
        self._frames.give(frame)

    # -- lending the socket ----------------------------------------------------------------------------------

    @property
    def descriptor_to_lend(self) -> int | None:
        """The file descriptor of the socket, if it can be lent now: nothing is on its way in either direction."""
        transport = self._transport
        is_busy = self._is_lent or self._calls or self._staged or self._frame or self._held is not None
        if not self.is_open or transport is None or is_busy or self.throttled_for:
            return None
        if transport.get_write_buffer_size() or self._receiver:
            return None
        return socket_of(transport)

    def lend(self, borrower: Borrower) -> None:
        """Let the borrower's threads use the socket until `take_back`. It must be one that can be lent."""
        assert self._transport is not None
        self._transport.pause_reading()
        self._borrower, self._is_lent = borrower, True
        borrower.lend(self._next_id)

    def take_back(self) -> None:
        """Use the socket here again, if it is lent. Nothing of the borrower's is called after this returns."""
        is_lent, self._is_lent = self._is_lent, False
        if not is_lent or self._borrower is None or self._transport is None:
            return
        returned = self._borrower.take_back(self._loop.time())
        self._next_id = returned.last_id
        if (call := returned.call) is not None:
            self.last_used = self._loop.time()
            seconds = self._config.request_timeout_ms / 1000
            timer = self._loop.call_later(max(0.0, seconds - call.age), self._expire, call.api, seconds)
            answer = AnswerCallback(call.on_answer)
            self._calls.append(Call(call.correlation_id, call.api, call.version, answer, timer))
            self._transport.write(call.unsent)
        self._staged = len(returned.received)
        self._staging[: self._staged] = returned.received
        self._transport.resume_reading()
        # Not at once: the caller may be in the middle of something that the answer, or the loss, would change.
        if returned.is_broken:
            self._is_lost = True
            self._loop.call_soon(self.connection_lost, None)
        elif returned.received:
            self._loop.call_soon(self.buffer_updated, 0)

    # -- callbacks of asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.last_used = self._loop.time()
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, size in (
                (socket.SO_SNDBUF, self._config.send_buffer_bytes),
                (socket.SO_RCVBUF, self._config.receive_buffer_bytes),
            ):
                if size >= 0:
                    raw.setsockopt(socket.SOL_SOCKET, option, size)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(self._loss(error))
        # Drop the frame being filled: it may take half a gigabyte, and a traceback can keep this object alive.
        self._frame = None

    def _loss(self, error: Exception | None) -> HeadraceError:
        # With TLS 1.3, a broker checks this client's certificate after the client has finished its handshake.
        if isinstance(error, ssl.SSLError) and not self.versions.ranges:
            return tls_error(self.host, error)
        reason = f": {error}" if error else " by the broker"
        if self._next_id == _FIRST_AFTER_VERSIONS and self._calls and not self._config.uses_sasl:
            reason += " at the first request: it may expect a login (see security.protocol)"
        elif self._calls and not self.versions.ranges and not self._config.uses_tls:
            reason += " before its first response: it may expect TLS (see security.protocol), or is not a Kafka broker"
        return NetworkError(f"the connection to {self.host} was closed{reason}")

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled : self._frame_size]
        return memoryview(self._staging)[self._staged :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._frame is None:
                self._staged += nbytes
                self._split_staged()
                return
            self._frame_filled += nbytes
            if self._frame_filled == self._frame_size:
                frame, self._frame = self._frame, None
                self._answer(memoryview(frame)[: self._frame_size], frame)
        except HeadraceError as error:
            self._fail(error)

    def _split_staged(self) -> None:
        """Process every complete frame in `_staging`, and move the start of a frame that does not fit to `_frame`."""
        staged = memoryview(self._staging)[: self._staged]
        at = 0
        while len(staged) - at >= 4:
            size = _LENGTH.unpack_from(staged, at)[0]
            if not 0 <= size <= self._largest_frame:
                raise self._size_error(size)
            have = len(staged) - at - 4
            if have >= size:
                self._answer(memoryview(bytes(staged[at + 4 : at + 4 + size])), None)
                at += 4 + size
                continue
            if size + 4 > _STAGING:
                self._frame = self._frames.take(size)
                self._frame[:have] = staged[at + 4 :]
                self._frame_size, self._frame_filled = size, have
                at = len(staged)
            break
        rest = bytes(staged[at:])
        staged.release()
        self._staging[: len(rest)] = rest
        self._staged = len(rest)

    @property
    def _largest_frame(self) -> int:
        return largest_frame(self._config, is_ready=self._is_ready)

    @property
    def _is_ready(self) -> bool:
        """Whether the broker has returned its API versions and accepted the login, if any."""
        return bool(self.versions.ranges) and (self._authentication is None or self._authentication.is_done)

    def _size_error(self, size: int) -> ProtocolError:
        return frame_size_error(self.host, size, self._config, is_ready=self._is_ready)

    # -- receiving on a thread -------------------------------------------------------------------------------

    def receive_on_a_thread(self) -> None:
        """Receive on a thread from now on, for a connection that carries records: see `receiver.py`. Call it while no
        request is in flight.

        A caller that waited for the connection may resume after `close()`, and before asyncio has closed the socket. A
        thread that started then would never end: it keeps the socket open, and nobody closes the connection again."""
        if self._closed is not None:
            return
        if self._receiver is None and self._transport is not None and Receiver.fits(self._transport):
            self._receiver = Receiver(
                self._transport, self.host, self._take_frame, self._read_on_receipt, self._received, self._ended
            )

    def _take_frame(self, size: int) -> Frame:
        if not 0 <= size <= self._largest_frame:
            raise self._size_error(size)
        return self._frames.take(size) if size > _STAGING else bytearray(size)

    def _read_on_receipt(self, frame: Frame, size: int) -> Reply | None:
        """On the receiving thread."""
        try:
            return self._calls[0].read_on_receipt(memoryview(frame)[:size]) if size <= _STAGING else None
        except IndexError:
            return None  # the loop fails the connection

    def _received(self, frame: Frame, size: int, reply: Reply | None) -> None:
        if self._closed is not None:
            return
        try:
            self._answer(memoryview(frame)[:size], frame if size > _STAGING else None, reply)
        except HeadraceError as error:
            self._fail(error)

    def _ended(self, problem: Exception | None) -> None:
        if isinstance(problem, HeadraceError):
            self._fail(problem)
        else:
            self.connection_lost(problem)

    def _answer(self, frame: memoryview, buffer: Frame | None, reply: Reply | None = None) -> None:
        try:
            correlation_id = correlation_id_of(frame)
        except ProtocolError as error:
            raise ProtocolError(f"{self.host}: {error}") from None
        if not self._calls or self._calls[0].correlation_id != correlation_id:
            expected = f"{self._calls[0].correlation_id}" if self._calls else "none"
            raise ProtocolError(f"{self.host} answered request {correlation_id}, but {expected} was expected")
        call = self._calls.popleft()
        call.timer.cancel()
        try:
            reply = reply or call.parsed(frame, buffer)
        except ProtocolError as error:
            failure = ProtocolError(f"{call.api} to {self.host}: {error}")
            if not call.answer.done():
                call.answer.set_exception(failure)
                call.answer.exception()
            raise failure from None
        self._throttle.note(reply.body)
        if not call.answer.done():
            call.answer.set_result(reply)
