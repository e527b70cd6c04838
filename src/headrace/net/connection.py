"""One connection to one broker.

    opening -> open -> closed

- Requests are pipelined; a broker answers those of one connection in order, one at a time.
- Every request has a deadline. One that passes it ends the connection: the broker would answer everything
  behind it only after it.
- A stream that failed fails everything in flight on it, at once, with the same cause.
- A frame is bounded by `receive.message.max.bytes` before anything is allocated for it.
- A request whose caller was cancelled stays in the queue, and its answer is dropped when it comes.
- While the login is renewed (`authentication.py`), requests are held back, in their order.

Everything here runs on the event loop that opened the connection, except `recycle` and what `receiver.py` does.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any

from .._version import __version__
from ..config import ConsumerConfig
from ..errors import HeadraceError, NetworkError, ProtocolError, RequestTimeoutError
from ..protocol.codes import NONE, kafka_error
from ..protocol.messages import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Api,
    correlation_id_of,
    decode_response,
    encode_request,
)
from ..protocol.versions import BrokerVersions, next_api_versions_attempt
from ..security.access import Access
from .authentication import Authentication, as_failure
from .dialing import dial, tls_failure
from .frame_pool import Frame, FramePool
from .receiver import Receiver

log = logging.getLogger(__name__)

_LENGTH = struct.Struct(">i")
_RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: on, and for no time
_STAGING = 64 * 1024
_UNSUPPORTED_VERSION = 35
_FIRST_AFTER_VERSIONS = 2  # the id of that request
_TLS_ALERT = 0x1503  # how one begins
# The first answer lists a broker's versions, a kilobyte or two, and those of a login are no longer. A TLS port answers
# with an alert that reads as a length of 350 MB, a web server with one of 1.2 GB.
_LARGEST_FIRST_FRAME = 1024 * 1024
# Seconds. A broker can ask for weeks of silence. What is sent after this waits there for as long as an answer may take.
_LONGEST_PAUSE = 30.0
_NOTABLE_PAUSE = 1.0  # shorter ones are how a quota works, many times a minute


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `body` may hold views of `frame`; give the frame back with `recycle` when they are done with."""

    body: Any
    version: int
    frame: Frame | None = None


@dataclasses.dataclass(slots=True)
class _Call:
    correlation_id: int
    api: Api
    version: int
    answer: asyncio.Future[Reply]
    timer: asyncio.TimerHandle


class Connection(asyncio.BufferedProtocol):
    """A connection that speaks Kafka. Make one with `Connection.open`."""

    def __init__(self, host: str, port: int, config: ConsumerConfig, frames: FramePool) -> None:
        self.host = f"{host}:{port}"
        self.versions = BrokerVersions(self.host, {})
        self.last_used = 0.0
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed: HeadraceError | None = None
        self._calls: collections.deque[_Call] = collections.deque()
        self._held: list[tuple[_Call, bytes]] | None = None
        self._authentication: Authentication | None = None
        self._next_id = 0
        self._throttled_until = 0.0
        self._frames = frames
        # Arriving bytes go into `staging` until a frame turns out not to fit there; then the rest of that
        # frame goes straight into `frame`, and nothing of the next one can get mixed in.
        self._staging = bytearray(_STAGING)
        self._staged = 0
        self._frame: Frame | None = None
        self._frame_size = 0
        self._frame_filled = 0
        self._receiver: Receiver | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        config: ConsumerConfig,
        setup_timeout: float,
        access: Access | None = None,
        frames: FramePool | None = None,
    ) -> Connection:
        """Connects, within `setup_timeout` seconds, learns the broker's versions, and logs in. What connections of one
        client share, `access` and `frames`, is made where it is not given.

        Raises NetworkError when the connection cannot be made; AuthenticationError when one side does not accept the
        other; then what `call` raises, and KafkaError when the broker refuses to tell its versions.
        """
        connection = cls(host, port, config, frames or FramePool())
        access = access or Access(config)
        try:
            await dial(connection, host, port, access, setup_timeout)
            await connection._negotiate()
            if access.mechanism is not None:
                connection._authentication = Authentication(connection, host, access, connection._fail)
                await connection._authentication.log_in()
        except BaseException as error:
            connection.close()
            if isinstance(error, HeadraceError) or not isinstance(error, Exception):
                raise
            raise as_failure(error, connection.host) from error
        return connection

    async def _negotiate(self) -> None:
        version: int | None = API_VERSIONS.highest
        while version is not None:
            fields = {"client_software_name": "headrace", "client_software_version": __version__}
            reply = await self.call(API_VERSIONS, fields, version=version)
            if reply.body.error_code == NONE:
                self.versions = BrokerVersions.from_response(self.host, reply.body)
                return
            if reply.body.error_code != _UNSUPPORTED_VERSION:
                break
            version = next_api_versions_attempt(version, reply.body)
        raise kafka_error(reply.body.error_code, f"ApiVersions to {self.host}")

    # -- requests --------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._closed is None and self._transport is not None

    @property
    def failure(self) -> HeadraceError | None:
        """What ended it."""
        return self._closed

    @property
    def in_flight(self) -> int:
        return len(self._calls) + len(self._held or ())

    async def call(
        self,
        api: Api,
        fields: Mapping[str, Any],
        *,
        version: int | None = None,
        highest: int | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Sends a request and waits for its answer.

        Raises RequestTimeoutError, NetworkError or ProtocolError, and the connection is closed then;
        UnsupportedVersionError when the broker does not know the request; EncodingError when it cannot be written.
        """
        if (pause := self._throttled_until - self._loop.time()) > 0:
            await asyncio.sleep(pause)
        return await self.start(api, fields, version=version, highest=highest, timeout=timeout)

    @property
    def throttled_for(self) -> float:
        """Seconds that the broker has asked this client to be quiet for."""
        return max(0.0, self._throttled_until - self._loop.time())

    def start(
        self,
        api: Api,
        fields: Mapping[str, Any],
        *,
        version: int | None = None,
        highest: int | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[Reply]:
        """Writes a request at once and returns its answer to come. Raises and fails as `call` does."""
        if self._closed is not None or self._transport is None:
            raise NetworkError(f"the connection to {self.host} is closed") from self._closed
        if version is None:
            version = self.versions.pick(api, highest)
        correlation_id = (self._next_id + 1) & 0x7FFFFFFF
        frame = encode_request(api, version, correlation_id, self._config.client_id, fields)
        self._next_id = correlation_id
        seconds = self._config.request_timeout_ms / 1000 if timeout is None else timeout
        call = _Call(
            correlation_id,
            api,
            version,
            self._loop.create_future(),
            self._loop.call_later(seconds, self._expire, api, seconds),
        )
        if api is not SASL_HANDSHAKE and api is not SASL_AUTHENTICATE:
            self.last_used = self._loop.time()  # a login that is renewed is no use of it
            if self._held is not None:
                self._held.append((call, frame))
                return call.answer
        self._calls.append(call)
        self._transport.write(frame)
        return call.answer

    async def call_in_turn(self, api: Api, fields: Mapping[str, Any]) -> Any:
        """The body of an answer that may come late, since a request before it is parked at the broker."""
        now = self._loop.time()
        ahead = max((call.timer.when() - now for call in self._calls), default=0.0)
        reply = await self.start(api, fields, timeout=max(0.0, ahead) + self._config.request_timeout_ms / 1000)
        return reply.body

    def hold(self) -> None:
        """Sends nothing but SASL from now on."""
        self._held = []

    def release(self) -> None:
        """Sends what was held back."""
        held, self._held = self._held, None
        for call, frame in held or ():
            if self._closed is None and self._transport is not None:
                self._calls.append(call)
                self._transport.write(frame)

    def _expire(self, api: Api, seconds: float) -> None:
        self._fail(RequestTimeoutError(f"{api} to {self.host}: no answer in {seconds:.1f} s"))

    def close(self) -> None:
        """Ends the connection at once; what is in flight fails."""
        self._fail(NetworkError(f"the connection to {self.host} was closed by this client"))

    def _fail(self, cause: HeadraceError) -> None:
        if self._closed is not None:
            return
        self._closed = cause
        calls, self._calls = [*self._calls, *(call for call, _ in self._held or ())], collections.deque()
        if self._held is not None:
            self._held = []
        if self._authentication is not None:
            self._authentication.close()
        for call in calls:
            call.timer.cancel()
            if not call.answer.done():
                call.answer.set_exception(cause)
                # A caller that went away must not leave "exception was never retrieved" behind.
                call.answer.exception()
        if isinstance(cause, ProtocolError):
            self._hang_up()
        if self._receiver is not None:
            self._receiver.close()
        if self._transport is not None:
            self._transport.abort()

    def _hang_up(self) -> None:
        """The socket's end is a reset, which drops what is on its way and tells the peer so. After an orderly one, a
        peer that sends without end and has filled this side's window would be left to wait for a minute."""
        raw = None if self._transport is None else self._transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):  # it is closed already
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def recycle(self, frame: Frame) -> None:
        """Takes a frame back when nothing refers to it any more. May be called from any thread."""
        self._frames.give(frame)

    # -- asyncio's side --------------------------------------------------------------------------------------

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
        # The frame being filled may be half a gigabyte; the object itself can live on in a traceback.
        self._frame = None

    def _loss(self, error: Exception | None) -> HeadraceError:
        # With TLS 1.3 a broker looks at this client's certificate when the client believes that all is well.
        if isinstance(error, ssl.SSLError) and not self.versions.ranges:
            return tls_failure(self.host, error)
        reason = f": {error}" if error else " by the broker"
        if self._next_id == _FIRST_AFTER_VERSIONS and self._calls and not self._config.uses_sasl:
            reason += " at the first request, as one does that expects a login: see security.protocol"
        elif self._calls and not self.versions.ranges and not self._config.uses_tls:
            reason += " before its first answer: it may expect TLS (see security.protocol), or is no Kafka broker"
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
        """Takes every whole frame out of what has arrived, and moves to a frame of its own what does not fit."""
        staged = memoryview(self._staging)[: self._staged]
        at = 0
        while len(staged) - at >= 4:
            size = _LENGTH.unpack_from(staged, at)[0]
            if not 0 <= size <= self._largest_frame:
                raise self._absurd(size)
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
        largest = self._config.receive_message_max_bytes
        return largest if self._is_let_in else min(largest, _LARGEST_FIRST_FRAME)

    @property
    def _is_let_in(self) -> bool:
        return bool(self.versions.ranges) and (self._authentication is None or self._authentication.is_done)

    def _absurd(self, size: int) -> ProtocolError:
        largest = self._largest_frame
        if self._is_let_in and size > largest:
            return ProtocolError(
                f"{self.host} announced an answer of {size} bytes, above receive.message.max.bytes={largest}: "
                f"raise that, or lower fetch.max.bytes"
            )
        kind = "TLS" if self._config.uses_tls else "plain-text"
        advice = ""
        if size >> 16 == _TLS_ALERT and not self._config.uses_tls:
            protocol = "SASL_SSL" if self._config.uses_sasl else "SSL"
            advice = f". The broker seems to expect TLS: set security.protocol={protocol}"
        return ProtocolError(
            f"{self.host} announced an answer of {size} bytes: this is not a Kafka broker's {kind} port{advice}"
        )

    # -- a thread's side -------------------------------------------------------------------------------------

    def receive_on_a_thread(self) -> None:
        """For a connection that carries records, see `receiver.py`. To be called while nothing is in flight."""
        if self._receiver is None and self._transport is not None and Receiver.fits(self._transport):
            self._receiver = Receiver(self._transport, self.host, self._room, self._received, self._ended)

    def _room(self, size: int) -> Frame:
        if not 0 <= size <= self._largest_frame:
            raise self._absurd(size)
        return self._frames.take(size) if size > _STAGING else bytearray(size)

    def _received(self, frame: Frame, size: int) -> None:
        if self._closed is not None:
            return
        try:
            self._answer(memoryview(frame)[:size], frame if size > _STAGING else None)
        except HeadraceError as error:
            self._fail(error)

    def _ended(self, problem: Exception | None) -> None:
        if isinstance(problem, HeadraceError):
            self._fail(problem)
        else:
            self.connection_lost(problem)

    def _answer(self, frame: memoryview, buffer: Frame | None) -> None:
        try:
            correlation_id = correlation_id_of(frame)
        except ProtocolError as error:
            raise ProtocolError(f"{self.host}: {error}") from None
        if not self._calls or self._calls[0].correlation_id != correlation_id:
            expected = f"{self._calls[0].correlation_id}" if self._calls else "none"
            raise ProtocolError(f"{self.host} answered request {correlation_id}, expected was {expected}")
        call = self._calls.popleft()
        call.timer.cancel()
        try:
            version = self._answer_version(call, frame)
            body = decode_response(call.api, version, frame)
        except ProtocolError as error:
            failure = ProtocolError(f"{call.api} to {self.host}: {error}")
            if not call.answer.done():
                call.answer.set_exception(failure)
                call.answer.exception()
            raise failure from None
        self._throttle(body)
        if not call.answer.done():
            call.answer.set_result(Reply(body, version, buffer))

    @staticmethod
    def _answer_version(call: _Call, frame: memoryview) -> int:
        """A broker that does not know the version of an ApiVersions request answers it in version 0."""
        if call.api is API_VERSIONS and len(frame) >= 6:
            code = int.from_bytes(frame[4:6], "big", signed=True)
            return 0 if code == _UNSUPPORTED_VERSION else call.version
        return call.version

    def _throttle(self, body: Any) -> None:
        """The broker mutes a connection over its quota: what is sent meanwhile only grows old in its buffers."""
        asked = getattr(body, "throttle_time", None)
        if asked:
            pause, now = min(asked.total_seconds(), _LONGEST_PAUSE), self._loop.time()
            is_news = pause >= _NOTABLE_PAUSE > self._throttled_until - now
            self._throttled_until = max(self._throttled_until, now + pause)
            level = logging.INFO if is_news else logging.DEBUG
            log.log(level, "%s throttles this client for %s: nothing is sent there for %.1f s", self.host, asked, pause)
