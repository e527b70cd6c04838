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
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from .._protocol.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api, correlation_id_of, encode_request
from .._protocol.versions import BrokerVersions
from .._security.access import Access
from ..config.client import ClientConfig
from ..errors import HeadraceError, NetworkError, ProtocolError, RequestTimeoutError, UnexpectedResponseError
from ._kernel import DirectResponse
from .authentication import Authentication, connection_error
from .calls import AnswerCallback, Call, NextRequest, OnReceipt, Repetition, Reply
from .frame_pool import Frame, FramePool
from .frame_size import frame_size_error, largest_frame
from .frame_splitter import STAGING, FrameSplitter
from .handshake import loss, negotiate
from .lending import Borrower
from .receiver import Receiver
from .throttle import Throttle
from .transport import open_transport, reset_on_close, socket_of

log = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    """A connection to a Kafka broker. Create one with `Connection.open`."""

    def __init__(self, host: str, port: int, config: ClientConfig, frames: FramePool) -> None:
        self.host = f"{host}:{port}"
        self.versions = BrokerVersions(self.host, {})
        self.last_used = 0.0
        self._config = config
        self._timeout = config.request_timeout_ms / 1000
        # What the receiving thread uses, too, if it sends: `_calls`, `_held`, `_next_id`, `_closed`, and the socket.
        self._sending = threading.RLock()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed: HeadraceError | None = None
        self._calls: collections.deque[Call] = collections.deque()
        self._held: list[tuple[Call | None, memoryview]] | None = None
        self._authentication: Authentication | None = None
        self._next_id = 0
        self._throttle = Throttle(self.host, self._loop)
        self._frames = frames
        self._splitter = FrameSplitter(frames, self._check_size, self._answer)
        self.receiver: Receiver | None = None  # after `receive_on_a_thread`
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
        api_versions: int = API_VERSIONS.highest,
    ) -> Connection:
        """Connect within `setup_timeout` seconds, fetch the broker's API versions, and log in. The connections of one
        client share `access` and `frames`; they are created if not given. `api_versions` is the version of the
        first request.

        Raises NetworkError if the connection cannot be opened, AuthenticationError if one side rejects the other, the
        errors of `call`, and KafkaError if the broker does not return its API versions.
        """
        connection = cls(host, port, config, frames or FramePool())
        access = access or Access(config)
        try:
            await open_transport(connection, host, port, access, setup_timeout)
            connection.versions = await negotiate(connection, api_versions)
            if access.mechanism is not None:
                connection._authentication = Authentication(connection, host, access, connection._fail)
                await connection._authentication.log_in()
        except BaseException as error:
            connection.close()
            if isinstance(error, HeadraceError) or not isinstance(error, Exception):
                raise
            raise connection_error(error, connection.host) from error
        return connection

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
        on_receipt: OnReceipt | None = None,
        repetition: Repetition | None = None,
    ) -> asyncio.Future[Reply]:
        """Send a request at once and return the future of its response. Raises the errors of `call`.

        `on_receipt` gets a small response before the future does, on the thread that receives it, if there is one. If
        it follows it up with another request, the future waits for the response to that one. With `repetition`, usual
        responses are followed by the next request before anybody gets them."""
        answer: asyncio.Future[Reply] = self._loop.create_future()
        with self._sending:
            version, frame = self._encode(api, fields, version, highest)
            self._call(api, version, frame, answer, timeout, on_receipt, repetition)
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
        with self._sending:
            version, frame = self._encode(api, fields, None, highest)
            self._call(api, version, frame, AnswerCallback(on_answer), None)

    def _call(
        self,
        api: Api,
        version: int,
        frame: memoryview,
        answer: asyncio.Future[Reply] | AnswerCallback,
        timeout: float | None,
        on_receipt: OnReceipt | None = None,
        repetition: Repetition | None = None,
    ) -> None:
        seconds = self._timeout if timeout is None else timeout
        call = Call(self._next_id, api, version, answer, self._loop.time() + seconds, on_receipt, repetition)
        self._watch(call, seconds)
        if not self._calls and self._held is None:
            self._arm(call)
        self._write(api, frame, call)

    def _watch(self, call: Call, seconds: float) -> None:
        call.timer = self._loop.call_at(call.deadline, self._expire, call, seconds)

    def send(self, api: Api, fields: Mapping[str, Any], *, highest: int | None = None) -> None:
        """Send a request that the broker does not answer (Produce with acks=0). Raises the errors of `call`."""
        with self._sending:
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
        if api is not SASL_HANDSHAKE and api is not SASL_AUTHENTICATE:  # a re-authentication does not count as use
            self.last_used = self._loop.time()
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
        ahead = max((call.deadline - now for call in self._calls), default=0.0)
        reply = await self.start(api, fields, timeout=max(0.0, ahead) + self._timeout)
        return reply.body

    def hold(self) -> None:
        """Hold back all requests except SASL requests."""
        with self._sending:
            self.take_back()
            self._held = []

    def release(self) -> None:
        """Send the requests that were held back."""
        with self._sending:
            held, self._held = self._held, None
            for call, frame in held or ():
                if self._closed is None and self._transport is not None:
                    if call is not None:
                        self._calls.append(call)
                    self._transport.write(frame)

    def _expire(self, call: Call, seconds: float) -> None:
        if call.deadline > self._loop.time() + 0.001:  # that of a later request; timers can come a little early
            self._watch(call, self._timeout)
            return
        self._fail(RequestTimeoutError(f"{call.api} to {self.host}: no response in {seconds:.1f} s"))

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
        if isinstance(cause, ProtocolError):
            reset_on_close(self._transport)
        if self.receiver is not None:
            self.receiver.close()  # first: its thread may hold the lock while it waits for the socket
            self.receiver.disarm()
        with self._sending:
            self._closed = cause
            calls = [*self._calls, *(call for call, _ in self._held or () if call is not None)]
            self._calls = collections.deque()
            if self._held is not None:
                self._held = []
        if self._authentication is not None:
            self._authentication.close()
        for call in calls:
            call.end()
            if not call.answer.done():
                call.answer.set_exception(cause)
                # Mark it as retrieved: if the caller was cancelled, asyncio would log "exception was never retrieved".
                call.answer.exception()
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
        is_busy = self._is_lent or self._calls or not self._splitter.is_empty or self._held is not None
        if not self.is_open or transport is None or is_busy or self.throttled_for:
            return None
        if transport.get_write_buffer_size() or self.receiver:
            return None
        return socket_of(transport)

    def lend(self, borrower: Borrower) -> None:
        """Let the borrower's threads use the socket until `take_back`. It must be one that can be lent."""
        assert self._transport is not None
        self._transport.pause_reading()
        self._borrower, self._is_lent = borrower, True
        borrower.lend(self._next_id)

    def take_back(self) -> None:
        """Use the socket here again, if it is lent. Nothing of the borrower's is called after this returns, and the
        receiving thread repeats no request."""
        self._end_repetition()
        is_lent, self._is_lent = self._is_lent, False
        if not is_lent or self._borrower is None or self._transport is None:
            return
        returned = self._borrower.take_back(self._loop.time())
        self._next_id = returned.last_id
        if (call := returned.call) is not None:
            self.last_used = self._loop.time()
            deadline = self._loop.time() + max(0.0, self._timeout - call.age)
            again = Call(call.correlation_id, call.api, call.version, AnswerCallback(call.on_answer), deadline)
            self._watch(again, self._timeout)
            self._calls.append(again)
            self._transport.write(call.unsent)
        self._splitter.put(returned.received)
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
        self._fail(loss(self.host, error, self.versions, self._config, self._next_id if self._calls else 0))
        self._splitter.drop()  # a traceback can keep this object alive

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._splitter.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._splitter.received(nbytes)
        except HeadraceError as error:
            self._fail(error)

    @property
    def _is_ready(self) -> bool:
        """Whether the broker has returned its API versions and accepted the login, if any."""
        return bool(self.versions.ranges) and (self._authentication is None or self._authentication.is_done)

    def _check_size(self, size: int) -> None:
        if not 0 <= size <= largest_frame(self._config, is_ready=self._is_ready):
            raise frame_size_error(self.host, size, self._config, is_ready=self._is_ready)

    # -- receiving on a thread -------------------------------------------------------------------------------

    def receive_on_a_thread(self) -> None:
        """Receive on a thread from now on, for a connection that carries records: see `receiver.py`. Call it while no
        request is in flight.

        A caller that waited for the connection may resume after `close()`, and before asyncio has closed the socket. A
        thread that started then would never end: it keeps the socket open, and nobody closes the connection again."""
        if self._closed is not None:
            return
        if self.receiver is None and self._transport is not None and Receiver.fits(self._transport):
            functions = (self._take_frame, self._deliver, self.repeated, self._ended)
            self.receiver = Receiver(self._transport, self.host, *functions)

    def _take_frame(self, size: int) -> Frame:
        self._check_size(size)
        return self._frames.take(size) if size > STAGING else bytearray(size)

    def _deliver(self, frame: Frame, size: int) -> None:
        """On the receiving thread. Responses go to the loop, except for small ones that are followed by a request."""
        reply = follow = None
        with contextlib.suppress(IndexError, ProtocolError):  # the loop reports them
            call, view = self._calls[0], memoryview(frame)[:size]
            if call.on_receipt is not None and size <= STAGING and correlation_id_of(view) == call.correlation_id:
                reply = call.parsed(view, None)
                # Once: a broker may respond twice, and the loop knows of the first response only later.
                on_receipt, call.on_receipt = call.on_receipt, None
                follow = on_receipt(reply)
        if follow is None or not self._proceed(call, follow):
            self._loop.call_soon_threadsafe(self._received, frame, size, reply)

    def _proceed(self, call: Call, follow: Callable[[], NextRequest | None]) -> bool:
        """Send the next request of a call, unless the loop is to do that."""
        with self._sending:
            is_alone = len(self._calls) == 1 and self._calls[0] is call and not self.unsent_bytes
            if self.receiver is None or not is_alone or self._held is not None or (request := follow()) is None:
                return False
            self._next_id = correlation_id = (self._next_id + 1) & 0x7FFFFFFF
            self.last_used = now = self._loop.time()
            call.proceed(correlation_id, now + self._timeout)
            call.on_receipt, call.repetition = request.on_receipt, request.repetition
            self._arm(call)
            frame = encode_request(call.api, call.version, correlation_id, self._config.client_id, request.fields)
            self.receiver.send(frame)
        return True

    def _arm(self, call: Call) -> None:
        """Before the only request in flight is sent."""
        if call.repetition is not None and self.receiver is not None:
            self.receiver.arm(call.repetition.fetch, call.correlation_id)

    def _end_repetition(self) -> None:
        """What `disarm` returns is the id of the first call: the receiving thread ends the repetition before it passes
        on the response. There is no call if the connection has failed."""
        if self.receiver is not None and (last_id := self.receiver.disarm()) is not None and self._calls:
            self._next_id = self._calls[0].correlation_id = last_id

    def repeated(self, response: DirectResponse) -> None:
        """On the thread that has received. The response to the first call has come, and its request was sent again."""
        with self._sending:
            call = self._calls[0] if self._calls else None
            if call is None or call.repetition is None:
                return  # the connection was closed meanwhile
            if call.correlation_id != response.correlation_id:  # else `_end_repetition` knew it, and others may follow
                self._next_id = response.correlation_id
            self.last_used = now = self._loop.time()
            call.proceed(response.correlation_id, now + self._timeout)
        if not call.repetition.repeated(response):
            with self._sending:
                self._end_repetition()

    def _received(self, frame: Frame, size: int, reply: Reply | None) -> None:
        if self._closed is not None:
            return
        try:
            self._answer(memoryview(frame)[:size], frame if size > STAGING else None, reply)
        except HeadraceError as error:
            self._fail(error)

    def _ended(self, problem: BaseException | None) -> None:
        if isinstance(problem, HeadraceError):
            self._fail(problem)
        elif problem is None or isinstance(problem, Exception):
            self.connection_lost(problem)
        else:
            self.connection_lost(RuntimeError(f"{type(problem).__name__}: {problem}"))

    def _answer(self, frame: memoryview, buffer: Frame | None, reply: Reply | None = None) -> None:
        try:
            correlation_id = correlation_id_of(frame)
        except ProtocolError as error:
            raise ProtocolError(f"{self.host}: {error}") from None
        if not self._calls or self._calls[0].correlation_id != correlation_id:
            expected = f"{self._calls[0].correlation_id}" if self._calls else "none"
            problem = f"{self.host} answered request {correlation_id}, but {expected} was expected"
            log.warning("%s: the connection is closed", problem)
            raise UnexpectedResponseError(problem)
        call = self._calls.popleft()
        call.end()
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
